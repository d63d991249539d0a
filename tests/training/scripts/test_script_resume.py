"""Preempted third-party programs: the next attempt resumes, or starts again and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mptraining_api import events
from tests.left_out import first_of
from tests.training.runs import same
from tests.training.script_runs import PROGRAMS, InProcess, ThroughUs

# Warnings of third-party programs are their own.
pytestmark = pytest.mark.filterwarnings("ignore")


def taken_after(folder: Path, epochs: int) -> InProcess:
    return InProcess(lambda: len(list((folder / "run" / "checkpoints").glob("*/state.json"))) >= epochs)


@pytest.mark.parametrize(
    ("name", "replicas", "generation"),
    first_of(("own_train_step", 2, "Keras3"), ("vae", 1, "Keras3"), ("legacy_own_train_step", 2, "Legacy")),
)
def test_a_preempted_program_ends_as_an_undisturbed_one(
    name: str, replicas: int, generation: str, tmp_path: Path, through_us: ThroughUs
) -> None:
    program = PROGRAMS / f"{name}.py"
    settings: dict[str, Any] = {"replicas": replicas, "generation": generation}
    whole = through_us(program, tmp_path / "whole", **settings)
    parts = tmp_path / "parts"
    taken = through_us(program, parts, preemption=taken_after(parts, 1), **settings)
    assert taken.outcome.reason == "Preempted"
    rest = through_us(program, parts, attempt=2, **settings)
    assert (whole.outcome.reason, rest.outcome.reason) == ("Succeeded", "Succeeded"), rest.message
    assert "Resumed" in rest.notices, rest.notices
    assert rest.losses == pytest.approx(whole.losses, rel=1e-5)
    assert same(rest, whole, 1e-5), "replicas that no longer share their gradients end elsewhere"


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


def test_a_model_that_cannot_be_restored_starts_again_with_a_warning(tmp_path: Path, through_us: ThroughUs) -> None:
    """Its layers have no variables before the first step, and it has no call that creates them."""
    text = UNBUILT.format(seed=1, units=2)
    taken = through_us(text, tmp_path, preemption=taken_after(tmp_path, 1))
    assert taken.outcome.reason == "Preempted"
    rest = through_us(text, tmp_path, attempt=2)
    assert rest.outcome.reason == "Succeeded", rest.message
    assert len(rest.losses) == 3
    assert {"NotBuilt", "NotResumable"} <= rest.notices.keys()
    # Another model in the same run folder: it trains from the start.
    other = (PROGRAMS / "own_train_step.py").read_text()
    done = through_us(other, tmp_path, attempt=3)
    assert (done.outcome.reason, len(done.losses)) == ("Succeeded", 4)
    assert "another one than that of the checkpoint" in done.notices["NotRestored"]
    assert max(event.step for event in done.all(events.Saved)) > max(event.step for event in rest.all(events.Saved))
