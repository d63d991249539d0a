"""Whether a job may have its nodes now: the administrator's limits, looked at before each attempt.

An attempt that runs is left alone, whatever the limits have become. A job that may never be here fails; one for whose
nodes its namespace has no room waits, like those that were suspended. Who waits does not queue: whichever job fits
first starts. A queue with an order is Kueue's to keep.
"""

from __future__ import annotations

from mptraining_api import outcomes
from mptraining_api.admin_limits import refuse
from mptraining_api.problems import OutsideLimits
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import JobStatus, Phase
from mptraining_operator.plan import conditions, waiting
from mptraining_operator.plan.actions import Announcement, Plan
from mptraining_operator.plan.snapshot import Snapshot

# Nobody tells a job that another one of its namespace has ended.
LOOK_FOR_ROOM = 5.0


def held(snapshot: Snapshot, status: JobStatus, job: ResolvedJob, now: float) -> Plan | None:
    """None when the next attempt may start. `status` is what it would start from."""
    limits = snapshot.limits
    if snapshot.job is not None:
        try:
            refuse(
                snapshot.job,
                job,
                limits.jobs,
                operator_namespace=limits.operator_namespace,
                operator_account=limits.operator_account,
            )
        except OutsideLimits as problem:
            outcome = outcomes.OUTSIDE_LIMITS
            failed = conditions.finished(status, outcome, str(problem), now, snapshot.generation)
            return Plan(status=failed, announcements=(Announcement(outcome.reason, str(problem), "Warning"),))
    most = limits.jobs.nodes_per_namespace
    if most is None or _has_nodes(status) or snapshot.nodes_beside + job.processes <= most:
        return None
    return _wait_for_room(snapshot, status, job.processes, most, now)


def _has_nodes(status: JobStatus) -> bool:
    """Whether it keeps those of its attempt before, which `trim.nodes` counts for the others."""
    running = conditions.condition(status, "Running")
    waits = running is not None and running.reason == waiting.NAMESPACE_FULL
    return bool(status.current_attempt) and status.phase != Phase.SUSPENDED and not waits


def _wait_for_room(snapshot: Snapshot, status: JobStatus, nodes: int, most: int, now: float) -> Plan:
    found = waiting.for_room(Phase.RESTARTING if status.current_attempt else Phase.PENDING, nodes, most)
    before = conditions.condition(status, "Running")
    new = before is None or before.reason != found.reason
    if conditions.holds(status, "Suspended"):
        status = conditions.resumed(status, now, snapshot.generation)
    status = conditions.waiting(status, found.phase, found.reason, found.message, now, snapshot.generation)
    said = (Announcement(found.reason, found.message),) if new else ()
    return Plan(status=status, announcements=said, wake_at=now + LOOK_FOR_ROOM)
