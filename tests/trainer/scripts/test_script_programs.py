"""Third-party programs as scripts: the trainer trains them to the same numbers as plain Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api import events
from mptraining_trainer.scripts import run_script
from tests.trainer.script_runs import PROGRAMS, InProcess, ScriptRun, alone, through_us

# Warnings of third-party programs are their own.
pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore")]

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("vae", "Keras3"),
        ("gan", "Keras3"),
        ("siamese", "Keras3"),
        ("distiller", "Legacy"),
        ("own_train_step", "Keras3"),
        ("legacy_own_train_step", "Legacy"),
        ("mixed_precision_guide", "Keras3"),
        ("legacy_mixed_precision_guide", "Legacy"),
        ("custom_loop", "Keras3"),
        ("book_mixed_precision", "Keras3"),
    ],
)
def test_a_program_trains_as_it_does_alone(
    name: str, generation: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    expected = alone(PROGRAMS / f"{name}.py", generation, capsys)
    done = through_us(PROGRAMS / f"{name}.py", tmp_path, capsys, monkeypatch, generation=generation)
    assert done.outcome.reason == "Succeeded", done.message
    assert done.losses == expected
    assert done.all(events.Started)[0].strategy == "None"


@pytest.mark.parametrize("generation", ["Keras3", "Legacy"])
def test_the_article_on_transfer_learning_trains(
    generation: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """Its clear_session must remove neither the scope nor the policy; alone it takes as much time again."""
    done = through_us(PROGRAMS / "transfer_learning_article.py", tmp_path, capsys, monkeypatch, generation=generation)
    assert done.outcome.reason == "Succeeded", done.message
    assert len(done.losses) == 2
    assert (done.result.precision, done.result.model) == ("mixed_float16", "model")
    assert json.loads((done.folder / "model" / "model.json").read_text())["policy"] == "float32"


# Keras' own step in place of the program's.
OF_KERAS = ("def train_step(", "def step_of_no_model(")


def test_an_own_train_step_learns_under_float16_as_keras_own_does(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    text = (PROGRAMS / "own_train_step.py").read_text()
    reference = tmp_path / "reference.py"
    reference.write_text(text.replace(*OF_KERAS))
    expected = alone(reference, "Keras3", capsys, "mixed_float16")
    done = through_us(text, tmp_path, capsys, monkeypatch, policy="mixed_float16")
    assert done.outcome.reason == "Succeeded", done.message
    assert expected[-1] < 0.1 * expected[0]
    # A scale is a power of two, so that it changes no bit; losses are averaged in another order.
    np.testing.assert_allclose(done.losses, expected, rtol=1e-6)
    assert done.result.precision == "mixed_float16"
    assert "scale_loss" in done.notices["LossScaled"]
    # A program's own step gets the gradients of its unscaled loss.
    clipped = text.replace(
        "        self.optimizer.apply(",
        "        gradients, _ = tf.clip_by_global_norm(gradients, 1e3)\n        self.optimizer.apply(",
    )
    assert clipped != text
    again = through_us(clipped, tmp_path / "clipped", capsys, monkeypatch, policy="mixed_float16")
    np.testing.assert_allclose(again.losses, expected, rtol=1e-6)


def test_a_step_with_its_own_scaling_is_unchanged(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    text = (PROGRAMS / "own_train_step.py").read_text()
    scales = text.replace(
        "        gradients = tape.gradient(loss,",
        "            scaled = self.optimizer.scale_loss(loss)\n        gradients = tape.gradient(scaled,",
    )
    calls_super = text.replace(
        "        x, y = data\n", "        return super().train_step(data)\n        x, y = data\n"
    )
    for number, each in enumerate((scales, calls_super)):
        assert each != text
        program = tmp_path / f"{number}.py"
        program.write_text(each)
        expected = alone(program, "Keras3", capsys, "mixed_float16")
        done = through_us(program, tmp_path / str(number), capsys, monkeypatch, policy="mixed_float16")
        assert done.losses == expected
        assert "LossScaled" not in done.notices


def test_tf_keras_scales_an_own_train_step_itself(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    program = PROGRAMS / "legacy_own_train_step.py"
    expected = alone(program, "Legacy", capsys, "mixed_float16")
    done = through_us(program, tmp_path, capsys, monkeypatch, generation="Legacy", policy="mixed_float16")
    assert done.losses == expected
    assert expected[-1] < 0.1 * expected[0]
    assert "LossScaled" not in done.notices


CLEARED = """
import numpy as np
import tensorflow as tf
{imports}
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
{clear}()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1, dtype="float32")])
print("DEVICES", model.layers[0].compute_dtype, tf.distribute.get_strategy().num_replicas_in_sync)
model.compile("sgd", "mse")
print("LOSSES", model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=1, batch_size=4, verbose=0).history["loss"])
"""


@pytest.mark.parametrize(
    ("imports", "clear", "generation"),
    [
        ("import keras", "keras.backend.clear_session", "Keras3"),
        ("import keras", "keras.utils.clear_session", "Keras3"),
        ("from tensorflow import keras", "tf.keras.backend.clear_session", "Keras3"),
        ("from tensorflow import keras", "tf.keras.backend.clear_session", "Legacy"),
        ("import tf_keras as keras", "keras.backend.clear_session", "Legacy"),
    ],
)
def test_clear_session_keeps_policy_and_scope(
    imports: str, clear: str, generation: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    text = CLEARED.format(imports=imports, clear=clear)
    done = through_us(text, tmp_path, capsys, monkeypatch, generation=generation, policy="mixed_bfloat16", replicas=2)
    assert done.outcome.reason == "Succeeded", done.message
    assert "DEVICES bfloat16 2\n" in done.printed
    assert not tf.distribute.has_strategy()
    assert done.result.replicas_in_sync == 2


def test_the_policy_that_is_reported_is_that_of_the_layers(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    done = through_us(PROGRAMS / "book_mixed_precision.py", tmp_path, capsys, monkeypatch, replicas=2)
    assert done.outcome.reason == "Succeeded", done.message
    assert done.result.precision == "mixed_float16"
    assert {event.precision for event in done.all(events.Progress)} == {"mixed_float16"}
    assert json.loads((done.folder / "model" / "model.json").read_text())["trainedUnder"] == "mixed_float16"
    assert (
        "compute under mixed_float16, which the script sets; the job's policy is float32" in done.notices["OwnPolicy"]
    )
    assert "wrong with 2 replicas" in done.notices["LossScalingWrong"]
    assert "keras: Legacy" in done.notices["LossScalingWrong"]


def test_every_epoch_is_reported(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    text = (PROGRAMS / "own_train_step.py").read_text().replace("epochs=4", "epochs=12")
    done = through_us(text, tmp_path, capsys, monkeypatch)
    reported = {event.epoch: event for event in done.all(events.Progress)}
    assert sorted(reported) == list(range(1, 13))
    assert [reported[epoch].metrics["loss"] for epoch in range(1, 13)] == done.losses


STEPS_TO = {
    "custom_loop": (
        PROGRAMS / "custom_loop.py",
        {"replicas": 2},
        ["strategy.run(step, args=(batch,))", "experimental_distribute_dataset", "countPerNode: 1", "strategy: None"],
    ),
    "legacy_custom_loop": (
        PROGRAMS / "legacy_mixed_precision_guide.py",
        {"replicas": 2, "generation": "Legacy"},
        ["strategy.run(step, args=(batch,))", "strategy: None"],
    ),
    "tpu": (
        PROGRAMS / "book_tpu.py",
        {},
        ["The job connects to its TPU before the script starts: delete TPUClusterResolver", "accelerator: {type: tpu"],
    ),
    "own_strategy": (PROGRAMS / "book_multi_gpu.py", {"replicas": 2}, ["Set strategy: None"]),
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


@pytest.mark.parametrize("name", STEPS_TO)
def test_what_cannot_run_ends_with_what_to_change(
    name: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    program, settings, words = STEPS_TO[name]
    done = through_us(program, tmp_path, capsys, monkeypatch, **settings)  # type: ignore[arg-type]
    assert done.outcome.reason in ("ProgramFailed", "InvalidProgram")
    assert [each for each in words if each not in done.message] == [], done.message


def test_the_book_s_own_strategy_runs_with_strategy_none(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    expected = alone(PROGRAMS / "book_multi_gpu.py", "Keras3", capsys)
    done = through_us(PROGRAMS / "book_multi_gpu.py", tmp_path, capsys, monkeypatch, replicas=2, **{"strategy": "None"})
    assert done.outcome.reason == "Succeeded", done.message
    assert done.losses == expected


TOKENS = """
import keras, numpy as np, tensorflow as tf
class TokenEmbedding(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding({size}, 4)
    def call(self, x):
        return self.embedding(x)
inputs = keras.Input((6,))
x = keras.layers.GlobalAveragePooling1D()(TokenEmbedding()(inputs))
model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x))
model.compile("sgd", "mse")
model.fit(np.full((4, 6), {size} - 1), np.ones((4, 1)), verbose=0)
"""


def test_token_ids_that_a_policy_rounds_are_reported(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    done = through_us(TOKENS.format(size=4100), tmp_path / "16", capsys, monkeypatch, policy="mixed_float16")
    assert done.outcome.reason == "ProgramFailed", (
        "float16 makes 4100 of 4099, which an embedding of 4100 does not have"
    )
    assert "set precision: {policy: float32}" in done.message
    done = through_us(TOKENS.format(size=4100), tmp_path / "b16", capsys, monkeypatch, policy="mixed_bfloat16")
    assert "those above 256 are rounded" in done.notices["TokenIdsRounded"]
    done = through_us(TOKENS.format(size=200), tmp_path / "small", capsys, monkeypatch, policy="mixed_bfloat16")
    assert "TokenIdsRounded" not in done.notices
    assert done.outcome.reason == "Succeeded"


def test_settings_that_come_too_late_are_reported(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    text = (
        "import tensorflow as tf\ntf.config.threading.set_intra_op_parallelism_threads(3)\n"
        "tf.config.threading.set_inter_op_parallelism_threads(3)\ntf.config.set_visible_devices([], 'GPU')\n"
        "tf.config.experimental.set_memory_growth\nprint('LOSSES', [1])\n"
    )
    done = through_us(text, tmp_path, capsys, monkeypatch)
    assert (done.outcome.reason, done.losses) == ("Succeeded", [1.0])
    assert "parallelism_threads: TensorFlow runs already" in done.notices["SettingIgnored"]


def taken_after(folder: Path, epochs: int) -> InProcess:
    return InProcess(lambda: len(list((folder / "run" / "checkpoints").glob("*/state.json"))) >= epochs)


@pytest.mark.parametrize(
    ("name", "replicas", "generation"),
    [("vae", 1, "Keras3"), ("own_train_step", 2, "Keras3"), ("legacy_own_train_step", 2, "Legacy")],
)
def test_a_preempted_program_ends_as_an_undisturbed_one(
    name: str, replicas: int, generation: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    program = PROGRAMS / f"{name}.py"
    settings: dict[str, Any] = {"replicas": replicas, "generation": generation}
    whole = through_us(program, tmp_path / "whole", capsys, monkeypatch, **settings)
    parts = tmp_path / "parts"
    taken = through_us(program, parts, capsys, monkeypatch, preemption=taken_after(parts, 1), **settings)
    assert taken.outcome.reason == "Preempted"
    rest = through_us(program, parts, capsys, monkeypatch, attempt=2, **settings)
    assert (whole.outcome.reason, rest.outcome.reason) == ("Succeeded", "Succeeded"), rest.message
    assert "Resumed" in rest.notices, rest.notices
    assert rest.losses == pytest.approx(whole.losses, rel=1e-5)
    assert all(np.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(weights(rest), weights(whole), strict=True)), (
        "replicas that no longer share their gradients end elsewhere"
    )


def weights(done: ScriptRun) -> list[Any]:
    with np.load(done.folder / "model" / "weights.npz") as arrays:
        return [arrays[name] for name in sorted(arrays)]


UNBUILT = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed({seed})
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense({units})
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.dense(x) - y))
        self.optimizer.apply(tape.gradient(loss, self.dense.trainable_weights), self.dense.trainable_weights)
        return {{"loss": loss, "text": tf.constant("no number")}}
model = Model()
model.compile("sgd")
history = model.fit(np.ones((8, 3), "float32"), np.ones((8, {units}), "float32"), batch_size=4, epochs=3, verbose=0)
print("LOSSES", [float(value) for value in history.history["loss"]])
"""


