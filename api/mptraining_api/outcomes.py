"""Outcomes of a process, an attempt or a job: exit code, retry budget and condition reason.

The trainer exits with the outcome's exit code; the operator reads the code, charges the budget and writes the reason
into the conditions. Only the operator detects the outcomes in `OPERATOR_OUTCOMES`; no process exits with their code.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class Budget(StrEnum):
    """The retry counter that a failed attempt is charged to."""

    NONE = "None"
    BACKOFF_LIMIT = "backoffLimit"
    INFRASTRUCTURE_RETRIES = "infrastructureRetries"
    NEVER_RETRY = "NeverRetry"
    UNDECIDED = "Undecided"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One outcome. `exit_code` is that of the process; `reason` is the CamelCase reason of a condition."""

    reason: str
    exit_code: int
    budget: Budget
    meaning: str


SUCCEEDED = Outcome("Succeeded", 0, Budget.NONE, "the job has done all its work")
PROGRAM_FAILED = Outcome("ProgramFailed", 1, Budget.BACKOFF_LIMIT, "the program raised an error")
# A retry fills it again, unless somebody enlarges it: the same few tries as for a program that fails.
STORAGE_FULL = Outcome("StorageFull", 1, Budget.BACKOFF_LIMIT, "a disk that the job writes to is full")
INVALID_SPEC = Outcome("InvalidSpec", 2, Budget.NEVER_RETRY, "the job can never work as it is written")
INVALID_DATA = Outcome("InvalidData", 2, Budget.NEVER_RETRY, "the records are missing or unreadable")
INVALID_PROGRAM = Outcome("InvalidProgram", 2, Budget.NEVER_RETRY, "the program cannot be loaded or trained")
RESUME_REFUSED = Outcome("ResumeRefused", 2, Budget.NEVER_RETRY, "the run folder belongs to other work")
DIVERGED = Outcome("Diverged", 3, Budget.NEVER_RETRY, "loss or weights are no longer finite numbers")
PREEMPTED = Outcome("Preempted", 75, Budget.INFRASTRUCTURE_RETRIES, "the machine was preempted")
STORAGE_UNAVAILABLE = Outcome("StorageUnavailable", 75, Budget.INFRASTRUCTURE_RETRIES, "storage did not answer")
# A local run alone: the user pressed Ctrl-C, and the next run resumes.
STOPPED_BY_USER = Outcome("StoppedByUser", 75, Budget.INFRASTRUCTURE_RETRIES, "the user stopped the run")
PEER_LOST = Outcome("PeerLost", 76, Budget.UNDECIDED, "another worker of the job was lost")
# The previous attempt had ended before the new one began; a remaining process of it must not be charged to a budget.
SUPERSEDED = Outcome("Superseded", 76, Budget.UNDECIDED, "a newer attempt of the job has the run folder")

# All of the above.
OUTCOMES = tuple(value for value in tuple(globals().values()) if isinstance(value, Outcome))

OOM_KILLED = Outcome("OOMKilled", 137, Budget.BACKOFF_LIMIT, "a worker used more memory than its limit")
# The kubelet evicts such a pod without the condition DisruptionTarget; a retry elsewhere would end in the same way.
STORAGE_LIMIT = Outcome("StorageLimit", 137, Budget.BACKOFF_LIMIT, "a worker wrote more than a limit of local storage")
NODE_LOST = Outcome("NodeLost", 75, Budget.INFRASTRUCTURE_RETRIES, "the machine of a worker was lost")
CHILD_DELETED = Outcome("ChildDeleted", 75, Budget.INFRASTRUCTURE_RETRIES, "the job's pods were deleted")
NO_PROGRESS = Outcome("NoProgress", 1, Budget.BACKOFF_LIMIT, "no step was done for too long")
DEADLINE_EXCEEDED = Outcome("DeadlineExceeded", 1, Budget.NEVER_RETRY, "the job ran for too long")
PENDING_TIMEOUT = Outcome("PendingTimeout", 75, Budget.NEVER_RETRY, "not all workers could run in time")
OUTSIDE_LIMITS = Outcome("OutsideLimits", 2, Budget.NEVER_RETRY, "the administrator does not allow the job")
NO_CAPACITY = Outcome("NoCapacity", 75, Budget.NONE, "the machines did not come in time")
SUSPENDED = Outcome("Suspended", 75, Budget.NONE, "the user suspended the job")
# As a suspension, and unlike Preempted: the queue decides how often, so that no budget is charged.
QUEUE_PREEMPTED = Outcome("QueuePreempted", 75, Budget.NONE, "the queue took the machines for another job")
GANG_RELEASED = Outcome("GangReleased", 75, Budget.NONE, "only some workers got a machine, and gave it back")
RESIZED = Outcome("Resized", 75, Budget.NONE, "the next attempt has another number of workers")

_ALL = tuple(value for value in tuple(globals().values()) if isinstance(value, Outcome))
# Outcomes that only the operator detects; none of them is read from an exit code.
OPERATOR_OUTCOMES = _ALL[len(OUTCOMES) :]

_BY_REASON = {outcome.reason: outcome for outcome in _ALL}
_BY_EXIT_CODE = {outcome.exit_code: outcome for outcome in reversed(OUTCOMES)}


def by_reason(reason: str) -> Outcome:
    """Return the outcome with that reason; a reason of a newer version counts as ProgramFailed."""
    return _BY_REASON.get(reason, PROGRAM_FAILED)


def by_exit_code(exit_code: int) -> Outcome:
    """Return the outcome of a process's exit code, for a process without a Finished event.

    Other codes, such as the negative code of a signal, count as ProgramFailed.
    """
    return _BY_EXIT_CODE.get(exit_code, PROGRAM_FAILED)


def run_state(reason: str) -> Literal["Succeeded", "Stopped", "Failed"]:
    """Return how a run ended; Stopped if the same command continues it and its program is not to blame."""
    if reason == SUCCEEDED.reason:
        return "Succeeded"
    return "Failed" if by_reason(reason).budget in (Budget.BACKOFF_LIMIT, Budget.NEVER_RETRY) else "Stopped"
