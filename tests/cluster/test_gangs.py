"""Jobs that each hold half of the machines that both need, on the real scheduler: one gives its machines back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed import ControlPlane, Exit

LABEL = "gang-test"
GPU = "cloud.google.com/gke-accelerator"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
# Before other pods in the scheduler's queue, without taking their machines.
FIRST = "first-in-the-queue"


@pytest.fixture(scope="module")
def priority(scheduled: ControlPlane) -> str:
    body = {"metadata": {"name": FIRST}, "value": 1000, "preemptionPolicy": "Never"}
    scheduled.rest.post("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    return FIRST


@pytest.fixture
def ns(scheduled: ControlPlane, new_namespace: Any, namespace: str, priority: str) -> Iterator[Any]:
    ns = new_namespace(scheduled, f"{namespace}-gangs").with_kubelet(bind=False)
    yield ns
    ns.close()


def job(pool: str, **scheduling: Any) -> dict[str, Any]:
    """Return a job of two workers that each need a machine of the pool."""
    return {
        "accelerator": {"type": "nvidia-tesla-t4", "countPerNode": 1},
        "nodes": 2,
        "podTemplate": {"nodeSelector": {LABEL: pool}},
        **({"scheduling": scheduling} if scheduling else {}),
    }


def machine(ns: Any, pool: str, number: int) -> None:
    """Add a machine for one worker."""
    labels = {LABEL: pool, GPU: "nvidia-tesla-t4"}
    ns.control_plane.nodes.create(f"{pool}-{number}", labels=labels, capacity={"nvidia.com/gpu": "1"}, taints=[TAINT])


def placed(ns: Any, batch_job: str) -> int:
    found = ns.control_plane.pods.of_job(ns.namespace, batch_job)
    return len([pod for pod in found if pod.node and not pod.terminating])


def hold_half_each(ns: Any, pool: str) -> None:
    """Create two jobs of two workers on two machines, of which each holds one."""
    machine(ns, pool, 1)
    ns.create("left", **job(pool))
    ns.wait(lambda: placed(ns, "left-1"), lambda found: found == 1)
    ns.create("right", **job(pool, priorityClassName=FIRST))
    ns.wait(lambda: ns.control_plane.pods.of_job(ns.namespace, "right-1"), lambda found: len(found) == 2)
    machine(ns, pool, 2)
    ns.wait(lambda: (placed(ns, "left-1"), placed(ns, "right-1")), lambda found: found == (1, 1))


def test_two_jobs_that_each_hold_half_both_succeed(ns: Any) -> None:
    ns.operator(gangReleaseSeconds=2)
    hold_half_each(ns, "halves")
    left = {"left", "right"}

    def train() -> set[str]:
        """End the workers of each job whose workers all run."""
        for name in sorted(left):
            status = ns.status(name)
            if status.get("phase") == "Running":
                ns.end(f"{name}-{status['currentAttempt']}", Exit(0))
            if status.get("phase") == "Succeeded":
                left.discard(name)
        return left

    ns.wait(train, lambda found: not found)
    outcomes = {name: [each["outcome"] for each in ns.status(name)["attempts"]] for name in ("left", "right")}
    assert all(each[-1] == "Succeeded" for each in outcomes.values()), outcomes
    assert "GangReleased" in {outcome for each in outcomes.values() for outcome in each}
    for name in outcomes:
        status = ns.status(name)
        assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)
    released = next(name for name, each in outcomes.items() if each[0] == "GangReleased")
    ns.wait_for_event(released, "GangReleased: 1 of 2 workers had a machine, and the others got none for ")
