"""`plan(snapshot, now) -> Plan`: everything that is decided about a job, as one pure function.

Each policy is a function of the same kind that answers None when it has nothing to say; the first that answers
decides. Leftovers of earlier attempts are cleared away beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mptraining_operator.plan import conditions, end, run, start, suspend_and_cleanup
from mptraining_operator.plan.actions import EventRecord, Plan
from mptraining_operator.plan.snapshot import Snapshot

Policy = Callable[[Snapshot, float], Plan | None]


def plan(snapshot: Snapshot, now: float) -> Plan:
    """What to do about the job; the same snapshot and time give the same plan."""
    if snapshot.deleting:
        # Owner references take the children along.
        return Plan()
    if snapshot.status is None:
        return Plan(event_records=(EventRecord("StatusUnreadable", snapshot.problem, "Warning"),))
    found = next((answer for policy in POLICIES if (answer := policy(snapshot, now)) is not None), Plan())
    if found.status == snapshot.status:
        found = replace(found, status=None)
    return _with_leftovers(found, snapshot, now)


def _finished(snapshot: Snapshot, now: float) -> Plan | None:
    """A job that was refused and has been edited since gets another chance; every other end is final."""
    status = snapshot.status
    if status and not status.current_attempt and snapshot.generation > (status.observed_generation or 0):
        return None
    return suspend_and_cleanup.ended(snapshot, now)


def _unreadable_spec(snapshot: Snapshot, now: float) -> Plan | None:  # noqa: ARG001 - every policy is called alike
    """A running job whose spec this version cannot read is left as it is."""
    if snapshot.job is not None or snapshot.status is None or conditions.current(snapshot.status) is None:
        return None
    return Plan(event_records=(EventRecord("SpecUnreadable", snapshot.problem, "Warning"),))


POLICIES: tuple[Policy, ...] = (
    _finished,
    _unreadable_spec,
    end.attempt_ended,
    suspend_and_cleanup.suspended,
    start.first_attempt,
    start.next_attempt,
    start.recreate_missing_job,
    run.running_attempt,
)


def _with_leftovers(found: Plan, snapshot: Snapshot, now: float) -> Plan:
    left = suspend_and_cleanup.orphans(snapshot, now)
    more = tuple(
        each for each in (*left.actions, *suspend_and_cleanup.old_attempts(snapshot)) if each not in found.actions
    )
    if not more and left.wake_at is None:
        return found
    wakes = [each for each in (found.wake_at, left.wake_at) if each is not None]
    return replace(found, actions=(*found.actions, *more), wake_at=min(wakes, default=None))
