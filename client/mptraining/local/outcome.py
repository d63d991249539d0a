"""How a local run ended, in words: pure functions from what was seen to the last lines a person reads."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from mptraining.display.summary import RunSummary, success
from mptraining_api import outcomes
from mptraining_api.events import Finished
from mptraining_api.outcomes import Budget


@dataclass(frozen=True, slots=True)
class Timeouts:
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
    now: float, *, interrupts: int, failed_at: float | None, told_at: float | None, timeouts: Timeouts
) -> signal.Signals | None:
    """The signal that the workers should have had by `now`: SIGTERM, SIGKILL or none. Times in seconds."""
    if interrupts > 1 or (told_at is not None and now - told_at >= timeouts.stop):
        return signal.SIGKILL
    if interrupts or (failed_at is not None and now - failed_at >= timeouts.peers):
        return signal.SIGTERM
    return None


@dataclass(frozen=True, slots=True)
class Words:
    """`said` for standard output, `error` (one line) for standard error."""

    said: tuple[str, ...]
    error: str | None = None


def ending(summary: RunSummary, end: GangEnd, verdict: Verdict, *, command: str, folder: str) -> Words:
    """`command` is what starts the same run again; `folder` is the run folder as the user may type it."""
    if verdict.exit_code == 0:
        return Words(success(summary.finished.get(0), folder))
    where = f"`{command}` goes on from step {summary.saved}" if summary.saved else f"`{command}` starts anew"
    if verdict.decided_by is None:
        killed = [each for each in end.ends if each.code == -signal.SIGKILL and each.told]
        late = f"; {_name(killed[0], many=len(end.ends) > 1)} did not stop in time and was killed" if killed else ""
        # The one step that matters is the saved one, which may be behind or ahead of the last that was shown.
        return Words((f"Stopped{late}. {where}.",))
    outcome, message = _cause(verdict.decided_by, summary.finished, many=len(end.ends) > 1)
    never = outcome.budget is Budget.NEVER_RETRY
    return Words((), f"{outcome.reason}: {_sentence(message)}" + ("" if never else f" {where}."))


def _cause(end: End, finished: Mapping[int, Finished], *, many: bool) -> tuple[outcomes.Outcome, str]:
    """The outcome that an end stands for, and what the worker said of it or what its exit code says."""
    name, told = _name(end, many=many), finished.get(end.worker)
    if told is not None and end.code == told.exit_code:
        return outcomes.by_reason(told.reason), f"{name}: {told.message}" if many else told.message
    if end.code == -signal.SIGKILL:
        return outcomes.by_exit_code(end.code), f"{name} was killed (SIGKILL), perhaps because memory ran out"
    if end.code < 0:
        return outcomes.by_exit_code(end.code), f"{name} was ended by {_signal_name(-end.code)}"
    outcome = outcomes.by_exit_code(end.code)
    return outcome, f"{name} left with exit code {end.code} ({outcome.meaning}); the lines above may say why"


def _name(end: End, *, many: bool) -> str:
    return f"worker {end.worker}" if many else "the trainer"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."
