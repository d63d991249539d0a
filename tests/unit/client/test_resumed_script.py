"""A script that was preempted and resumed: its first attempt is part of every view of the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mptraining.board.sources import folder_source
from mptraining.board.state import Board
from mptraining.comparison import compare
from mptraining.runs import load_run
from mptraining.runs.series import chart
from mptraining.tracking.tensorboard import export_tensorboard
from mptraining_api.events import Event, Finished, Progress, Started
from mptraining_api.outputs.scalars import Restart, ScalarSeries
from mptraining_api.run_folder import events_file
from mptraining_storage import storage

# (attempt, step, loss); the second attempt trains step 20 again.
RECORDED = ((1, 10, 0.4), (1, 20, 0.1), (2, 20, 0.3), (2, 30, 0.2))
EXPECTED = [(10, 0.4), (20, 0.3), (30, 0.2)]


def attempt(number: int, first_step: int) -> list[Event]:
    begin = 1000.0 * number
    about: dict[str, Any] = {"attempt": number, "incarnation": f"i-{number}", "worker": 0}
    started = Started(
        time=begin, strategy="None", precision="float32", keras="keras 3.15.1", tensorflow="2.21.0", devices=(),
        workers=1, replicas_in_sync=1, first_step=first_step, **about,
    )  # fmt: skip
    progress = [
        Progress(time=begin + step, step=step, epoch=step // 10, metrics={"loss": loss}, **about)
        for of, step, loss in RECORDED
        if of == number
    ]
    end = {"reason": "Preempted", "exit_code": 75, "message": ""}
    return [started, *progress, *([Finished(time=begin + 21, **end, **about)] if number == 1 else [])]


@pytest.fixture(params=[0, 10], ids=["unknown step", "known step"])
def events(request: pytest.FixtureRequest) -> Sequence[Event]:
    """Return the events of a script whose second Started knows, or does not know, where it resumes."""
    return [*attempt(1, 0), *attempt(2, request.param)]


@pytest.fixture
def folder(tmp_path: Path, events: Sequence[Event]) -> str:
    for number in (1, 2):
        lines = "".join(f"{event.to_json()}\n" for event in events if event.attempt == number)
        storage.write(str(tmp_path / "script" / events_file(number, f"i-{number}", 0, 0)), lines.encode())
    return str(tmp_path / "script")


def test_the_history_has_both_attempts(folder: str) -> None:
    history = load_run(folder).history
    assert history.series("loss") == EXPECTED
    assert history["loss"] == [0.4, 0.3, 0.2]
    assert (history.attempts, [point.seconds for point in history.points]) == (2, [10, 41, 51])


def test_the_comparison_draws_both_attempts(folder: str) -> None:
    (panel,) = compare(folder)._panels()
    assert panel.curves[0].points == tuple(EXPECTED)


def test_the_board_shows_both_attempts(folder: str) -> None:
    board = Board([folder_source(folder)])
    board.refresh()
    ((run, reader),) = board.readers().items()
    (row,) = board.runs()["runs"]
    assert (row["values"]["best:loss"], row["values"]["restarts"]) == (0.2, 1)
    (series,) = chart("loss", "step", {run: reader.curves()})["series"]
    assert list(zip(series["x"], series["y"], strict=True)) == EXPECTED
    # Of 51 seconds, those until step 20 of the first attempt came to nothing.
    assert (reader.curves().total_seconds, reader.curves().lost_seconds) == (51, (10, 0))


def test_tensorboard_shows_both_attempts(
    folder: str, tmp_path: Path, events: Sequence[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    # TensorBoard reads without TensorFlow, whose import takes seconds, if this module exists.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    export_tensorboard(folder, str(tmp_path / "exported"))
    reader = EventAccumulator(str(tmp_path / "exported" / "train"))
    reader.Reload()
    assert [(scalar.step, pytest.approx(scalar.value)) for scalar in reader.Scalars("loss")] == EXPECTED
    # The trainer's own scalars: the last restart voids what is behind step 19.
    series = ScalarSeries()
    restarts = [item.step for event in events for item in series.add(event) if isinstance(item, Restart)]
    assert restarts[-1] in (10, 19)
