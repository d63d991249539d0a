"""Keras 2 code is recognized in a program's text, and code of Keras 3 is not taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptraining_api.script_signs import keras_2_signs, old_mixed_precision

HEAD = "import tensorflow as tf\nfrom tensorflow import keras\n"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("print(model.optimizer.lr.numpy())", "model.optimizer.lr"),
        ("tf.keras.backend.set_value(self.model.optimizer.lr, 0.1)", "self.model.optimizer.lr"),
        ("model.compile(tf.keras.optimizers.Adam(lr=1e-3))", "Adam(lr=…)"),
        ("opt = keras.optimizers.SGD(0.1, decay=1e-6, momentum=0.9)", "SGD(decay=…)"),
        ("opt = tf.keras.optimizers.legacy.Adam()", "tf.keras.optimizers.legacy"),
        ("from tensorflow.keras.optimizers.legacy import Adam", "tensorflow.keras.optimizers.legacy.Adam"),
        ("x = tf.keras.layers.experimental.preprocessing.Rescaling(1 / 255)", "tf.keras.layers.experimental"),
        ("from tensorflow.keras.layers.experimental import preprocessing", None),
        ("x = layers.experimental.preprocessing.Normalization()", "layers.experimental"),
        ("model.save_weights('training_1/cp.ckpt')", "save_weights('training_1/cp.ckpt')"),
        ("path = 'training_1/cp.ckpt'\nmodel.save_weights(path)", "save_weights('training_1/cp.ckpt')"),
        (
            "c = tf.keras.callbacks.ModelCheckpoint(filepath='cp-{epoch}.ckpt', save_weights_only=True)",
            "ModelCheckpoint('cp-{epoch}.ckpt')",
        ),
        (
            "p = os.path.join('a', 'save_at_{epoch}')\nkeras.callbacks.ModelCheckpoint(p)",
            "ModelCheckpoint('save_at_{epoch}')",
        ),
        ("model.save('saved_model/my_model')", "model.save('saved_model/my_model')"),
        ("model.fit_generator(train)", ".fit_generator(…)"),
        ("scaled = optimizer.get_scaled_loss(loss)", ".get_scaled_loss"),
    ],
)
def test_a_line_of_keras_2_is_recognized(line: str, what: str | None) -> None:
    first, *others = keras_2_signs(HEAD + line)
    assert others == []
    assert first.line == 2 + len(line.splitlines())
    assert what in (None, first.what)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "opt = keras.optimizers.Adam(learning_rate=0.1)\nprint(opt.learning_rate)\nmodel.save('m.keras')",
        HEAD + "keras.callbacks.ModelCheckpoint('m.keras')\nmodel.save_weights('m.weights.h5')\nmodel.save('m.h5')",
        HEAD + "args.lr = 3\nkeras.optimizers.schedules.InverseTimeDecay(0.1, 1, decay_rate=0.5)",
        HEAD + "def save(path):\n    model.save(path)\nmodel.save(where())",
        # Whatever tf.keras is, this is Keras 3.
        "import keras\nimport tensorflow as tf\nmodel.optimizer.lr",
        "import tf_keras as keras\nmodel.optimizer.lr",
        "import torch\noptimizer.lr = 1\nmodel.save('x')",
        "!pip install",
        "",
    ],
)
def test_other_code_is_not(text: str) -> None:
    assert keras_2_signs(text) == ()


def test_each_line_is_named_once_and_in_order() -> None:
    text = HEAD + "model.optimizer.lr\nmodel.save('folder')\nmodel.optimizer.lr\n"
    assert [(sign.line, sign.what) for sign in keras_2_signs(text)] == [
        (3, "model.optimizer.lr"),
        (4, "model.save('folder')"),
    ]


def test_this_project_s_own_scripts_speak_keras_3() -> None:
    scripts = sorted((Path(__file__).parents[1] / "trainer" / "tutorials").rglob("*.py"))
    assert scripts
    for path in scripts:
        if not path.stem.startswith("legacy_"):
            assert keras_2_signs(path.read_text(encoding="utf-8")) == (), path.name


def test_old_names_of_mixed_precision_have_a_translation() -> None:
    text = (
        "import tensorflow as tf\n"
        "policy = tf.keras.mixed_precision.experimental.Policy('mixed_float16')\n"
        "tf.keras.mixed_precision.experimental.set_policy(policy)\n"
        "opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)\n"
        "tf.config.optimizer.set_experimental_options({'auto_mixed_precision': True})\n"
    )
    found = old_mixed_precision(text)
    assert [sign.line for sign, _ in found] == [3, 4, 5]
    assert "set_global_policy" in found[0][1]
    assert all("precision: {policy: mixed_float16}" in translation for _, translation in found[1:])
    assert old_mixed_precision("config.set_policy(3)") == ()
