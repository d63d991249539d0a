"""The moment to stop the workers, and the outcome of their ends together."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from mptraining.local.outcome import End, GangEnd, Timeouts, due_signal, verdict


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
    decided = verdict(GangEnd(tuple(End(*each) for each in ends), interrupted))
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
