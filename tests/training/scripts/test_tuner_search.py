"""Scripts with KerasTuner, unmodified: their state in the run folder, resuming, and the model of the best trial."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mptraining_api import events
from tests.training.script_runs import InProcess, ScriptRun, ThroughUs
from tests.training.tuner_script import SEEDED, SUMMARY, tuner_script

pytest.importorskip("keras_tuner", reason="keras-tuner is not installed")
# Warnings of third-party programs are their own.
pytestmark = pytest.mark.filterwarnings("ignore")


COUNTED = 'print("BEFORE", len(tuner.oracle.trials))\n'
SEARCH = SEEDED + tuner_script(trials=4, before=COUNTED) + SUMMARY


def scores(done: ScriptRun) -> list[float]:
    (line,) = [line for line in done.printed.splitlines() if line.startswith("SCORES")]
    return [float(value) for value in json.loads(line.removeprefix("SCORES "))]


def trials(folder: Path) -> dict[str, dict[str, object]]:
    """Return the state of each trial that KerasTuner stored in the run folder."""
    project = folder / "run" / "tuner" / "my_dir" / "hello"
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(project.glob("trial_*/trial.json"))}


def preempted_in(folder: Path, trial: int) -> InProcess:
    """Return a preemption that comes while this trial trains, counted from 1."""
    marker = folder / "run" / "tuner" / "my_dir" / "hello" / f"trial_{trial - 1}" / "checkpoint.weights.h5"
    return InProcess(marker.exists)


_whole: list[ScriptRun] = []


@pytest.fixture
def whole(tmp_path_factory: pytest.TempPathFactory, through_us: ThroughUs) -> ScriptRun:
    """SEARCH without an interruption, which trains once for all tests."""
    if not _whole:
        _whole.append(through_us(SEARCH, tmp_path_factory.mktemp("whole")))
    return _whole[0]


def test_a_search_reports_its_trials_and_exports_the_best_model(whole: ScriptRun) -> None:
    done, folder = whole, Path(whole.folder).parent
    assert done.outcome.reason == "Succeeded", done.message
    progress = done.all(events.Progress)
    assert [(each.trial, each.trials) for each in progress if each.epoch == 2] == [(n, 4) for n in (1, 2, 3, 4)]
    assert [each.step for each in progress] == sorted(each.step for each in progress)
    assert not (folder / "source" / "my_dir").exists(), "the script's folder may be read-only or shared"
    assert not list((folder / "run" / "checkpoints").glob("*/state.json")), "KerasTuner keeps the weights of trials"
    best = min(trials(folder).values(), key=lambda trial: float(str(trial["score"])))
    assert done.result.metrics["val_loss"] == pytest.approx(best["score"])
    values = best["hyperparameters"]["values"]  # type: ignore[index]
    assert done.weights()[0].shape == (4, values["units"])


def test_a_preempted_search_continues_with_the_interrupted_trial(
    whole: ScriptRun, tmp_path: Path, through_us: ThroughUs
) -> None:
    parts = tmp_path / "parts"
    taken = through_us(SEARCH, parts, preemption=preempted_in(parts, 3))
    assert taken.outcome.reason == "Preempted", taken.message
    ended = trials(parts)
    rest = through_us(SEARCH, parts, attempt=2)
    assert rest.outcome.reason == "Succeeded", rest.message
    assert "BEFORE 3" in rest.printed, "overwrite=True does not delete what this run has stored"
    assert {each.trial for each in rest.all(events.Progress)} == {3, 4}
    after = trials(parts)
    assert [after[name] for name in ("trial_0", "trial_1")] == [ended[name] for name in ("trial_0", "trial_1")]
    chosen = [trial["hyperparameters"] for trial in trials(Path(whole.folder).parent).values()]
    assert [each["hyperparameters"] for each in after.values()] == chosen, "the oracle proposes as without an end"
    assert len(scores(rest)) == len(scores(whole)) == 4
    assert rest.all(events.Progress)[0].step > max(each.step for each in taken.all(events.Progress) if each.trial == 2)
