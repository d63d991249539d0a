"""Change of the number of workers of an elastic job: the attempt that ends for it, and the probe of a running one."""

from __future__ import annotations

from dataclasses import replace

from mptraining_api import outcomes
from mptraining_api.resolve.attempt import possible_workers
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import JobStatus
from mptraining_operator.jobs.plan import conditions, end
from mptraining_operator.jobs.plan.actions import Action, EndAttempt, Plan, ReadJobFile, StartProbe
from mptraining_operator.jobs.plan.capacity import worker_count
from mptraining_operator.jobs.plan.capacity.worker_count import Resize, Size
from mptraining_operator.jobs.plan.snapshot import SeenBatchJob, Snapshot
from mptraining_operator.runtime.values import EventRecord


def _ended(snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob, resize: Resize, now: float) -> Plan:
    outcome, workers = outcomes.RESIZED, "1 worker" if resize.workers == 1 else f"{resize.workers} workers"
    message = f"{resize.message.rstrip('.')}; the next attempt has {workers}"
    status = end.with_uncharged_end(snapshot, status, batch_job, outcome, message, now)
    # `worker_count.next_size` reads the workers.
    status = status.model_copy(update={"workers": resize.workers})
    return Plan(
        status=status,
        actions=end.end_current_attempt(snapshot, status),
        event_records=(EventRecord(outcome.reason, message),),
        wake_at=now,
        restart=outcome.reason,
    )


def with_size(found: Plan, snapshot: Snapshot, now: float) -> Plan:
    """Return the plan with the end of an attempt that cannot be placed as a whole, or that can grow: the next one has
    another number of workers. Otherwise with the creation or deletion of the probe, and the time of the next decision.
    """
    status, probe = found.status or snapshot.status, snapshot.probe
    if status is None:
        return found
    size = Size(keep=worker_count.keeps_probe(status))
    actions: tuple[Action, ...] = ()
    attempt = conditions.current_attempt(status)
    elastic = snapshot.job is not None and snapshot.job.spec.elastic is not None
    over = attempt is None or attempt.outcome is not None or conditions.is_true(status, "Finished")
    if elastic and attempt is not None and not over:
        text = found.job_text or snapshot.lookups.job_text
        if not text:
            # It was not read yet, or is lost, so that the next attempt resolves the spec.
            read = ReadJobFile()
            known = text is not None or read in found.actions
            return found if known else replace(found, actions=(*found.actions, read))
        job, batch_job = ResolvedJob.read(text), snapshot.batch_job(attempt.number)
        size = worker_count.decide(possible_workers(job), snapshot, status, batch_job, now) if batch_job else Size()
        if size.resize is not None and batch_job is not None:
            return _ended(snapshot, status, batch_job, size.resize, now)
        if size.create:
            actions = (StartProbe(job, attempt.machine or 0, size.create),)
    if probe is not None and not size.keep and not probe.deleting:
        # In the foreground: it exists until its machines are free.
        actions = (EndAttempt(probe.name, probe.uid),)
    wakes = [each for each in (found.wake_at, size.wake_at) if each is not None]
    if not actions and min(wakes, default=None) == found.wake_at:
        return found
    return replace(found, actions=(*found.actions, *actions), wake_at=min(wakes, default=None))
