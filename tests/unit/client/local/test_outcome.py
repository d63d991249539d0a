"""The last lines of an interrupted run (the other outcomes are in test_local)."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from mptraining.display.summary import RunSummary
from mptraining.local.outcome import End, FinalText, GangEnd, final_text, verdict
from mptraining_api.events import Event, Finished, Progress, Saved, Started

COMMON: dict[str, Any] = {"time": 0.0, "attempt": 1, "incarnation": "x", "worker": 0}
STEP = Progress(step=80, total_steps=100, epoch=1, metrics={}, **COMMON)
SAVED = Saved(step=75, uri="x", bytes=1, seconds=0.1, **COMMON)
RESUMED = Started(
    strategy="Mirrored", precision="float32", keras="Keras3", tensorflow="2", devices=(), workers=1,
    replicas_in_sync=1, first_step=40, **COMMON,
)  # fmt: skip


@pytest.mark.parametrize(
    ("events", "code", "said"),
    [
        ([STEP, SAVED], 75, "Stopped by you. `mptj run x` resumes from step 75."),
        ([RESUMED, STEP], 75, "Stopped by you. `mptj run x` resumes from step 40."),
        ([], 75, "Stopped by you before training. `mptj run x` starts again."),
        ([STEP, SAVED], -9,
         "Stopped by you; the trainer did not stop in time and was killed. `mptj run x` resumes from step 75."),
    ],
)  # fmt: skip
def test_interrupted(events: list[Event], code: int, said: str) -> None:
    summary = RunSummary()
    for event in events:
        summary.add(0, event)
    end = GangEnd((End(0, code, signalled=True),), signal.SIGINT)
    assert final_text(summary, end, verdict(end), command="mptj run x", folder="runs/x") == FinalText((said,))


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("no such file", "InvalidData: no such file."),
        ("no such file. Mend it.", "InvalidData: no such file. Mend it."),
        ("no 'lable'. Did you mean 'label'?", "InvalidData: no 'lable'. Did you mean 'label'?"),
        ("oops!", "InvalidData: oops!"),
        ("it goes on and on…", "InvalidData: it goes on and on…"),
        ("no such key: 'x'", "InvalidData: no such key: 'x'."),
    ],
)
def test_the_last_line_ends_with_one_mark(message: str, said: str) -> None:
    summary = RunSummary()
    summary.add(0, Finished(reason="InvalidData", exit_code=2, message=message, **COMMON))
    end = GangEnd((End(0, 2, signalled=False),), None)
    assert final_text(summary, end, verdict(end), command="mptj run x", folder="runs/x") == FinalText((), said)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({}, []),
        ({"input_bound_percent": 0.4}, ["  data        waited for data 0% of the time"]),
        ({"first_record_seconds": 0.84, "input_bound_percent": 12.3},
         ["  data        first batch after 0.8 s, waited for data 12% of the time"]),
    ],
)  # fmt: skip
def test_the_time_for_records(figures: dict[str, float], said: list[str]) -> None:
    summary = RunSummary()
    summary.add(0, Finished(reason="Succeeded", exit_code=0, message="", step=8, **figures, **COMMON))
    end = GangEnd((End(0, 0, signalled=False),), None)
    words = final_text(summary, end, verdict(end), command="mptj run x", folder="runs/x").output
    assert [line for line in words if line.startswith("  data")] == said


@pytest.mark.parametrize(("steps", "said"), [(1, "Succeeded: 1 step in 4.0 s"), (2, "Succeeded: 2 steps in 4.0 s")])
def test_steps_are_counted_as_people_count(steps: int, said: str) -> None:
    summary = RunSummary()
    summary.add(0, Finished(reason="Succeeded", exit_code=0, message="", step=steps, seconds=4.0, **COMMON))
    end = GangEnd((End(0, 0, signalled=False),), None)
    assert final_text(summary, end, verdict(end), command="mptj run x", folder="runs/x").output[0] == said


@pytest.mark.parametrize(
    ("recoveries", "said"),
    [
        (0, []),
        (1, ["  numbers     rolled back 1 time, ended under float32"]),
        (2, ["  numbers     rolled back 2 times, ended under float32"]),
    ],
)
def test_recoveries_are_reported_at_the_end(recoveries: int, said: list[str]) -> None:
    summary = RunSummary()
    figures: dict[str, Any] = {"recoveries": recoveries, "precision": "float32"}
    summary.add(0, Finished(reason="Succeeded", exit_code=0, message="", step=8, **figures, **COMMON))
    end = GangEnd((End(0, 0, signalled=False),), None)
    words = final_text(summary, end, verdict(end), command="mptj run x", folder="runs/x")
    assert [line for line in words.output if line.startswith("  numbers")] == said
