"""Pods that nobody answers for: orphans of a deleted Indexed Job, and those stuck on a node that is lost.

As long as one of them may live, no new attempt starts: two gangs would write one checkpoint. That holds for the pods
of an earlier job of the same name too: `kubectl delete` and `apply` leave them their grace period.
"""

from __future__ import annotations

from dataclasses import dataclass

from mptraining_operator.plan.actions import Action, DeletePod, EndAttempt, FailPod, ReadNode
from mptraining_operator.plan.snapshot import SeenPod, Snapshot
from mptraining_operator.resources import names

# A node is asked about again after this long (`apply` forgets its answer by then).
_ASK_AGAIN = 30.0


@dataclass(frozen=True, slots=True)
class Leftovers:
    actions: tuple[Action, ...] = ()
    wake_at: float | None = None


def leftovers(snapshot: Snapshot, now: float) -> Leftovers:
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
    return Leftovers(tuple(actions), min(wakes, default=None))


def _stuck(snapshot: Snapshot, pod: SeenPod) -> tuple[Action, ...]:
    """A pod beyond its grace period: nothing but its kubelet ends it, and that may be gone with the node."""
    if not pod.node:
        return ()
    lost = snapshot.findings.lost_nodes.get(pod.node)
    if lost is None:
        return (ReadNode(pod.node),)
    return (FailPod(pod.name, pod.uid, pod.node),) if lost else ()


def quiet(snapshot: Snapshot) -> bool:
    """Whether no process of any attempt, or of an earlier job of this name, can be alive: every Indexed Job has ended,
    every pod is over.

    A Job's `status.terminating` says no more: before Kubernetes 1.31 a Job may end while its pods still leave, and its
    controller never corrects the number afterwards.
    """
    return all(each.ended for each in snapshot.batch_jobs) and all(
        pod.over for pod in (*snapshot.pods, *snapshot.predecessors)
    )
