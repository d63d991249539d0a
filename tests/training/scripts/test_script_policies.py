"""Precision policies and loss scaling under a third-party program's own step, loop and layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mptraining_api import events
from tests.training.script_runs import PROGRAMS, Alone, ThroughUs

# Warnings of third-party programs are their own.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_an_own_train_step_gets_a_policy_that_needs_no_scale(
    tmp_path: Path, through_us: ThroughUs, alone: Alone
) -> None:
    program = PROGRAMS / "own_train_step.py"
    done = through_us(program, tmp_path, policy="mixed_float16")
    assert done.outcome.reason == "Succeeded", done.message
    policy = done.result.precision
    assert policy in ("mixed_bfloat16", "float32")
    assert done.losses == alone(program, "Keras3", policy)
    assert done.losses[-1] < 0.1 * done.losses[0]
    assert done.notices["LossNotScaled"].startswith(f"{policy} instead of mixed_float16: train.py:")
    assert "has its own train_step" in done.notices["LossNotScaled"]


def test_a_step_of_an_imported_module_does_too(tmp_path: Path, through_us: ThroughUs) -> None:
    text = (PROGRAMS / "own_train_step.py").read_text()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "steps.py").write_text("def train_step(self, data):\n    raise NotImplementedError\n")
    (tmp_path / "source" / "package").mkdir()
    (tmp_path / "source" / "package" / "between.py").write_text("import steps\n")
    scales = text.replace("def train_step(", "def step_of_no_model(").replace("GradientTape", "Tape")
    done = through_us("from package.between import steps\n" + scales, tmp_path, policy="mixed_float16")
    assert "steps.py:1 has its own train_step" in done.notices["LossNotScaled"]


def test_a_step_with_its_own_scaling_is_unchanged(tmp_path: Path, through_us: ThroughUs, alone: Alone) -> None:
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
        expected = alone(program, "Keras3", "mixed_float16")
        done = through_us(program, tmp_path / str(number), policy="mixed_float16")
        assert done.losses == expected
        assert "LossNotScaled" not in done.notices


@pytest.mark.test_all
def test_tf_keras_scales_an_own_train_step_itself(tmp_path: Path, through_us: ThroughUs, alone: Alone) -> None:
    program = PROGRAMS / "legacy_own_train_step.py"
    expected = alone(program, "Legacy", "mixed_float16")
    done = through_us(program, tmp_path, generation="Legacy", policy="mixed_float16")
    assert done.losses == expected
    assert expected[-1] < 0.1 * expected[0]
    assert "LossNotScaled" not in done.notices


OVERFLOWS = """
import {keras} as keras, numpy as np
inputs = np.ones((16, 4), "float32")
inputs[:12] = 1e9  # infinite as float16
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(inputs, np.ones((16, 1)), batch_size=4, shuffle=False, epochs=2, verbose=0)
print("LOSSES", [int(model.optimizer.iterations)])
{end}
"""
# The optimizer of the first fit has the steps that were applied.
AGAIN = """
model.compile("sgd", "mse")
model.fit(np.zeros((16, 4)), np.zeros((16, 1)), batch_size=4, epochs=1, verbose=0)
"""


def test_a_script_whose_steps_were_skipped_does_not_just_succeed(tmp_path: Path, through_us: ThroughUs) -> None:
    program = OVERFLOWS.format(keras="keras", end="")
    done = through_us(program, tmp_path / "Keras3", policy="mixed_float16")
    assert done.losses == [2], "the program's own optimizer counts the steps that it applied"
    assert done.result.skipped_steps == 6
    skipped, not_finite = done.result.warnings
    assert skipped.startswith("6 of 8 steps were skipped"), done.result.warnings
    assert not_finite == "loss at the end: NaN or infinite"
    program = OVERFLOWS.format(keras="keras", end=AGAIN)
    done = through_us(program, tmp_path / "again", policy="mixed_float16")
    assert done.result.skipped_steps == 6, "of twelve steps, the last four under another optimizer"
    program = OVERFLOWS.format(keras="tf_keras", end="")
    done = through_us(program, tmp_path / "Legacy", generation="Legacy", policy="mixed_float16")
    assert done.result.warnings == ("loss at the end: NaN or infinite",), "tf_keras counts skipped steps as others"


def test_the_policy_that_is_reported_is_that_of_the_layers(tmp_path: Path, through_us: ThroughUs) -> None:
    done = through_us(PROGRAMS / "book_mixed_precision.py", tmp_path, replicas=2)
    assert done.outcome.reason == "Succeeded", done.message
    assert done.result.precision == "mixed_float16"
    assert {event.precision for event in done.all(events.Progress)} == {"mixed_float16"}
    assert json.loads(done.read("model/model.json"))["trainedUnder"] == "mixed_float16"
    assert (
        "compute under mixed_float16, which the script sets; the job's policy is float32" in done.notices["OwnPolicy"]
    )
    assert "wrong with 2 replicas" in done.notices["LossScalingWrong"]
    assert "keras: Legacy" in done.notices["LossScalingWrong"]


TOKENS = """
import keras, numpy as np, tensorflow as tf
class TokenEmbedding(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = keras.layers.Embedding(4100, 4)
    def call(self, x):
        return self.embedding(x)
inputs = keras.Input((6,))
x = keras.layers.GlobalAveragePooling1D()(TokenEmbedding()(inputs))
model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x))
model.compile("sgd", "mse")
model.fit(np.full((4, 6), 4099), np.ones((4, 1)), verbose=0)
"""


def test_token_ids_that_a_policy_rounds_name_it(tmp_path: Path, through_us: ThroughUs) -> None:
    done = through_us(TOKENS, tmp_path, policy="mixed_float16")
    assert done.outcome.reason == "ProgramFailed", (
        "float16 makes 4100 of 4099, which an embedding of 4100 does not have"
    )
    assert "set precision: {policy: float32}" in done.message


COMPILED_LOOP = """
import keras, numpy as np, tensorflow as tf
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, dtype="float32")])
model.compile(keras.optimizers.SGD(0.1), "mse")
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


def test_a_loop_with_a_compiled_optimizer_gets_a_policy_that_needs_no_scale(
    tmp_path: Path, through_us: ThroughUs, alone: Alone
) -> None:
    program = tmp_path / "float32.py"
    program.write_text(COMPILED_LOOP)
    expected = alone(program, "Keras3")
    done = through_us(program, tmp_path / "job", policy="mixed_float16")
    assert expected[-1] < 0.1 * expected[0]
    # The model's one layer computes in float32, so that nothing is rounded.
    assert done.losses == pytest.approx(expected, rel=1e-6)
    assert "has its own training loop" in done.notices["LossNotScaled"]
