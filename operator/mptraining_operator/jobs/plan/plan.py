"""The planner, `plan(snapshot, now) -> Plan`: an ordered list of policies, as one pure function.

Each policy returns a plan, or None if it does not apply; the first plan is used. Deletions of orphans and of old
attempts are added to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mptraining_api.status import EventRecord, JobStatus
from mptraining_operator.jobs.plan import conditions, elastic, end, kueue, run, start, suspend_and_cleanup
from mptraining_operator.jobs.plan.actions import Plan
from mptraining_operator.jobs.plan.snapshot import Snapshot

Policy = Callable[[Snapshot, JobStatus, float], Plan | None]


def plan(snapshot: Snapshot, now: float) -> Plan:
    """Return the plan for the job; the same snapshot and time give the same plan."""
    if snapshot.deleting:
        # The garbage collector deletes the children by their owner references.
        return Plan()
    status = snapshot.status
    if status is None:
        return Plan(event_records=(EventRecord("StatusUnreadable", snapshot.problem, "Warning"),))
    if kueue.managed_elsewhere(snapshot):
        # Nothing but its ttlSecondsAfterFinished.
        return suspend_and_cleanup.clean_up_finished(snapshot, status, now) or Plan()
    decided = next((result for policy in POLICIES if (result := policy(snapshot, status, now)) is not None), Plan())
    if snapshot.job is not None:
        # For an edit that needs no other write, as spec.runPolicy.suspend of a finished job: kstatus waits for it.
        observed = conditions.with_generation_observed(decided.status or status, snapshot.generation)
        decided = replace(decided, status=observed)
    if decided.status == status:
        decided = replace(decided, status=None)
    decided = _with_deletions(elastic.with_size(decided, snapshot, now), snapshot, now)
    return kueue.with_queue_report(decided, snapshot, now)


def _finished(snapshot: Snapshot, status: JobStatus, now: float) -> Plan | None:
    """Clean up a finished job. A job that was refused before its first attempt and edited since is planned again."""
    if not status.current_attempt and snapshot.generation > (status.observed_generation or 0):
        return None
    return suspend_and_cleanup.clean_up_finished(snapshot, status, now)


def _unreadable_spec(snapshot: Snapshot, status: JobStatus, _: float) -> Plan | None:
    """Leave a running job unchanged if this version cannot read its spec."""
    if snapshot.job is not None or conditions.current_attempt(status) is None:
        return None
    return Plan(event_records=(EventRecord("SpecUnreadable", snapshot.problem, "Warning"),))


POLICIES: tuple[Policy, ...] = (
    _finished,
    _unreadable_spec,
    end.attempt_ended,
    suspend_and_cleanup.suspended,
    kueue.preempted,
    start.first_attempt,
    start.next_attempt,
    start.create_children,
    run.running_attempt,
)


def _with_deletions(decided: Plan, snapshot: Snapshot, now: float) -> Plan:
    orphans = suspend_and_cleanup.orphans(snapshot, now)
    deletions = (*orphans.actions, *suspend_and_cleanup.delete_old_attempts(snapshot))
    more = tuple(deletion for deletion in deletions if deletion not in decided.actions)
    if not more and orphans.wake_at is None:
        return decided
    wakes = [at for at in (decided.wake_at, orphans.wake_at) if at is not None]
    return replace(decided, actions=(*decided.actions, *more), wake_at=min(wakes, default=None))
