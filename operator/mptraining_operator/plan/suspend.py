"""Suspending gives the machines back: the attempt ends, and resuming starts the next, counted in no budget."""

from __future__ import annotations

from mptraining_api.outcomes import SUSPENDED
from mptraining_operator.plan import conditions
from mptraining_operator.plan.actions import Action, Announcement, EndAttempt, Plan
from mptraining_operator.plan.snapshot import Snapshot


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
    said = Announcement("Suspended", f"{leave}; set spec.runPolicy.suspend to false to go on")
    return Plan(status=status, actions=actions, announcements=(said,))
