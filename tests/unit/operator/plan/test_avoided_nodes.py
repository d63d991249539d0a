"""Workers that attempts avoid: the failures that a node is suspected of, and how many of them count."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.status import Attempt, JobStatus
from mptraining_operator.jobs.plan.capacity.avoided_nodes import avoided_nodes, event_records
from mptraining_operator.jobs.plan.end import find_verdict
from mptraining_operator.jobs.plan.snapshot import SeenBatchJob, SeenPod

BATCH_JOB = SeenBatchJob("flowers-1", "batch", "job", attempt=1, created=0.0, ended="Failed")


def failed(**fields: Any) -> SeenPod:
    return SeenPod("pod", "uid", "job", "batch", 1, 0, "Failed", node="gpu-1", **fields)


@pytest.mark.parametrize(
    ("pod", "suspected"),
    [
        (failed(exit_code=1), True),
        (failed(exit_code=139), True),
        (failed(reason="NodeLost"), True),
        (failed(reason="UnexpectedAdmissionError"), True),
        (failed(disruption="DeletionByTaintManager", exit_code=75), True),
        (failed(disruption="TerminationByKubelet", exit_code=75), True),
        # A scheduler or an administrator needs the node.
        (failed(disruption="PreemptionByScheduler", exit_code=75), False),
        (failed(disruption="EvictionByEvictionAPI", exit_code=75), False),
        # The same on every node.
        (failed(exit_code=2), False),
        (failed(exit_code=137, exit_reason="OOMKilled"), False),
        (failed(reason="Evicted"), False),
        # Of a peer's failure, or deleted.
        (failed(exit_code=76), False),
        (failed(exit_code=75, deletion=1.0), False),
    ],
)
def test_a_node_is_suspected_of_a_failure(pod: SeenPod, suspected: bool) -> None:
    assert find_verdict(BATCH_JOB, (pod,)).node == ("gpu-1" if suspected else "")


@pytest.mark.parametrize(
    ("workers", "avoided"),
    [
        ([], ()),
        (["a", None, "b"], ()),
        (["a", "b", None, "a"], ("a",)),
        (["b", "a", "b", "a", "a"], ("a", "b")),
    ],
)
def test_a_node_is_avoided_after_two_attempts_that_failed_on_it(
    workers: list[str | None], avoided: tuple[str, ...]
) -> None:
    attempts = [Attempt(number=number, node=node) for number, node in enumerate(workers, start=3)]
    status = JobStatus(attempts=attempts or None)
    assert avoided_nodes(status) == avoided
    assert [bool(event_records(status, node)) for node in ("a", "b")] == ["a" in avoided, "b" in avoided]
