"""A job's place in its queue: one Job that Kueue admits for all attempts (`resources.queue_job`).

The quota is the job's from its admission until it ends, is suspended or is preempted, also between two attempts. An
attempt that the queue preempts ends without a charge to a budget; the next one starts when the job is admitted again.
"""

from __future__ import annotations

from dataclasses import replace

from mptraining_api import outcomes
from mptraining_api.problems import Problem
from mptraining_api.resolve.attempt import possible_workers
from mptraining_api.spec import MANAGED_BY_OPERATOR, Scheduling
from mptraining_api.status import EventRecord, JobStatus, Phase
from mptraining_operator.jobs.plan import conditions, waiting
from mptraining_operator.jobs.plan.actions import (
    Action,
    EndAttempt,
    JoinQueue,
    LeaveQueue,
    Plan,
    ReportToQueue,
    StartAttempt,
)
from mptraining_operator.jobs.plan.capacity import machines
from mptraining_operator.jobs.plan.deadlines import has_never_run
from mptraining_operator.jobs.plan.end import charge_budget, with_uncharged_end
from mptraining_operator.jobs.plan.snapshot import Refusal, SeenBatchJob, Snapshot
from mptraining_operator.jobs.plan.suspend_and_cleanup import no_live_pods
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.jobs.resources.job_objects import job_digest
from mptraining_operator.jobs.resources.queue_job import Admitted, admission_digest


def managed_elsewhere(snapshot: Snapshot) -> bool:
    """Return whether spec.managedBy names another controller."""
    by = snapshot.job.spec.managed_by if snapshot.job else None
    return by not in (None, MANAGED_BY_OPERATOR)


def admitted(snapshot: Snapshot) -> Admitted | None:
    """Return the job's place in its queue; None before its admission, and for a job or an attempt without one."""
    found = snapshot.queue_job
    if found is None or found.inactive or found.placement is None or snapshot.queue_name is None:
        return None
    return Admitted(found.name, found.uid, found.placement)


def admission(snapshot: Snapshot, status: JobStatus, start: StartAttempt, now: float) -> Plan | None:
    """Return the plan that queues the job for the machine of its next attempt, or None if that may start."""
    if snapshot.queue_name is None:
        return None
    found = snapshot.queue_job
    other = found is not None and (found.machine != start.machine or _edited(snapshot, status, start, found))
    if admitted(snapshot) and not other:
        return None
    if found is None and snapshot.lookups.refusal is not None:
        return _refused(snapshot, status, start, snapshot.lookups.refusal, now)
    actions: tuple[Action, ...] = ()
    wake: float | None = None
    if found is None:
        actions = (JoinQueue(start, _digest(snapshot, start)),)
    elif (found.ended or other) and not found.deleting:
        # Of a job that was refused before its first attempt, and edited since; or of the machine of another attempt.
        actions = (LeaveQueue(found.name, found.uid),)
    elif not found.deleting and (due := machines.queue_deadline(snapshot, status, found)) is not None:
        wake = due.at
        if now >= due.at:
            return _given_up(snapshot, status, start, due.message, now)
    if conditions.is_true(status, "Suspended"):
        status = conditions.with_resumed(status, now, snapshot.generation)
    # Its workers are reserved in the namespace, since the queue may admit it at any time.
    after = _with_queued(snapshot, status, now).model_copy(update={"workers": start.attempt_job.workers})
    return Plan(status=after, actions=actions, wake_at=wake)


def _edited(snapshot: Snapshot, status: JobStatus, start: StartAttempt, place: SeenBatchJob) -> bool:
    """Return whether the job asks for something else than it queued with; its spec may change until its first attempt.

    A place without a digest is of an earlier version of the operator.
    """
    if status.current_attempt or not place.queue_digest:
        return False
    return place.queue_digest != _digest(snapshot, start)


def _digest(snapshot: Snapshot, start: StartAttempt) -> str:
    """Return the digest of what the job asks its queue for: with all workers, whatever its namespace leaves to it."""
    try:
        built = indexed_job(snapshot.owner, start.job, attempt=1, settings=PodSettings(), machine=start.machine)
    except Problem:
        # JoinQueue reports it.
        return ""
    return admission_digest(built, start.job.scheduling or Scheduling(), possible_workers(start.job)[0])


def _refused(snapshot: Snapshot, status: JobStatus, start: StartAttempt, refusal: Refusal, now: float) -> Plan:
    """Create the queue's Job again later that the API server rejected; fail a job of which it can never be created."""
    found = waiting.refused(refusal, Phase.QUEUED, snapshot.key.namespace)
    if refusal.kind == "Invalid":
        if start.number > (status.current_attempt or 0):
            status = conditions.with_attempt_started(status, start, now, snapshot.generation)
        return charge_budget(snapshot, status, outcomes.INVALID_SPEC, found.message, now)
    waits = waiting.with_wait(snapshot, status, found, now, "Warning")
    status = (waits.status or status).model_copy(update={"workers": start.attempt_job.workers})
    again = waiting.retry_at(refusal, snapshot.created)
    actions = (JoinQueue(start, _digest(snapshot, start)),) if now >= again else ()
    return replace(waits, status=status, actions=actions, wake_at=again)


def leave(snapshot: Snapshot) -> tuple[Action, ...]:
    """Return the action by which a job without live pods gives up its place; empty without one."""
    place = snapshot.queue_job
    if place is None or place.deleting or snapshot.probe is not None:
        return ()
    return (LeaveQueue(place.name, place.uid),)