def test_a_model_that_cannot_be_restored_starts_again_with_a_warning(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """Its layers have no variables before the first step, and it has no call that creates them."""
    text = UNBUILT.format(seed=1, units=2)
    taken = through_us(text, tmp_path, capsys, monkeypatch, preemption=taken_after(tmp_path, 1))
    assert taken.outcome.reason == "Preempted"
    rest = through_us(text, tmp_path, capsys, monkeypatch, attempt=2)
    assert rest.outcome.reason == "Succeeded", rest.message
    assert len(rest.losses) == 3
    assert {"NotBuilt", "NotResumable"} <= rest.notices.keys()
    # Another model in the same run folder: it trains from the start.
    other = (PROGRAMS / "own_train_step.py").read_text()
    done = through_us(other, tmp_path, capsys, monkeypatch, attempt=3)
    assert (done.outcome.reason, len(done.losses)) == ("Succeeded", 4)
    assert "another one than that of the checkpoint" in done.notices["NotRestored"]
    assert max(event.step for event in done.all(events.Saved)) > max(event.step for event in rest.all(events.Saved))


@pytest.mark.parametrize("broken", ["save", "progress"])
def test_a_fault_of_ours_ends_no_script(broken: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("broken on purpose")

    monkeypatch.setattr(run_script._Script, broken, fails)
    done = through_us(PROGRAMS / "own_train_step.py", tmp_path, capsys, monkeypatch)
    assert (done.outcome.reason, len(done.losses)) == ("Succeeded", 4)
    assert "broken on purpose" in done.notices[{"save": "NotSaved", "progress": "NotReported"}[broken]]


OWN_CLASSES = """
import numpy as np
{imports}
class Block(keras.layers.Layer):
    def __init__(self, {argument}, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(4, activation=swish2)
        self.by = {argument}
    def call(self, x):
        return self.dense(x) + keras.{ops}.cast(self.by, self.compute_dtype)
def swish2(x):
    return x * 2
inputs = keras.Input((3,))
model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(Block({value})(inputs)))
model.compile("sgd", "mse")
model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)
print("PREDICTED", model.predict(np.ones((1, 3)), verbose=0).tolist())
"""


@pytest.mark.parametrize("generation", ["Keras3", "Legacy"])
@pytest.mark.parametrize(("argument", "value"), [("by", "0.5"), ("array", "np.ones(4)")])
def test_a_model_with_classes_of_the_script_is_exported_in_float32(
    generation: str, argument: str, value: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    legacy = generation == "Legacy"
    imports = "import tf_keras as keras" if legacy else "import keras"
    ops = "backend" if legacy else "ops"
    text = OWN_CLASSES.format(imports=imports, argument=argument, value=value, ops=ops)
    done = through_us(text, tmp_path, capsys, monkeypatch, generation=generation, policy="mixed_bfloat16", replicas=2)
    assert done.outcome.reason == "Succeeded", done.message
    about = json.loads((done.folder / "model" / "model.json").read_text())
    assert (about["policy"], about["trainedUnder"]) == ("float32", "mixed_bfloat16")
    assert (done.folder / "model" / "model.weights.h5").exists()
    assert len(weights(done)) == 4


COMPILED_LOOP = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype="float32")])
model.compile(keras.optimizers.SGD(0.1), "mse")
{before}
x = np.ones((8, 4), "float32")
model.optimizer.build(model.trainable_weights)

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - 1.0))
    model.optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
    return loss

