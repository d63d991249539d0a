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


def text_of(*events: Event, code: int, interrupted: int | None = None) -> FinalText:
    summary = RunSummary()
    for event in events:
        summary.add(0, event)
    end = GangEnd((End(0, code, signalled=interrupted is not None),), interrupted)
    return final_text(summary, end, verdict(end), command="mptj run x", folder="runs/x")


def succeeded(**figures: Any) -> tuple[str, ...]:
    end = {"reason": "Succeeded", "exit_code": 0, "message": "", "step": 8}
    return text_of(Finished(**(end | figures | COMMON)), code=0).output


@pytest.mark.parametrize(
    ("events", "code", "said"),
    [
        ([STEP, SAVED], 75, "Stopped by you. `mptj run x` resumes from step 75."),
        ([RESUMED, STEP], 75, "Stopped by you. `mptj run x` resumes from step 40."),
        ([], 75, "Stopped by you before training. `mptj run x` starts again."),
        ([STEP, SAVED], -9, "Stopped by you; the trainer did not stop in time and was killed. "
         "`mptj run x` resumes from step 75."),
    ],
)  # fmt: skip
def test_interrupted(events: list[Event], code: int, said: str) -> None:
    assert text_of(*events, code=code, interrupted=signal.SIGINT) == FinalText((said,))


@pytest.mark.parametrize(
    ("message", "mark"),
    [("no such file", "."), ("no 'lable'. Did you mean 'label'?", ""), ("oops!", ""), ("no such key: 'x'", ".")],
)
def test_the_last_line_ends_with_one_mark(message: str, mark: str) -> None:
    end = Finished(reason="InvalidData", exit_code=2, message=message, **COMMON)
    assert text_of(end, code=2) == FinalText((), f"InvalidData: {message}{mark}")


@pytest.mark.parametrize(
    ("figures", "beginning", "said"),
    [
        ({}, "  data", []),
        ({"input_bound_percent": 0.4}, "  data", ["  data        waited for data 0% of the time"]),
        ({"first_record_seconds": 0.84, "input_bound_percent": 12.3}, "  data",
         ["  data        first batch after 0.8 s, waited for data 12% of the time"]),
        ({"step": 1, "seconds": 4.0}, "Succeeded", ["Succeeded: 1 step in 4.0 s"]),
        ({"step": 2, "seconds": 4.0}, "Succeeded", ["Succeeded: 2 steps in 4.0 s"]),
        ({"recoveries": 0, "precision": "float32"}, "  numbers", []),
        ({"recoveries": 1, "precision": "float32"}, "  numbers",
         ["  numbers     rolled back 1 time, ended under float32"]),
        ({"recoveries": 2, "precision": "float32"}, "  numbers",
         ["  numbers     rolled back 2 times, ended under float32"]),
    ],
)  # fmt: skip
def test_lines_of_a_success(figures: dict[str, Any], beginning: str, said: list[str]) -> None:
    assert [line for line in succeeded(**figures) if line.startswith(beginning)] == said
