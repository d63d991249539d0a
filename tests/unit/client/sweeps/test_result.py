"""`mptraining.sweep`: what it accepts, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import mptraining
from mptraining.local.runner import Machine
from mptraining.sweeps import result, sweep_file
from mptraining.sweeps.display import SweepDisplay
from mptraining_api.problems import InvalidSpec, Problem
from mptraining_api.resolve.document_problems import DocumentProblems
from mptraining_api.resolve.resolve import ClusterSettings

JobFile = Callable[..., Path]
RATE = "training.optimizer.config.learning_rate"


@pytest.fixture
def job(job_file: JobFile, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The mapping of a job whose records are in the current folder."""
    path = job_file()
    monkeypatch.chdir(path.parent)
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    found["spec"]["training"]["optimizer"] = {"className": "Adam"}
    return found


def test_a_search_over_one_job(
    job: dict[str, Any], trainer: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    def search(trials: int) -> mptraining.Sweep:
        return mptraining.sweep(
            job,
            parameters={RATE: {"logUniform": {"low": 1e-4, "high": 1e-1}}, "training.batchSize.global": [32, 64]},
            objective="val_accuracy",
            seed=3,
            trials=trials,
            command=trainer,
            display=SweepDisplay(),
        )

    found = search(2)
    assert found.name == "flowers-sweep"
    assert len(found.trials) == 2
    assert found.best.objective == max(trial.objective or 0.0 for trial in found.trials)
    assert set(found.best.parameters) == {RATE, "training.batchSize.global"}
    assert repr(found).startswith("<Sweep flowers-sweep: Succeeded, 2 of 2 trials; best val_accuracy ")
    assert "<svg" in found._repr_html_()
    assert found.run().metrics["val_accuracy"] == pytest.approx(found.best.objective, rel=1e-5)
    best = found.job()
    assert best["spec"]["training"]["optimizer"]["config"]["learning_rate"] == found.best.parameters[RATE]
    assert best["metadata"]["name"] == "flowers-sweep-best"
    assert len(search(3).trials) == 3, "the same call with more trials continues"
    assert "continues: flowers-sweep" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"objective": "loss"}, "^parameters=…: missing"),
        ({"parameters": 3, "objective": "loss"}, "^parameters=…: 3; expected a mapping"),
        ({"parameters": {RATE: 3}, "objective": "loss"}, "^parameters=…: 3 for training"),
        ({"parameters": {RATE: [0.1]}}, "^objective=…: missing"),
        ({"parameters": {RATE: [0.1]}, "objective": "vibe"}, "^direction=…: missing; 'vibe' does not tell it"),
        ({"parameters": {RATE: "0.1"}, "objective": "loss"}, r"'0\.1' for training\.optimizer"),
        ({"parameters": {"training.optimzer.config": [1]}, "objective": "loss"}, "optimzer"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(arguments: dict[str, Any], found: str, job: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=found):
        mptraining.sweep(job, command=("false", ""), **arguments)
    assert not Path("runs").exists()


def test_a_job_is_checked_for_this_machine_like_a_file(job: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def refuse(document: object, settings: object) -> DocumentProblems:
        seen.append(settings)
        return DocumentProblems((InvalidSpec("spec", "refused"),))

    job["spec"]["accelerator"] = {"type": "t4"}
    monkeypatch.setattr(result, "this_machine", lambda: Machine(gpu=False, tpu=False))
    monkeypatch.setattr(sweep_file, "sweep_problems", refuse)
    with pytest.raises(Problem, match="refused"):
        mptraining.sweep(job, parameters={RATE: [0.1]}, objective="val_accuracy")
    assert seen == [ClusterSettings(cpu_fallback=True)]


def test_a_file_has_its_own_search(sweep_file: Callable[..., Path]) -> None:
    with pytest.raises(InvalidSpec, match=r"^trials=…: given beside a sweep's file"):
        mptraining.sweep(sweep_file(), trials=3)


def test_a_job_file_takes_the_arguments_of_a_search(job_file: JobFile) -> None:
    with pytest.raises(InvalidSpec, match=r"^parameters=…: missing"):
        mptraining.sweep(job_file())
    with pytest.raises(InvalidSpec, match=r"spec\.parameters\[0\].*optimzer"):
        mptraining.sweep(str(job_file()), parameters={"training.optimzer.config": [1]}, objective="loss")
