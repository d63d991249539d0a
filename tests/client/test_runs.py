"""A run folder as a value, whole, unfinished or damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mptraining.runs import history, load_run
from mptraining_api.events import Event, Recovered
from mptraining_api.problems import InvalidData
from mptraining_api.run_folder import events_file

RunIn = Callable[..., Path]
AttemptEvents = Callable[..., list[Event]]


def test_a_whole_run(run_in: RunIn) -> None:
    run = load_run(str(run_in(steps=20)))
    assert run.succeeded
    assert run.job
    assert run.job.name == "flowers"
    assert [point.step for point in run.history.points] == list(range(1, 21))
    assert run.metrics == {"loss": 0.5, "val_loss": 0.6, "val_accuracy": 0.8}
    assert run.gaps == ()


def test_an_unfinished_run_is_read_from_its_events(run_in: RunIn) -> None:
    run = load_run(str(run_in(steps=20, done=False)))
    assert run.result is None
    assert run.metrics == {"loss": 1 / 20, "val_loss": 1.1 / 20, "val_accuracy": 0.8}
    assert run.precision == "float32"
    assert run.history.seconds == 20


def test_a_resumed_run_is_one_curve_without_the_pause(attempt_events: AttemptEvents) -> None:
    first = attempt_events(steps=8)
    second = attempt_events(steps=10, first=5, attempt=2, begin=5000.0)
    summary = history([first, second])
    assert [(point.step, point.seconds) for point in summary.points][3:7] == [(4, 4), (5, 5), (6, 9), (7, 10)]
    assert summary.attempts == 2
    assert summary.seconds == 13


def test_a_recovery_forgets_what_was_trained_again(attempt_events: AttemptEvents) -> None:
    back = Recovered(
        time=1009,
        from_step=8,
        to_step=3,
        precision="float32",
        message="",
        attempt=1,
        incarnation="a",
        worker=0,
    )
    assert [point.step for point in history([[*attempt_events(steps=8), back]]).points] == [1, 2, 3]


def test_damage_is_named_and_the_rest_is_shown(run_in: RunIn) -> None:
    folder = run_in(steps=10)
    (folder / "result.json").write_text("{half")
    events = folder / events_file(1, "a-b", 0, 0)
    events.write_text(events.read_text()[:-40])
    run = load_run(str(folder))
    assert run.gaps == (f"{folder}/result.json cannot be read",)
    assert len(run.history.points) == 9
    (folder / "job.json").unlink()
    assert f"{folder}/job.json is missing" in load_run(str(folder)).gaps


def test_other_workers_events_are_not_the_runs(run_in: RunIn) -> None:
    folder = run_in(steps=10)
    chief = folder / events_file(1, "a-b", 0, 0)
    (folder / events_file(1, "a-b", 1, 0)).write_text(chief.read_text())
    assert len(load_run(str(folder)).history.points) == 10


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_no_run_at_all_is_a_problem_that_names_the_missing_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidData, match=rf"{name}: holds no run: there is no job\.json in it"):
        load_run(str(tmp_path / name))
