"""Suspension, and cleanup: finished jobs, old attempts, orphaned Jobs and pods; reads of the nodes of stuck pods."""

from __future__ import annotations

from mptraining_api.outcomes import SUSPENDED
from mptraining_api.status import ATTEMPTS_KEPT, EventRecord, JobStatus, parse_time
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.actions import (
    Action,
    DeleteJob,
    DeletePod,
    EndAttempt,
    ForgetAttempt,
    Plan,
    ReadNode,
)
from mptraining_operator.jobs.plan.deadlines import run_policy
from mptraining_operator.jobs.plan.snapshot import Snapshot
from mptraining_operator.jobs.resources import names


def clean_up_finished(snapshot: Snapshot, status: JobStatus, now: float) -> Plan | None:
    """Terminate the Indexed Jobs of a finished job, also one restored from a backup, and delete it after its TTL."""
    if not conditions.is_true(status, "Finished"):
        return None
    actions: list[Action] = [
        EndAttempt(job.name, job.uid) for job in snapshot.batch_jobs if not job.ended and not job.deleting
    ]
    live = run_policy(snapshot).ttl_seconds_after_finished
    if live is None or status.completion_time is None:
        return Plan(actions=tuple(actions))
    at = parse_time(status.completion_time) + live
    if now >= at:
        return Plan(actions=(DeleteJob(snapshot.uid),))
    return Plan(actions=tuple(actions), wake_at=at)


def delete_old_attempts(snapshot: Snapshot) -> tuple[Action, ...]:
    """Return deletions of Indexed Jobs whose attempts are no longer in the status."""
    newest = (snapshot.status.current_attempt if snapshot.status else None) or 0
    return tuple(
        ForgetAttempt(job.name, job.uid)
        for job in snapshot.batch_jobs
        if job.ended and not job.deleting and job.attempt <= newest - ATTEMPTS_KEPT
    )


def suspended(snapshot: Snapshot, status: JobStatus, now: float) -> Plan | None:
    """Suspend the job; None if spec.runPolicy.suspend is not true."""
    if not snapshot.suspend:
        return None
    attempt = conditions.current_attempt(status)
    # Jobs of any attempt: the status may have been cleared.
    running = [job for job in snapshot.batch_jobs if not job.ended and not job.deleting]
    actions: tuple[Action, ...] = tuple(EndAttempt(job.name, job.uid) for job in running)
    if conditions.is_true(status, "Suspended"):
        return Plan(actions=actions)
    if attempt is not None and attempt.outcome is None:
        status = conditions.with_attempt_ended(status, SUSPENDED, "suspended by spec.runPolicy.suspend", now)
    status = conditions.with_suspended(status, now, snapshot.generation)
    # A Job that a client suspended has no pods, or its pods are already terminating.
    works = any(not job.suspended for job in running) or any(not pod.terminated for pod in snapshot.pods)
    leave = "the workers save a checkpoint and exit" if works else "no worker runs"
    record = EventRecord("Suspended", f"{leave}; set spec.runPolicy.suspend to false to continue")
    return Plan(status=status, actions=actions, event_records=(record,))


# Seconds between reads of a node's status; the cache drops the previous result by then.
_NODE_READ_INTERVAL = 30.0


def orphans(snapshot: Snapshot, now: float) -> Plan:
    """Return the deletion of Jobs and pods that no current attempt owns, and reads of the nodes of stuck pods."""
    actions: list[Action] = []
    wakes: list[float] = []
    current = snapshot.status.current_attempt if snapshot.status else None
    for batch_job in snapshot.batch_jobs:
        # Without a current attempt, `start.first_attempt` adopts the newest Job.
        if current and batch_job.attempt != current and not batch_job.ended and not batch_job.deleting:
            actions.append(EndAttempt(batch_job.name, batch_job.uid))
    owners = {batch_job.uid for batch_job in snapshot.batch_jobs}
    for pod in (*snapshot.pods, *snapshot.predecessors):
        if pod.terminated:
            continue
        if pod.deletion is None:
            # The garbage collector deletes the pods of an earlier job of this name.
            if pod.owner_uid not in owners and pod.job_uid == snapshot.uid:
                owner = names.batch_job(snapshot.key.name, pod.attempt)
                actions.append(DeletePod(pod.name, pod.uid, owner, pod.owner_uid))
            continue
        stuck_at = pod.deletion + snapshot.limits.stuck_pod
        if now < stuck_at:
            wakes.append(stuck_at)
            continue
        # Only the kubelet may end a pod; for a node that is gone or out of service the pod garbage collector does.
        read = ReadNode(pod.node)
        if pod.node and pod.node not in snapshot.lookups.unready_nodes and read not in actions:
            actions.append(read)
        wakes.append(now + _NODE_READ_INTERVAL)
    return Plan(actions=tuple(actions), wake_at=min(wakes, default=None))


def no_live_pods(snapshot: Snapshot) -> bool:
    """Return whether every Indexed Job has ended and every pod is over, those of earlier jobs of this name included.

    Jobs and pods arrive on different watch streams: a Job that has ended says nothing about pods of an earlier state.
    """
    return all(job.ended for job in snapshot.batch_jobs) and all(
        pod.terminated for pod in (*snapshot.pods, *snapshot.predecessors)
    )
