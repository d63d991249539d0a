"""Outcome of a local run: exit code, signals that are due, and the final lines for the user. Pure functions."""

from __future__ import annotations

import signal
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace

from mptraining.display.summary import RunSummary, success_lines
from mptraining_api import outcomes
from mptraining_api.events import Finished
from mptraining_api.outcomes import Budget
from mptraining_api.problems import FieldPlace, Place


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds: `stop` from SIGTERM to SIGKILL, `peers` from the first failure to the SIGTERM of the other workers."""

    stop: float = 20.0
    peers: float = 15.0


# Seconds from SIGTERM to SIGKILL while TensorFlow starts: there is nothing to save, and a worker cannot listen yet.
STOP_BEFORE_TRAINING = 0.3


@dataclass(frozen=True, slots=True)
class End:
    """The end of a worker process: exit code, or negative signal number.

    `signalled`: this program had sent it a signal.
    """

    worker: int
    code: int
    signalled: bool


@dataclass(frozen=True, slots=True)
class GangEnd:
    """The ends of all workers in order of time, and the first signal that this program received."""

    ends: tuple[End, ...]
    interrupted: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The exit code for the shell, and the worker that decided it; None if none failed or the run was interrupted."""

    exit_code: int
    decided_by: End | None


def verdict(end: GangEnd) -> Verdict:
    """Return the exit code of the run, and the worker that decided it.

    The first failure decides. Exit code 76 (a peer was lost) and the exit codes of workers that this program had
    stopped count only if there is no other. A signal is 128 plus its number, as in a shell: 130 after Ctrl-C, unless
    every worker had succeeded.
    """
    failed = [worker for worker in end.ends if worker.code != 0]
    if end.interrupted is not None and failed:
        causes = [worker for worker in failed if not worker.signalled and worker.code != outcomes.PEER_LOST.exit_code]
        return Verdict(128 + end.interrupted, causes[0] if causes else None)
    if not failed:
        return Verdict(0, None)
    first = min(failed, key=lambda worker: (worker.signalled, worker.code == outcomes.PEER_LOST.exit_code))
    return Verdict(first.code if first.code > 0 else 128 - first.code, first)


def with_missing_reports(end: GangEnd, reported: Container[int]) -> GangEnd:
    """Return the ends with exit code 1 for each worker that exited with 0 before it reported that it had finished.

    A program that calls `os._exit(0)` ends the trainer too, without a model.
    """
    code = outcomes.PROGRAM_FAILED.exit_code
    return replace(
        end,
        ends=tuple(
            worker if worker.code or worker.worker in reported else replace(worker, code=code) for worker in end.ends
        ),
    )


def due_signal(
    now: float, *, interrupts: int, failed_at: float | None, signalled_at: float | None, timeouts: Timeouts
) -> signal.Signals | None:
    """Return the signal that is due at `now`: SIGTERM, SIGKILL or None. Times in seconds."""
    if interrupts > 1 or (signalled_at is not None and now - signalled_at >= timeouts.stop):
        return signal.SIGKILL
    if interrupts or (failed_at is not None and now - failed_at >= timeouts.peers):
        return signal.SIGTERM
    return None


def final_text(
    summary: RunSummary,
    end: GangEnd,
    verdict: Verdict,
    *,
    command: str,
    folder: str,
    named: Callable[[Place], str | Place] = lambda location: location,
) -> tuple[tuple[str, ...], str | None]:
    """Return the final lines of a run for standard output, and the line for standard error, if there is one.

    `command` starts the same run again; `folder` is the run folder as the user may type it; `named` is the user's name
    of a field.
    """
    if verdict.exit_code == 0:
        return success_lines(summary.finished.get(0), folder, predicts=summary.predicts), None
    where = f"`{command}` resumes from step {summary.saved}" if summary.saved else f"`{command}` starts again"
    if verdict.decided_by is None:
        killed = [worker for worker in end.ends if worker.code == -signal.SIGKILL and worker.signalled]
        late = f"; {_name(killed[0], many=len(end.ends) > 1)} did not stop in time and was killed" if killed else ""
        # The next run resumes from the saved step, which may be before or after the last displayed one.
        by = " by you" if end.interrupted == signal.SIGINT else ""
        if not summary.started:
            return (f"Stopped{by} before training. `{command}` starts again.",), None
        return (f"Stopped{by}{late}. {where}.",), None
    outcome, message = _cause(verdict.decided_by, summary.finished, many=len(end.ends) > 1, named=named)
    never = outcome.budget is Budget.NEVER_RETRY
    return (), f"{outcome.reason}: {_sentence(message)}" + ("" if never else f" {where}.")


def _cause(
    end: End, finished: Mapping[int, Finished], *, many: bool, named: Callable[[Place], str | Place]
) -> tuple[outcomes.Outcome, str]:
    """Return the outcome of an end, and its message: the worker's own, or one for the exit code."""
    name, report = _name(end, many=many), finished.get(end.worker)
    if report is not None and end.code == report.exit_code:
        message = report.message
        if report.field is not None:
            message = f"{named(FieldPlace(report.field))}{message.removeprefix(report.field)}"
        return outcomes.by_reason(report.reason), f"{name}: {message}" if many else message
    if end.code == -signal.SIGKILL:
        return outcomes.by_exit_code(end.code), f"{name} was killed (SIGKILL), perhaps because memory ran out"
    if end.code < 0:
        return outcomes.by_exit_code(end.code), f"{name} was ended by {_signal_name(-end.code)}"
    outcome = outcomes.by_exit_code(end.code)
    if report is None and outcome is outcomes.PROGRAM_FAILED:
        return outcome, f"{name} exited before it could report a result, as by os._exit; the lines above may say why"
    return outcome, f"{name} exited with code {end.code} ({outcome.meaning}); the lines above may say why"


def _name(end: End, *, many: bool) -> str:
    return f"worker {end.worker}" if many else "the trainer"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."
