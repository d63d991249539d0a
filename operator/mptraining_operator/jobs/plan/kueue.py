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
    queue_job = snapshot.queue_job
    if queue_job is None or queue_job.inactive or queue_job.placement is None or snapshot.queue_name is None:
        return None
    return Admitted(queue_job.name, queue_job.uid, queue_job.placement)


def admission(snapshot: Snapshot, status: JobStatus, start: StartAttempt, now: float) -> Plan | None:
    """Return the plan that queues the job for the machine of its next attempt, or None if that may start."""
    if snapshot.queue_name is None:
        return None
    queue_job = snapshot.queue_job
    other = queue_job is not None and (
        queue_job.machine != start.machine or _edited(snapshot, status, start, queue_job)
    )
    if admitted(snapshot) and not other:
        return None
    if queue_job is None and snapshot.lookups.refusal is not None:
        return _refused(snapshot, status, start, snapshot.lookups.refusal, now)
    actions: tuple[Action, ...] = ()
    wake: float | None = None
    if queue_job is None:
        actions = (JoinQueue(start, _digest(snapshot, start)),)
    elif (queue_job.ended or other) and not queue_job.deleting:
        # The place of a job that was refused and edited before its first attempt, or of the machine of another attempt.
        actions = (LeaveQueue(queue_job.name, queue_job.uid),)
    elif not queue_job.deleting and (due := machines.queue_deadline(snapshot, status, queue_job)) is not None:
        wake = due.at
        if now >= due.at:
            return _given_up(snapshot, status, start, due.message, now)
    if conditions.is_true(status, "Suspended"):
        status = conditions.with_resumed(status, now, snapshot.generation)
    # Its workers are reserved in the namespace, since the queue may admit it at any time.
    after = _with_queued(snapshot, status, now).model_copy(update={"workers": start.attempt_job.workers})
    return Plan(status=after, actions=actions, wake_at=wake)


def _edited(snapshot: Snapshot, status: JobStatus, start: StartAttempt, queue_job: SeenBatchJob) -> bool:
    """Return whether the job asks for something else than it queued with; its spec may change until its first attempt.

    A place without a digest is of an earlier version of the operator.
    """
    if status.current_attempt or not queue_job.queue_digest:
        return False
    return queue_job.queue_digest != _digest(snapshot, start)


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
    wait = waiting.refused(refusal, Phase.QUEUED, snapshot.key.namespace)
    if refusal.kind == "Invalid":
        if start.number > (status.current_attempt or 0):
            status = conditions.with_attempt_started(status, start, now, snapshot.generation)
        return charge_budget(snapshot, status, outcomes.INVALID_SPEC, wait.message, now)
    waits = waiting.with_wait(snapshot, status, wait, now, "Warning")
    status = (waits.status or status).model_copy(update={"workers": start.attempt_job.workers})
    again = waiting.retry_at(refusal, snapshot.created)
    actions = (JoinQueue(start, _digest(snapshot, start)),) if now >= again else ()
    return replace(waits, status=status, actions=actions, wake_at=again)


def leave(snapshot: Snapshot) -> tuple[Action, ...]:
    """Return the action by which a job without live pods gives up its place; empty without one."""
    queue_job = snapshot.queue_job
    if queue_job is None or queue_job.deleting or snapshot.probe is not None:
        return ()
    return (LeaveQueue(queue_job.name, queue_job.uid),)


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
    command = f"kubectl get workloads --namespace {snapshot.key.namespace}"
    return f"waiting for the queue {snapshot.queue_name!r} to admit the job; its place there: {command}"


def preempted(snapshot: Snapshot, status: JobStatus, now: float) -> Plan | None:
    """End an attempt whose place in the queue is gone: preempted, or deleted; None for any other."""
    attempt = conditions.current_attempt(status)
    batch_job = snapshot.batch_job(attempt.number) if attempt else None
    if attempt is None or attempt.outcome or batch_job is None or not batch_job.queue_uid:
        return None
    queue_job = admitted(snapshot)
    if batch_job.ended or (queue_job is not None and queue_job.uid == batch_job.queue_uid):
        return None
    message = f"the machines were preempted: {_message(snapshot)}"
    status = with_uncharged_end(snapshot, status, batch_job, outcomes.QUEUE_PREEMPTED, message, now)
    actions = () if batch_job.deleting else (EndAttempt(batch_job.name, batch_job.uid),)
    record = EventRecord("Queued", message, "Warning")
    return Plan(status=_with_queued(snapshot, status, now), actions=actions, event_records=(record,))


def with_queue_report(decided: Plan, snapshot: Snapshot, now: float) -> Plan:
    """Add what the plan's status means for the job's place in its queue."""
    if any(isinstance(action, LeaveQueue) for action in decided.actions):
        return decided
    starts = any(isinstance(action, StartAttempt) for action in decided.actions)
    action = _report(snapshot, decided.status or snapshot.status, now, starts=starts)
    if action is None:
        return decided
    # Before a start: Kueue keeps the quota while pods are active, and a preemption that was not observed is a conflict.
    return replace(decided, actions=(action, *decided.actions) if starts else (*decided.actions, action))


def _report(snapshot: Snapshot, status: JobStatus | None, now: float, *, starts: bool) -> Action | None:
    queue_job = snapshot.queue_job
    if queue_job is None or queue_job.deleting or queue_job.ended or status is None:
        return None
    # The machines of a probe are a part of the job's quota; its pods are not observed.
    live = not no_live_pods(snapshot) or snapshot.probe is not None
    if conditions.is_true(status, "Finished"):
        return None if live else _ended(queue_job, status, now)
    never_ran = status.current_attempt is None
    if (snapshot.suspend and not live) or (never_ran and snapshot.queue_name is None):
        return LeaveQueue(queue_job.name, queue_job.uid)
    if queue_job.suspended:
        # Kueue gives the quota to another job when no pod is active: not before the workers have ended.
        counts = (queue_job.active if live else 0, 0)
    else:
        attempt = snapshot.batch_job(status.current_attempt or 0)
        ready = attempt is not None and not attempt.ended and attempt.ready + attempt.succeeded >= attempt.parallelism
        # Also between two attempts, in which the quota stays the job's.
        ran = live or queue_job.active or starts
        counts = (queue_job.parallelism if ran else 0, queue_job.parallelism if ready else 0)
    if counts == (queue_job.active, queue_job.ready) or (queue_job.suspended and queue_job.active == counts[0] == 0):
        return None
    started = None if queue_job.suspended else queue_job.started or now
    return ReportToQueue(queue_job.name, *counts, started=started, uid=queue_job.uid, version=queue_job.version)


def _ended(queue_job: SeenBatchJob, status: JobStatus, now: float) -> ReportToQueue:
    succeeded = conditions.is_true(status, "Complete")
    condition = conditions.condition(status, "Complete" if succeeded else "Failed")
    return ReportToQueue(
        queue_job.name,
        active=0,
        ready=0,
        ended="Complete" if succeeded else "Failed",
        reason=condition.reason if condition else "Ended",
        message=condition.message if condition else "",
        workers=queue_job.parallelism if succeeded else 0,
        started=queue_job.started or now,
        uid=queue_job.uid,
        version=queue_job.version,
    )