def _given_up(snapshot: Snapshot, status: JobStatus, start: StartAttempt, message: str, now: float) -> Plan:
    """Record an attempt that ended in the queue, before its Job was created: the next one tries the next machine."""
    # A job that ran and was preempted has no startTime.
    never_ran = has_never_run(status) and (start.number == 1 or status.waited_seconds is not None)
    if start.number > (status.current_attempt or 0):
        status = conditions.with_attempt_started(status, start, now, snapshot.generation)
    # The next attempt runs the same job, and reads no other one from a ConfigMap of this name.
    text = "" if status.job_digest else start.job.to_json()
    update: dict[str, object] = {"waited_seconds": status.waited_seconds or 0 if never_ran else None}
    status = status.model_copy(update=update | ({"job_digest": job_digest(text)} if text else {}))
    status = conditions.with_attempt_ended(status, outcomes.NO_CAPACITY, message, now)
    following = machines.announced(snapshot, status, machines.next_machine(snapshot, status, now))
    record = EventRecord(outcomes.NO_CAPACITY.reason, f"{message.rstrip('.')}. Next: {following}", "Warning")
    return Plan(status=_with_queued(snapshot, status, now), job_text=text, event_records=(record,), wake_at=now)


def _with_queued(snapshot: Snapshot, status: JobStatus, now: float) -> JobStatus:
    message = _message(snapshot)
    status = conditions.with_waiting(status, Phase.QUEUED, "Queued", message, now, snapshot.generation)
    # activeDeadlineSeconds does not count time in a queue.
    return status.model_copy(update={"start_time": None})


def _message(snapshot: Snapshot) -> str:
    place = f"kubectl get workloads --namespace {snapshot.key.namespace}"
    return f"waiting for the queue {snapshot.queue_name!r} to admit the job; its place there: {place}"


def preempted(snapshot: Snapshot, status: JobStatus, now: float) -> Plan | None:
    """End an attempt whose place in the queue is gone: preempted, or deleted; None for any other."""
    attempt = conditions.current_attempt(status)
    batch_job = snapshot.batch_job(attempt.number) if attempt else None
    if attempt is None or attempt.outcome or batch_job is None or not batch_job.queue_uid:
        return None
    place = admitted(snapshot)
    if batch_job.ended or (place is not None and place.uid == batch_job.queue_uid):
        return None
    message = f"the machines were preempted: {_message(snapshot)}"
    status = with_uncharged_end(snapshot, status, batch_job, outcomes.QUEUE_PREEMPTED, message, now)
    actions = () if batch_job.deleting else (EndAttempt(batch_job.name, batch_job.uid),)
    record = EventRecord("Queued", message, "Warning")
    return Plan(status=_with_queued(snapshot, status, now), actions=actions, event_records=(record,))


def with_queue_report(found: Plan, snapshot: Snapshot, now: float) -> Plan:
    """Add what the plan's status means for the job's place in its queue."""
    if any(isinstance(each, LeaveQueue) for each in found.actions):
        return found
    starts = any(isinstance(each, StartAttempt) for each in found.actions)
    action = _report(snapshot, found.status or snapshot.status, now, starts=starts)
    if action is None:
        return found
    # Before a start: Kueue keeps the quota while pods are active, and a preemption that was not observed is a conflict.
    return replace(found, actions=(action, *found.actions) if starts else (*found.actions, action))


def _report(snapshot: Snapshot, status: JobStatus | None, now: float, *, starts: bool) -> Action | None:
    place = snapshot.queue_job
    if place is None or place.deleting or place.ended or status is None:
        return None
    # The machines of a probe are a part of the job's quota; its pods are not observed.
    live = not no_live_pods(snapshot) or snapshot.probe is not None
    if conditions.is_true(status, "Finished"):
        return None if live else _ended(place, status, now)
    never_ran = status.current_attempt is None
    if (snapshot.suspend and not live) or (never_ran and snapshot.queue_name is None):
        return LeaveQueue(place.name, place.uid)
    if place.suspended:
        # Kueue gives the quota to another job when no pod is active: not before the workers have ended.
        wanted = (place.active if live else 0, 0)
    else:
        attempt = snapshot.batch_job(status.current_attempt or 0)
        ready = attempt is not None and not attempt.ended and attempt.ready + attempt.succeeded >= attempt.parallelism
        # Also between two attempts, in which the quota stays the job's.
        ran = live or place.active or starts
        wanted = (place.parallelism if ran else 0, place.parallelism if ready else 0)
    if wanted == (place.active, place.ready) or (place.suspended and place.active == wanted[0] == 0):
        return None
    started = None if place.suspended else place.started or now
    return ReportToQueue(place.name, *wanted, started=started, uid=place.uid, version=place.version)


def _ended(place: SeenBatchJob, status: JobStatus, now: float) -> ReportToQueue:
    succeeded = conditions.is_true(status, "Complete")
    found = conditions.condition(status, "Complete" if succeeded else "Failed")
    return ReportToQueue(
        place.name,
        active=0,
        ready=0,
        ended="Complete" if succeeded else "Failed",
        reason=found.reason if found else "Ended",
        message=found.message if found else "",
        workers=place.parallelism if succeeded else 0,
        started=place.started or now,
        uid=place.uid,
        version=place.version,
    )
