"""Precision policies and loss scaling under a third-party program's own step, loop and layers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mptraining_api import events
from tests.training.script_runs import PROGRAMS, Alone, ThroughUs

# Warnings of third-party programs are their own.
pytestmark = pytest.mark.filterwarnings("ignore")
# Keras' own step in place of the program's.
OF_KERAS = ("def train_step(", "def step_of_no_model(")


def test_an_own_train_step_learns_under_float16_as_keras_own_does(
    tmp_path: Path, through_us: ThroughUs, alone: Alone
) -> None:
    text = (PROGRAMS / "own_train_step.py").read_text()
    reference = tmp_path / "reference.py"
    reference.write_text(text.replace(*OF_KERAS))
    expected = alone(reference, "Keras3", "mixed_float16")
    done = through_us(text, tmp_path, policy="mixed_float16")
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
    again = through_us(clipped, tmp_path / "clipped", policy="mixed_float16")
    np.testing.assert_allclose(again.losses, expected, rtol=1e-6)


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
        assert "LossScaled" not in done.notices


@pytest.mark.test_all
def test_tf_keras_scales_an_own_train_step_itself(tmp_path: Path, through_us: ThroughUs, alone: Alone) -> None:
    program = PROGRAMS / "legacy_own_train_step.py"
    expected = alone(program, "Legacy", "mixed_float16")
    done = through_us(program, tmp_path, generation="Legacy", policy="mixed_float16")
    assert done.losses == expected
    assert expected[-1] < 0.1 * expected[0]
    assert "LossScaled" not in done.notices


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
        self.embedding = keras.layers.Embedding({size}, 4)
    def call(self, x):
        return self.embedding(x)
inputs = keras.Input((6,))
x = keras.layers.GlobalAveragePooling1D()(TokenEmbedding()(inputs))
model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x))
model.compile("sgd", "mse")
model.fit(np.full((4, 6), {size} - 1), np.ones((4, 1)), verbose=0)
"""


def test_token_ids_that_a_policy_rounds_are_reported(tmp_path: Path, through_us: ThroughUs) -> None:
    done = through_us(TOKENS.format(size=4100), tmp_path / "16", policy="mixed_float16")
    assert done.outcome.reason == "ProgramFailed", (
        "float16 makes 4100 of 4099, which an embedding of 4100 does not have"
    )
    assert "set precision: {policy: float32}" in done.message
    done = through_us(TOKENS.format(size=4100), tmp_path / "b16", policy="mixed_bfloat16")
    assert "those above 256 are rounded" in done.notices["TokenIdsRounded"]
    done = through_us(TOKENS.format(size=200), tmp_path / "small", policy="mixed_bfloat16")
    assert "TokenIdsRounded" not in done.notices
    assert done.outcome.reason == "Succeeded"


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
    tmp_path: Path, through_us: ThroughUs, alone: Alone
) -> None:
    program = tmp_path / "float32.py"
    program.write_text(COMPILED_LOOP.format(before=""))
    expected = alone(program, "Keras3")
    done = through_us(program, tmp_path, policy="mixed_float16")
    assert expected[-1] < 0.1 * expected[0]
    # The model's one layer computes in float32, so that nothing is rounded.
    assert done.losses == pytest.approx(expected, rel=1e-6)
    assert "they are not divided here" in done.notices["LossNotScaled"]
    trained = COMPILED_LOOP.format(before="model.fit(np.zeros((4, 4)), np.zeros((4, 1)), verbose=0)")
    assert "LossNotScaled" not in through_us(trained, tmp_path / "fit", policy="mixed_float16").notices
