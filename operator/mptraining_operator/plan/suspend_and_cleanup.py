"""What becomes of a job that has ended: leftovers go, and after its time to live the job itself."""

from __future__ import annotations

from dataclasses import dataclass

from mptraining_api.outcomes import SUSPENDED
from mptraining_operator.plan import conditions
from mptraining_operator.plan.actions import (
    Action,
    DeleteJob,
    DeletePod,
    EndAttempt,
    EventRecord,
    FailPod,
    ForgetAttempt,
    Plan,
    ReadNode,
)
from mptraining_operator.plan.deadlines import policy
from mptraining_operator.plan.snapshot import SeenPod, Snapshot
from mptraining_operator.resources import names

# As many attempts as the status tells of; their pods keep the logs.
_ATTEMPTS_KEPT = 10


def ended(snapshot: Snapshot, now: float) -> Plan | None:
    """Of a job that has finished nothing runs any more, whoever wrote its status: also one restored from a backup."""
    status = snapshot.status
    if status is None or not conditions.holds(status, "Finished"):
        return None
    actions: list[Action] = [
        EndAttempt(each.name, each.uid) for each in snapshot.batch_jobs if not each.ended and not each.deleting
    ]
    live = policy(snapshot).ttl_seconds_after_finished
    if live is None or status.completion_time is None:
        return Plan(actions=tuple(actions))
    at = conditions.seconds(status.completion_time) + live
    if now >= at:
        return Plan(actions=(DeleteJob(snapshot.uid),))
    return Plan(actions=tuple(actions), wake_at=at)


def old_attempts(snapshot: Snapshot) -> tuple[Action, ...]:
    """Indexed Jobs of attempts that the status tells of no more."""
    newest = (snapshot.status.current_attempt if snapshot.status else None) or 0
    return tuple(
        ForgetAttempt(each.name, each.uid)
        for each in snapshot.batch_jobs
        if each.ended and not each.deleting and each.attempt <= newest - _ATTEMPTS_KEPT
    )


def suspended(snapshot: Snapshot, now: float) -> Plan | None:
    """None unless the user wants the job suspended."""
    status = snapshot.status
    if status is None or not snapshot.suspend:
        return None
    attempt = conditions.current(status)
    # Whichever attempt they are of: somebody may have emptied the status.
    running = [each for each in snapshot.batch_jobs if not each.ended and not each.deleting]
    actions: tuple[Action, ...] = tuple(EndAttempt(each.name, each.uid) for each in running)
    if conditions.holds(status, "Suspended"):
        return Plan(actions=actions)
    if attempt is not None and attempt.outcome is None:
        status = conditions.attempt_over(status, SUSPENDED, "suspended by spec.runPolicy.suspend", now)
    status = conditions.suspended(status, now, snapshot.generation)
    # A Job that its queue holds has none, or those that it had leave already.
    works = any(not each.suspended for each in running) or any(not pod.over for pod in snapshot.pods)
    leave = "the workers save a checkpoint and leave" if works else "no worker runs"
    said = EventRecord("Suspended", f"{leave}; set spec.runPolicy.suspend to false to go on")
    return Plan(status=status, actions=actions, event_records=(said,))


# A node is asked about again after this long (`apply` forgets its answer by then).
_ASK_AGAIN = 30.0


@dataclass(frozen=True, slots=True)
class Orphans:
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None


def orphans(snapshot: Snapshot, now: float) -> Orphans:
    """What must go, whatever else the plan is."""
    actions: list[Action] = []
    wakes: list[float] = []
    current = snapshot.status.current_attempt if snapshot.status else None
    for batch_job in snapshot.batch_jobs:
        # Without a current attempt the newest is about to be adopted.
        if current and batch_job.attempt != current and not batch_job.ended and not batch_job.deleting:
            actions.append(EndAttempt(batch_job.name, batch_job.uid))
    owners = {batch_job.uid for batch_job in snapshot.batch_jobs}
    for pod in (*snapshot.pods, *snapshot.predecessors):
        if pod.over:
            continue
        if pod.deletion is None:
            # A predecessor's Job went with its job: Kubernetes collects it and its pods.
            if pod.owner_uid not in owners and pod.job_uid == snapshot.uid:
                owner = names.batch_job(snapshot.key.name, pod.attempt)
                actions.append(DeletePod(pod.name, pod.uid, owner, pod.owner_uid))
            continue
        given_up = pod.deletion + snapshot.limits.stuck_pod
        if now < given_up:
            wakes.append(given_up)
        else:
            actions.extend(_stuck(snapshot, pod))
            wakes.append(now + _ASK_AGAIN)
    return Orphans(tuple(actions), min(wakes, default=None))


def _stuck(snapshot: Snapshot, pod: SeenPod) -> tuple[Action, ...]:
    """A pod beyond its grace period: nothing but its kubelet ends it, and that may be gone with the node."""
    if not pod.node:
        return ()
    lost = snapshot.findings.lost_nodes.get(pod.node)
    if lost is None:
        return (ReadNode(pod.node),)
    return (FailPod(pod.name, pod.uid, pod.node),) if lost else ()


def no_live_pods(snapshot: Snapshot) -> bool:
    """Whether no process of any attempt, or of an earlier job of this name, can be alive: every Indexed Job has ended,
    every pod is over.

    A Job's `status.terminating` says no more: before Kubernetes 1.31 a Job may end while its pods still leave, and its
    controller never corrects the number afterwards.
    """
    return all(each.ended for each in snapshot.batch_jobs) and all(
        pod.over for pod in (*snapshot.pods, *snapshot.predecessors)
    )
