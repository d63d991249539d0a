"""The moment to stop the workers, the outcome of their ends together, and the last lines."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from mptraining.display.summary import RunSummary
from mptraining.local.outcome import End, GangEnd, Timeouts, due_signal, final_text, verdict
from mptraining_api.events import Event, Finished, Progress, Saved, Started

COMMON: dict[str, Any] = {"time": 0.0, "attempt": 1, "incarnation": "x", "worker": 0}
STEP = Progress(step=80, total_steps=100, epoch=1, metrics={}, **COMMON)
SAVED = Saved(step=75, uri="x", bytes=1, seconds=0.1, **COMMON)
RESUMED = Started(
    strategy="Mirrored", precision="float32", keras="Keras3", tensorflow="2", devices=(), workers=1,
    replicas_in_sync=1, first_step=40, **COMMON,
)  # fmt: skip


def text_of(*events: Event, code: int, interrupted: int | None = None) -> tuple[tuple[str, ...], str | None]:
    summary = RunSummary()
    for event in events:
        summary.add(0, event)
    end = GangEnd((End(0, code, signalled=interrupted is not None),), interrupted)
    return final_text(summary, end, verdict(end), command="mptj run x", folder="runs/x")


def succeeded(**figures: Any) -> tuple[str, ...]:
    end = {"reason": "Succeeded", "exit_code": 0, "message": "", "step": 8}
    return text_of(Finished(**(end | figures | COMMON)), code=0)[0]


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
    assert text_of(*events, code=code, interrupted=signal.SIGINT) == ((said,), None)


@pytest.mark.parametrize(
    ("message", "mark"),
    [("no such file", "."), ("no 'lable'. Did you mean 'label'?", ""), ("oops!", ""), ("no such key: 'x'", ".")],
)
def test_the_last_line_ends_with_one_mark(message: str, mark: str) -> None:
    end = Finished(reason="InvalidData", exit_code=2, message=message, **COMMON)
    assert text_of(end, code=2) == ((), f"InvalidData: {message}{mark}")


def test_the_field_of_a_message_has_the_users_name() -> None:
    summary, end = RunSummary(), GangEnd((End(0, 2, signalled=False),), None)
    about = {"reason": "InvalidData", "exit_code": 2, "message": "spec.data.predict: no spec.data.predict"}
    summary.add(0, Finished(**about, field="spec.data.predict", **COMMON))
    said = final_text(summary, end, verdict(end), command="", folder="", named=lambda _: "RECORDS")[1]
    assert said == "InvalidData: RECORDS: no spec.data.predict."


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


@pytest.mark.parametrize(
    ("ends", "interrupted", "exit_code", "decided_by"),
    [
        pytest.param([(0, 0, False), (1, 0, False)], None, 0, None, id="all done"),
        pytest.param([(1, 2, False), (0, 76, False)], None, 2, 1, id="the first failure decides"),
        pytest.param([(1, 76, False), (0, 1, False)], None, 1, 0, id="a lost peer decides nothing, even first"),
        pytest.param([(1, 76, False), (0, -9, True)], None, 76, 1, id="what we ended ourselves decides nothing"),
        pytest.param([(0, -9, False)], None, 137, 0, id="a killed worker is 128 and the signal, as in a shell"),
        pytest.param([(0, 75, True)], signal.SIGINT, 130, None, id="Ctrl-C"),
        pytest.param([(0, 75, True)], signal.SIGTERM, 143, None, id="SIGTERM"),
        pytest.param([(0, 0, True)], signal.SIGINT, 0, None, id="Ctrl-C when the work was done already"),
        pytest.param([(0, 1, False), (1, 75, True)], signal.SIGINT, 130, 0, id="a failure, then Ctrl-C"),
    ],
)
def test_verdict(
    ends: list[tuple[int, int, bool]], interrupted: int | None, exit_code: int, decided_by: int | None
) -> None:
    decided = verdict(GangEnd(tuple(End(*end) for end in ends), interrupted))
    assert decided.exit_code == exit_code
    assert (decided.decided_by and decided.decided_by.worker) == decided_by


@pytest.mark.parametrize(
    ("now", "interrupts", "failed_at", "told_at", "expected"),
    [
        pytest.param(100.0, 0, None, None, None, id="all is well"),
        pytest.param(14.9, 0, 0.0, None, None, id="a peer failed: the others leave by themselves"),
        pytest.param(15.0, 0, 0.0, None, signal.SIGTERM, id="or are told to"),
        pytest.param(35.0, 0, 0.0, 15.0, signal.SIGKILL, id="and ended"),
        pytest.param(1.0, 1, None, None, signal.SIGTERM, id="Ctrl-C"),
        pytest.param(19.0, 1, None, 0.0, signal.SIGTERM, id="time for a last checkpoint"),
        pytest.param(20.0, 1, None, 0.0, signal.SIGKILL, id="which is over"),
        pytest.param(2.0, 2, None, 0.0, signal.SIGKILL, id="Ctrl-C twice"),
    ],
)
def test_due(now: float, interrupts: int, failed_at: float | None, told_at: float | None, expected: int | None) -> None:
    given: dict[str, Any] = {"interrupts": interrupts, "failed_at": failed_at, "signalled_at": told_at}
    assert due_signal(now, **given, timeouts=Timeouts(stop=20, peers=15)) == expected
