"""The bench on real trainings, in separate processes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from parity.programs.program import Program
from parity.training.processes import Child

pytestmark = pytest.mark.training

ROOT = Path(__file__).parents[2]
TWO_EPOCHS = Program(rows=36, epochs=2)


@pytest.mark.parametrize("generation", ["Keras3", "Legacy"])
def test_a_child_trains_programs_and_tells_equal_from_different(generation: str, tmp_path: Path) -> None:
    plain = replace(TWO_EPOCHS, generation=generation)
    with Child(generation, tmp_path) as child:
        answer = child.attempt(plain)
        impossible = child.attempt(replace(plain, loss="no_such_loss"))
    assert [one["verdict"] for one in answer["compared"]] == ["equal", "equal"]
    assert answer["compared"][0]["weights"] == 0.0
    assert [one["verdict"] for one in impossible["compared"]] == ["no program"]


def test_a_training_that_is_wrong_is_seen(tmp_path: Path) -> None:
    """Gradients that are a thousandth too large, from a modified trainer."""
    doctored = f"""
import sys
from pathlib import Path
from parity.training.child import quiet
quiet("Keras3")
from parity.training import trainer_run
from parity.programs.program import Program
from parity.comparison.trial import attempt
from mptraining_trainer.keras_backend import Keras

trainer_run.prepare()
apply = Keras.apply_gradients
Keras.apply_gradients = lambda self, optimizer, gradients, variables: apply(
    self, optimizer, [1.001 * gradient for gradient in gradients], variables
)
tried = attempt(Program(rows=36, epochs=2), Path({str(tmp_path)!r}))
sys.exit(" ".join(one.what for one in tried.different))
"""
    done = subprocess.run(
        [sys.executable, "-c", doctored], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 1
    assert "weights differ by" in done.stderr


def test_the_command_reports_and_resumes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "parity", "--folder", str(tmp_path), "--program", TWO_EPOCHS.to_json()]
    first = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert first.returncode == 0, first.stdout + first.stderr
    figures = {found["name"]: found["value"] for found in map(json.loads, first.stdout.splitlines()[-5:])}
    assert (figures["parity.equal"], figures["parity.different"]) == (1, 0)
    kept = (tmp_path / "results.jsonl").read_text()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert again.stdout == first.stdout
    assert (tmp_path / "results.jsonl").read_text() == kept


@pytest.mark.parametrize("generation", ["Keras3", "Legacy"])
def test_named_programs_and_some_drawn_ones_train_as_in_keras(generation: str, tmp_path: Path) -> None:
    """The part of `make parity` that every `make test` runs: the cases of issue 14, of which two may be refused."""
    command = [sys.executable, "-m", "parity", "--folder", str(tmp_path), "--generation", generation]
    command += ["--programs", "2", "--processes", "1", "--shrink", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = {found["name"]: found["value"] for found in map(json.loads, done.stdout.splitlines()[-5:])}
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    named = [{one["verdict"] for one in each["compared"]} for each in results if "name" in each["program"]]
    assert len(named) == 17
    assert sum(verdicts == {"equal"} for verdicts in named) >= 15
    assert figures["parity.different"] == 0
