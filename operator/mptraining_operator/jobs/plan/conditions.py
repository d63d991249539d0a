"""Job status transitions: conditions, phase and attempts.

A transition takes a frozen status and returns the next one; times are in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Collection

from mptraining_api.outcomes import SUCCEEDED, SUSPENDED, Outcome
from mptraining_api.resolve.attempt import decisions
from mptraining_api.status import (
    ATTEMPTS_KEPT,
    CONDITION_TYPES,
    Attempt,
    ConditionType,
    JobStatus,
    Phase,
    condition,
    format_time,
    is_true,
    parse_time,
    truncated,
    with_condition,
)
from mptraining_operator.jobs.plan.actions import StartAttempt

# Those of every status.
__all__ = ["condition", "is_true", "with_condition"]


def transition_time(status: JobStatus, kind: ConditionType) -> float | None:
    """Return the condition's lastTransitionTime, or None if the condition was never written."""
    current = condition(status, kind)
    return None if current is None else parse_time(current.last_transition_time)


def without_conditions(status: JobStatus, types: Collection[str]) -> JobStatus:
    kept = [condition for condition in status.conditions or () if condition.type not in types]
    return status.model_copy(update={"conditions": kept or None})


def cleared(status: JobStatus) -> JobStatus:
    """Return an empty status for a job that is planned again; progress and conditions of other controllers stay."""
    return JobStatus(progress=status.progress, conditions=without_conditions(status, CONDITION_TYPES).conditions)


def _with_reconciling(status: JobStatus, now: float, generation: int) -> JobStatus:
    """Set Reconciling to True, once: its message is constant, so that it changes with no state of the workers.

    kstatus (Flux, `helm install --wait`) reports InProgress while it is True. `with_finished` removes it: kstatus
    wants conditions that are abnormal to be absent otherwise.
    """
    if is_true(status, "Reconciling"):
        return status
    message = "the job has not ended: see the condition Running"
    return with_condition(status, "Reconciling", True, "NotFinished", message, now, generation)


def current_attempt(status: JobStatus) -> Attempt | None:
    """Return the attempt that exists or is about to be created, or None before the first."""
    attempts = status.attempts or []
    return attempts[-1] if attempts and attempts[-1].number == status.current_attempt else None


def with_attempt_started(status: JobStatus, start: StartAttempt, now: float, generation: int) -> JobStatus:
    """Record the intent to create an attempt."""
    number, began = start.number, format_time(now)
    # The machine and the size, where those may change.
    attempt = Attempt(number=number, machine=start.machine or None, workers=start.workers, start_time=began)
    first = number == 1 or status.waited_seconds is not None
    status = status.model_copy(
        update={
            "phase": Phase.PENDING if first else Phase.RESTARTING,
            "observed_generation": generation,
            "current_attempt": number,
            "attempts": [*(status.attempts or []), attempt][-ATTEMPTS_KEPT:],
            "application_failures": status.application_failures or 0,
            "infrastructure_restarts": status.infrastructure_restarts or 0,
            **resolved_fields(start),
        }
    )
    if condition(status, "Suspended") is not None:
        status = with_resumed(status, now, generation)
    message = f"attempt {number} is being created"
    status = with_condition(status, "Running", False, "Starting", message, now, generation)
    return _with_reconciling(status, now, generation)


def resolved_fields(start: StartAttempt) -> dict[str, object]:
    """Return the status fields that report the job of an attempt."""
    return {
        "resolved": decisions(start.job, machine=start.machine, workers=start.workers),
        "workers": start.attempt_job.workers,
        "replicas_in_sync": start.attempt_job.replicas,
    }


def _not_before(start: str | None, now: float) -> str:
    """Return an end time no earlier than `start`, which may come from another replica's clock."""
    return format_time(max(now, parse_time(start)) if start else now)


def with_attempt_ended(status: JobStatus, outcome: Outcome, message: str, now: float) -> JobStatus:
    attempt = current_attempt(status)
    if attempt is None:
        return status
    completed = _not_before(attempt.start_time, now)
    return with_attempt(status, outcome=outcome.reason, message=truncated(message), completion_time=completed)


def with_attempt(status: JobStatus, **fields: object) -> JobStatus:
    attempts = list(status.attempts or [])
    return status.model_copy(update={"attempts": [*attempts[:-1], attempts[-1].model_copy(update=fields)]})


def with_running(status: JobStatus, message: str, now: float, generation: int) -> JobStatus:
    """Record that all workers of the current attempt run."""
    status = status.model_copy(
        update={
            "phase": Phase.RUNNING,
            "start_time": status.start_time or format_time(now),
            "observed_generation": generation,
            "waited_seconds": None,
        }
    )
    status = with_condition(status, "Running", True, "Running", message, now, generation)
    return _with_reconciling(status, now, generation)


def with_waiting(status: JobStatus, phase: Phase, reason: str, message: str, now: float, generation: int) -> JobStatus:
    """Record that not all workers run, and why."""
    status = _with_not_running(status, phase, reason, message, now, generation)
    return _with_reconciling(status, now, generation)


def _with_not_running(
    status: JobStatus, phase: Phase, reason: str, message: str, now: float, generation: int
) -> JobStatus:
    status = status.model_copy(update={"phase": phase, "observed_generation": generation})
    return with_condition(status, "Running", False, reason, message, now, generation)


def with_suspended(status: JobStatus, now: float, generation: int) -> JobStatus:
    """Record the suspension and reset startTime, so that activeDeadlineSeconds restarts as for a batch/v1 Job."""
    message = "suspended by spec.runPolicy.suspend; set it to false to continue from the last checkpoint"
    status = with_waiting(status, Phase.SUSPENDED, SUSPENDED.reason, message, now, generation)
    status = with_condition(status, "Suspended", True, SUSPENDED.reason, message, now, generation)
    return status.model_copy(update={"start_time": None, "waited_seconds": None})


def with_resumed(status: JobStatus, now: float, generation: int) -> JobStatus:
    return with_condition(status, "Suspended", False, "Resumed", "", now, generation)


def with_finished(status: JobStatus, outcome: Outcome, message: str, now: float, generation: int) -> JobStatus:
    good = outcome == SUCCEEDED
    attempt = current_attempt(status)
    if attempt is not None and attempt.outcome is None:
        status = with_attempt_ended(status, outcome, message, now)
    phase = Phase.SUCCEEDED if good else Phase.FAILED
    ended: ConditionType = "Complete" if good else "Failed"
    # Only the condition Complete or Failed carries the full message.
    over = f"the job has ended: see the condition {ended}"
    status = _with_not_running(status, phase, outcome.reason, over, now, generation)
    status = without_conditions(status, ("Reconciling",))
    status = status.model_copy(update={"completion_time": _not_before(status.start_time, now)})
    status = with_condition(status, ended, True, outcome.reason, message, now, generation)
    if not good:
        # kstatus reports the message of Stalled.
        brief = f"{outcome.meaning}: see the condition Failed"
        status = with_condition(status, "Stalled", True, outcome.reason, brief, now, generation)
    return with_condition(status, "Finished", True, outcome.reason, over, now, generation)


def with_generation_observed(status: JobStatus, generation: int) -> JobStatus:
    """Return the status with that observedGeneration, if it has one of an earlier generation."""
    if status.phase is None or generation <= (status.observed_generation or 0):
        return status
    return status.model_copy(update={"observed_generation": generation})