print("LOSSES", [float(step()) for _ in range(4)])
"""


def test_a_loop_with_a_compiled_optimizer_learns_under_float16(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    program = tmp_path / "float32.py"
    program.write_text(COMPILED_LOOP.format(before=""))
    expected = alone(program, "Keras3", capsys)
    done = through_us(program, tmp_path, capsys, monkeypatch, policy="mixed_float16")
    assert expected[-1] < 0.1 * expected[0]
    # The model's one layer computes in float32, so that nothing is rounded.
    assert done.losses == pytest.approx(expected, rel=1e-6)
    assert "they are not divided here" in done.notices["LossNotScaled"]
    trained = COMPILED_LOOP.format(before="model.fit(np.zeros((4, 4)), np.zeros((4, 1)), verbose=0)")
    assert (
        "LossNotScaled"
        not in through_us(trained, tmp_path / "fit", capsys, monkeypatch, policy="mixed_float16").notices
    )


def test_old_names_are_noticed_before_the_script_runs(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    text = (
        "import tensorflow as tf\nif False:\n"
        "    tf.config.optimizer.set_experimental_options({'auto_mixed_precision': True})\nprint('LOSSES', [1])\n"
    )
    done = through_us(text, tmp_path, capsys, monkeypatch)
    assert done.notices["OldMixedPrecision"].startswith("train.py:3: auto_mixed_precision.")
    assert "precision: {policy: mixed_float16}" in done.notices["OldMixedPrecision"]


def test_the_error_of_a_traced_function_is_short(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    text = (
        "import keras, numpy as np\nclass Layer(keras.layers.Layer):\n    def call(self, x):\n"
        "        return x @ np.ones((9, 9), 'float32')\n"
        "model = keras.Sequential([Layer(), keras.layers.Dense(1)])\nmodel.compile('sgd', 'mse')\n"
        "model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)\n"
    )
    done = through_us(text, tmp_path, capsys, monkeypatch)
    assert done.outcome.reason == "ProgramFailed"
    assert "train.py:4: " in done.message
    assert 'File "' not in done.message
    assert len(done.message) < 700


def test_a_model_without_call_trains_on_replicas(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    """Plain Keras calls it there first, which it does not support."""
    done = through_us(PROGRAMS / "vae.py", tmp_path, capsys, monkeypatch, replicas=2)
    assert done.outcome.reason == "Succeeded", done.message
    assert done.losses[-1] < done.losses[0]
    assert "has to be divided by 2" in done.notices["OwnTrainStep"]
    unbuilt = through_us(PROGRAMS / "siamese.py", tmp_path / "siamese", capsys, monkeypatch, replicas=2)
    assert "build all of its layers before fit, or set accelerator.countPerNode: 1" in unbuilt.message


OWN_OPTIMIZER = """
import keras, numpy as np, tensorflow as tf
class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.part = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    def compile(self, own):
        super().compile()
        self.own = own
    def train_step(self, x):
        # A shape that is known within the step alone.
        noise = tf.zeros((tf.shape(x)[0], 3))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.part(tf.concat([x, noise], 0)) - 1) ** 2) / 2
        variables = self.part.trainable_variables
        self.own.apply_gradients(zip(tape.gradient(loss, variables), variables))
        # Keras' History takes no bfloat16.
        return {"own": tf.cast(loss, tf.float32)}
model = Gan()
model.compile(keras.optimizers.Adam(0.1))
history = model.fit(np.ones((8, 3), "float32"), batch_size=4, epochs=2, shuffle=False, verbose=2)
assert len(model.own.variables) == 6
print("LOSSES", history.history["own"])
"""


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_an_optimizer_beside_the_compiled_one_trains_on_replicas(
    policy: str, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """Plain Keras creates its variables within the traced step, which TensorFlow then cannot run."""
    done = through_us(OWN_OPTIMIZER, tmp_path, capsys, monkeypatch, replicas=2, policy=policy)
    assert done.outcome.reason == "Succeeded", done.message
    assert done.losses[-1] < done.losses[0]
