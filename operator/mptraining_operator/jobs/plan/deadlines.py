"""Deadlines of runPolicy: pendingTimeoutSeconds, activeDeadlineSeconds and progressDeadlineSeconds."""

from __future__ import annotations

from dataclasses import dataclass

from mptraining_api import outcomes
from mptraining_api.outcomes import Outcome
from mptraining_api.resolve.defaults import ResolvedRunPolicy, resolve_run_policy
from mptraining_api.status import JobStatus, parse_time
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.snapshot import SeenBatchJob, Snapshot

# Seconds for the export after the last step.
_EXPORT_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time (seconds since 1970) at which the attempt ends with `outcome`."""

    at: float
    outcome: Outcome
    message: str


def run_policy(snapshot: Snapshot) -> ResolvedRunPolicy:
    return resolve_run_policy(snapshot.job.spec.run_policy if snapshot.job else None)


def earliest_deadline(
    snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob | None, why: str
) -> Deadline | None:
    """Return the earliest deadline of the current attempt; `why` is the reason that a pending attempt waits."""
    return _first(_pending(snapshot, status, batch_job, why), _active(snapshot, status), _progress(snapshot, status))


def _first(*deadlines: Deadline | None) -> Deadline | None:
    return min(
        (deadline for deadline in deadlines if deadline is not None), key=lambda deadline: deadline.at, default=None
    )


def _pending(snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob | None, why: str) -> Deadline | None:
    """Return the pending timeout, counted from when pods may be created; time in a queue does not count.

    A job that has run waits for machines until activeDeadlineSeconds: its last checkpoint is worth more than the wait,
    and a Spot machine may be missing for longer than any first start may take.
    """
    attempt = conditions.current_attempt(status)
    if conditions.is_true(status, "Running") or attempt is None or attempt.start_time is None:
        return None
    if not has_never_run(status) or (batch_job is not None and batch_job.suspended):
        return None
    return _pending_since(began_to_wait(status, batch_job), snapshot, status, why)


def _pending_since(began: float, snapshot: Snapshot, status: JobStatus, why: str) -> Deadline:
    """Return the pending timeout of a job that had waited for its `waitedSeconds` when it `began` to wait again."""
    limit = run_policy(snapshot).pending_timeout_seconds
    message = (
        f"not all {status.workers or 1} workers ran within {limit} s (spec.runPolicy.pendingTimeoutSeconds): {why}"
    )
    return Deadline(began - (status.waited_seconds or 0) + limit, outcomes.PENDING_TIMEOUT, message)


def deadline_before(due: float, snapshot: Snapshot, status: JobStatus, why: str) -> Deadline | None:
    """Return the deadline that ends a job whose last attempt has ended, and whose next one may start at `due`.

    None if the next attempt may start before it; a wait for the workers of the namespace after `due` has no deadline.
    """
    # `end.with_uncharged_end` counts the pause as well.
    pending = _pending_since(due, snapshot, status, why) if has_never_run(status) else None
    first = _first(pending, _active(snapshot, status))
    return first if first is not None and first.at <= due else None


def has_never_run(status: JobStatus) -> bool:
    """Return whether no attempt of the job has run: it is the first, or the earlier ones found no machines."""
    first = (status.current_attempt or 1) == 1 or status.waited_seconds is not None
    return first and status.start_time is None and status.progress is None


def began_to_wait(status: JobStatus, batch_job: SeenBatchJob | None) -> float:
    """Return since when the pods of the current attempt may exist."""
    attempt = conditions.current_attempt(status)
    if batch_job is not None or attempt is None or attempt.start_time is None:
        # A Job that is not suspended gets its startTime within moments of its creation.
        return (batch_job.started or batch_job.created) if batch_job else 0.0
    return parse_time(attempt.start_time)


def oom_kills(status: JobStatus) -> str:
    """Describe the processes of the current attempt that were killed for memory; empty if there are none."""
    progress = status.progress
    if progress is None or progress.attempt != status.current_attempt or not progress.oom_kills:
        return ""
    processes = "1 process" if progress.oom_kills == 1 else f"{progress.oom_kills} processes"
    return (
        f"; the kernel killed {processes} of worker 0 for using more memory than its limit. Raise "
        "podTemplate.resources.limits.memory, use fewer processes, or set data.cache to None"
    )


def _active(snapshot: Snapshot, status: JobStatus) -> Deadline | None:
    limit = run_policy(snapshot).active_deadline_seconds
    if limit is None or status.start_time is None:
        return None
    message = f"the job ran for longer than {limit} s (spec.runPolicy.activeDeadlineSeconds); its last checkpoint stays"
    return Deadline(parse_time(status.start_time) + limit, outcomes.DEADLINE_EXCEEDED, message)


def _progress(snapshot: Snapshot, status: JobStatus) -> Deadline | None:
    """Return the progress deadline, or None while no replica can receive progress reports."""
    limit = run_policy(snapshot).progress_deadline_seconds
    began, receiving_since = conditions.transition_time(status, "Running"), snapshot.reports_since
    if limit is None or began is None or receiving_since is None or not conditions.is_true(status, "Running"):
        return None
    began = max(began, receiving_since)
    progress = status.progress
    if progress is not None and progress.attempt == status.current_attempt and progress.step_time is not None:
        began = max(began, parse_time(progress.step_time))
        kept = parse_time(progress.model_kept_until) if progress.model_kept_until else began
        if progress.percent_complete == 100:
            # All steps are done: worker 0 exports the model.
            began += _EXPORT_SECONDS
        # A training that a callback stopped has done fewer steps, and its model is kept, too.
        began = max(began, kept)
    message = f"no step was done for {limit} s (spec.runPolicy.progressDeadlineSeconds){oom_kills(status)}"
    return Deadline(began + limit, outcomes.NO_PROGRESS, message)
