"""Programs that cannot run, or not as written: the message says what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from mptraining_trainer.scripts import train_script
from tests.training.script_runs import PROGRAMS, ThroughUs

# Warnings of third-party programs are their own.
pytestmark = pytest.mark.filterwarnings("ignore")
Patch = pytest.MonkeyPatch
STEPS_TO = {
    "custom_loop": (
        PROGRAMS / "custom_loop.py",
        {"replicas": 2},
        ["strategy.run(step, args=(batch,))", "experimental_distribute_dataset", "countPerWorker: 1", "strategy: None"],
    ),
    "legacy_custom_loop": (
        PROGRAMS / "legacy_mixed_precision_guide.py",
        {"replicas": 2, "generation": "Legacy"},
        ["strategy.run(step, args=(batch,))", "strategy: None"],
    ),
    "tpu": (
        PROGRAMS / "book_tpu.py",
        {},
        ["The job connects to its TPU before the script starts: delete TPUClusterResolver", "accelerator: {type: v5e"],
    ),
    "old_policy": (
        "import tensorflow as tf\ntf.keras.mixed_precision.experimental.set_policy('mixed_float16')\n",
        {},
        ["tf.keras.mixed_precision.set_global_policy('mixed_float16')"],
    ),
    "graph_rewrite": (
        "import tensorflow as tf\nopt = tf.keras.optimizers.Adam()\n"
        "opt = tf.train.experimental.enable_mixed_precision_graph_rewrite(opt)\n",
        {},
        ["precision: {policy: mixed_float16}"],
    ),
    "keras_2": (
        "import keras\nmodel = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\nprint(model.optimizer.lr)\n",
        {},
        ["set keras: Legacy, and import tf_keras in place of keras."],
    ),
    "model_of_a_callback": (
        "import keras\nclass Own(keras.callbacks.Callback):\n    def __init__(self, model):\n"
        "        self.model = model\nOwn(keras.Sequential())\n",
        {},
        ["has no setter. This is Keras 2 code", "set keras: Legacy, and import tf_keras in place of keras."],
    ),
    "training_without_default": (
        "import tensorflow as tf\nclass Own(tf.keras.layers.Layer):\n    def call(self, inputs, training):\n"
        "        return inputs\nOwn()(tf.keras.Input((2,)))\n",
        {},
        ["TypeError: missing a required argument: 'training'. This is Keras 2 code", "set keras: Legacy."],
    ),
    "tensorflow_on_a_symbol": (
        "import tensorflow as tf\ndef square(x):\n    return tf.square(x)\nsquare(tf.keras.Input((2,)))\n",
        {},
        ["A KerasTensor cannot be used as input", "This is Keras 2 code", "set keras: Legacy."],
    ),
    "float32_constant": (
        "import keras, tensorflow as tf\nx = keras.layers.Dense(2)(tf.ones((2, 3)))\nx + tf.random.normal((2, 2))\n",
        {"policy": "mixed_bfloat16"},
        ["under the job's policy mixed_bfloat16", "set precision: {policy: float32}"],
    ),
    "own_policy": (
        "import keras, tensorflow as tf\nkeras.mixed_precision.set_global_policy('mixed_float16')\n"
        "x = keras.layers.Dense(2)(tf.ones((2, 3)))\nx + tf.random.normal((2, 2))\n",
        {},
        ["under the script's own policy mixed_float16", "leave set_global_policy out"],
    ),
    "top_5": (
        "import keras, numpy as np\nmodel = keras.Sequential([keras.Input((4,)), keras.layers.Dense(9)])\n"
        "model.compile('sgd', keras.losses.SparseCategoricalCrossentropy(from_logits=True),\n"
        "              metrics=[keras.metrics.SparseTopKCategoricalAccuracy(5)])\n"
        "model.fit(np.ones((8, 4)), np.ones(8), verbose=0)\n",
        {"policy": "mixed_bfloat16"},
        ["set precision: {policy: float32}"],
    ),
    "odd_batch": (
        "import keras, numpy as np\nmodel = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse', metrics=['mae'])\nmodel.fit(np.ones((19, 4)), np.ones((19, 1)), batch_size=19)\n",
        {"replicas": 2},
        ["divisible by the 2 replicas", "batch_size"],
    ),
}


# Those that take the longest, and say what another row says.
LONG = ("legacy_custom_loop", "top_5", "own_policy")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.test_all] * (name in LONG)) for name in STEPS_TO]
)
def test_what_cannot_run_ends_with_what_to_change(name: str, tmp_path: Path, through_us: ThroughUs) -> None:
    program, settings, words = STEPS_TO[name]
    done = through_us(program, tmp_path, **settings)  # type: ignore[arg-type]
    assert done.outcome.reason in ("ProgramFailed", "InvalidProgram")
    assert [word for word in words if word not in done.message] == [], done.message


def test_settings_that_come_too_late_say_what_to_delete(tmp_path: Path, through_us: ThroughUs) -> None:
    text = "import tensorflow as tf\ntf.config.threading.set_intra_op_parallelism_threads(3)\n"
    # As a strategy of the job's does.
    tf.constant(1)
    done = through_us(text, tmp_path)
    assert done.outcome.reason == "ProgramFailed"
    assert "train.py:2: " in done.message
    assert "TensorFlow runs already, with the devices and threads of the job: delete the line" in done.message


def test_old_names_are_noticed_before_the_script_runs(tmp_path: Path, through_us: ThroughUs) -> None:
    text = (
        "import tensorflow as tf\nif False:\n"
        "    tf.config.optimizer.set_experimental_options({'auto_mixed_precision': True})\nprint('LOSSES', [1])\n"
    )
    done = through_us(text, tmp_path)
    assert done.notices["OldMixedPrecision"].startswith("train.py:3: auto_mixed_precision.")
    assert "precision: {policy: mixed_float16}" in done.notices["OldMixedPrecision"]


def test_the_error_of_a_traced_function_is_short(tmp_path: Path, through_us: ThroughUs) -> None:
    text = (
        "import keras, numpy as np\nclass Layer(keras.layers.Layer):\n    def call(self, x):\n"
        "        return x @ np.ones((9, 9), 'float32')\n"
        "model = keras.Sequential([Layer(), keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
        "model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)\n"
    )
    done = through_us(text, tmp_path)
    assert done.outcome.reason == "ProgramFailed"
    assert "train.py:4: " in done.message
    assert 'File "' not in done.message
    assert len(done.message) < 700


@pytest.mark.parametrize("broken", ["save", "progress"])
def test_a_fault_of_ours_ends_no_script(broken: str, tmp_path: Path, monkeypatch: Patch, through_us: ThroughUs) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("broken on purpose")

    monkeypatch.setattr(train_script._Script, broken, fails)
    done = through_us(PROGRAMS / "own_train_step.py", tmp_path)
    assert (done.outcome.reason, len(done.losses)) == ("Succeeded", 4)
    assert "broken on purpose" in done.notices[{"save": "NotSaved", "progress": "NotReported"}[broken]]
