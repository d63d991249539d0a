"""What becomes of a job that has ended: leftovers go, and after its time to live the job itself."""

from __future__ import annotations

from mptraining_operator.plan import conditions
from mptraining_operator.plan.actions import Action, DeleteJob, EndAttempt, ForgetAttempt, Plan
from mptraining_operator.plan.deadlines import policy
from mptraining_operator.plan.snapshot import Snapshot

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
