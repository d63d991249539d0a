"""Scripts with KerasTuner: a fit after the search, two searches, a directory elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from mptraining_api import events
from tests.training.script_runs import InProcess, ThroughUs
from tests.training.tuner_script import SEEDED, SUMMARY, tuner_script

pytest.importorskip("keras_tuner", reason="keras-tuner is not installed")
# Warnings of third-party programs are their own.
pytestmark = pytest.mark.filterwarnings("ignore")


RETRAIN = """
best = tuner.get_best_models()[0]
history = best.fit(x, y, epochs=3, batch_size=16)
print("LOSSES", [float(value) for value in history.history["loss"]])
"""


def test_a_fit_after_the_search_resumes_by_epoch(tmp_path: Path, through_us: ThroughUs) -> None:
    text = SEEDED + tuner_script(trials=2) + SUMMARY + RETRAIN
    whole = through_us(text, tmp_path / "whole")
    parts = tmp_path / "parts"
    saved = InProcess(lambda: bool(list((parts / "run" / "checkpoints").glob("*/state.json"))))
    taken = through_us(text, parts, preemption=saved)
    assert taken.outcome.reason == "Preempted", taken.message
    rest = through_us(text, parts, attempt=2)
    assert rest.outcome.reason == "Succeeded", rest.message
    assert "resuming after epoch 1" in rest.notices["Resumed"]
    assert not [each for each in rest.all(events.Progress) if each.trial], "no trial runs twice"
    assert rest.losses == pytest.approx(whole.losses, rel=1e-5)


TWO = """
import keras, keras_tuner, numpy as np
x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")

def build(hp):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(hp.Int("units", 1, 9)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

for seed, most in ((1, 2), (2, 3)):
    tuner = keras_tuner.RandomSearch(build, "loss", most, seed=seed, overwrite=True, directory="d", project_name="p")
    tuner.search(x, y, verbose=0)
    print("FOUND", sorted(str(trial.hyperparameters.values) for trial in tuner.oracle.trials.values()))
"""


def test_each_of_two_searches_in_one_directory_keeps_its_state(tmp_path: Path, through_us: ThroughUs) -> None:
    first = through_us(TWO, tmp_path)
    again = through_us(TWO, tmp_path, attempt=2)
    assert (first.outcome.reason, again.outcome.reason) == ("Succeeded", "Succeeded"), again.message
    assert [line for line in first.printed.splitlines() if line.startswith("FOUND")] == [
        line for line in again.printed.splitlines() if line.startswith("FOUND")
    ]
    assert len(list((tmp_path / "run" / "tuner").glob("d*/p/trial_*"))) == 5
    assert not again.all(events.Progress), "nothing is left to train"
