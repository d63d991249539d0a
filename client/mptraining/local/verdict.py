"""When a run's workers are told to leave, and what their ends mean together: pure functions over `gang`'s
facts.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from mptraining_api import outcomes


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: `stop` from SIGTERM to SIGKILL, `peers` from the first failure until the others are told to
    stop.
    """

    stop: float = 20.0
    peers: float = 15.0


@dataclass(frozen=True, slots=True)
class End:
    """How a worker left: its exit code, or the negative number of a signal. `told`: we had asked it to."""

    worker: int
    code: int
    told: bool


@dataclass(frozen=True, slots=True)
class GangEnd:
    """All ends, in their order, and the first signal that this program got meanwhile."""

    ends: tuple[End, ...]
    interrupted: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The exit code for the shell, and the worker that decided it (None: nobody failed, or it was
    interrupted).
    """

    exit_code: int
    decided_by: End | None


def verdict(end: GangEnd) -> Verdict:
    """What the run as a whole leaves with.

    The first failure decides; 76 (a peer was lost) and whatever follows our own SIGTERM decide nothing. A
    signal counts as a shell counts it: 128 and its number, so 130 after Ctrl-C unless every worker was done
    by then.
    """
    failed = [each for each in end.ends if each.code != 0]
    if end.interrupted is not None and failed:
        own = [each for each in failed if not each.told and each.code != outcomes.PEER_LOST.exit_code]
        return Verdict(128 + end.interrupted, own[0] if own else None)
    if not failed:
        return Verdict(0, None)
    first = min(failed, key=lambda each: (each.told, each.code == outcomes.PEER_LOST.exit_code))
    return Verdict(first.code if first.code > 0 else 128 - first.code, first)


def due(
    now: float, *, interrupts: int, failed_at: float | None, told_at: float | None, patience: Patience
) -> signal.Signals | None:
    """The signal that the workers should have had by `now`: SIGTERM, SIGKILL or none. Times in seconds."""
    if interrupts > 1 or (told_at is not None and now - told_at >= patience.stop):
        return signal.SIGKILL
    if interrupts or (failed_at is not None and now - failed_at >= patience.peers):
        return signal.SIGTERM
    return None
