"""Workers that the next attempts of a job avoid: those on which a worker failed two of its attempts.

The scheduler uses such a node only where no other fits. The status keeps the node of each of the last ten attempts, so
that at most five workers are avoided, a node is tried again when its failures are older, and a job that succeeds leaves
nothing behind.
"""

from __future__ import annotations

from collections import defaultdict

from mptraining_api import outcomes
from mptraining_api.outcomes import Outcome
from mptraining_api.status import EventRecord, JobStatus
from mptraining_operator.jobs.plan.snapshot import SeenPod

_FAILURES = 2
# Outcomes that a broken device, disk or network of one node explains. Those of memory and storage limits, of data and
# of programs that cannot work are the same on every node.
_SUSPECT = (outcomes.PROGRAM_FAILED, outcomes.STORAGE_FULL, outcomes.STORAGE_UNAVAILABLE, outcomes.NODE_LOST)
# The reasons of DisruptionTarget for which the node is not healthy; a scheduler or an administrator sets the others.
_NODE_DISRUPTIONS = ("DeletionByTaintManager", "TerminationByKubelet", "DeletionByPodGC")


def suspected_node(pod: SeenPod, outcome: Outcome) -> str:
    """Return the node of the pod whose failure decided an attempt, or an empty text if no node is its cause."""
    suspected = pod.disruption in _NODE_DISRUPTIONS if pod.disruption else outcome in _SUSPECT
    return pod.node if suspected else ""


def _failed_attempts(status: JobStatus) -> dict[str, list[int]]:
    """Return the numbers of the attempts that each avoided node failed."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for attempt in status.attempts or ():
        if attempt.node:
            numbers[attempt.node].append(attempt.number)
    return {node: failed for node, failed in sorted(numbers.items()) if len(failed) >= _FAILURES}


def avoided_nodes(status: JobStatus | None) -> tuple[str, ...]:
    return tuple(_failed_attempts(status)) if status else ()


def event_records(status: JobStatus, node: str) -> tuple[EventRecord, ...]:
    """Return the Event for a failure on `node` after which the next attempt avoids it."""
    failed = _failed_attempts(status).get(node)
    if failed is None:
        return ()
    message = (
        f"workers failed on node {node} in attempts {', '.join(map(str, failed))}: the next attempt uses it only if "
        "no other node fits"
    )
    return (EventRecord("NodeAvoided", message, "Warning"),)
