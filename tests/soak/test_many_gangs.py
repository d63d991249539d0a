"""Gangs: jobs that each hold half of the machines that both need, on the real scheduler; PodGroups that come and go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed import ControlPlane, Exit

LABEL = "gang-test"
GPU = "cloud.google.com/gke-accelerator"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


@pytest.fixture
def ns(scheduled: ControlPlane, new_namespace: Any, namespace: str) -> Iterator[Any]:
    ns = new_namespace(scheduled, f"{namespace}-gangs").with_kubelet(bind=False)
    yield ns
    ns.close()


def job(pool: str, **pod_template: Any) -> dict[str, Any]:
    """Return a job of two workers that each need a machine of the pool."""
    return {
        "accelerator": {"type": "nvidia-tesla-t4", "countPerNode": 1},
        "nodes": 2,
        "podTemplate": {"nodeSelector": {LABEL: pool}, **pod_template},
    }


def machine(ns: Any, name: str, pool: str, *taints: dict[str, str]) -> None:
    """Add a machine for one worker."""
    labels, taints = {LABEL: pool, GPU: "nvidia-tesla-t4"}, (TAINT, *taints)
    ns.control_plane.nodes.create(name, labels=labels, capacity={"nvidia.com/gpu": "1"}, taints=taints)


def train_all(ns: Any, *names: str) -> dict[str, list[str]]:
    """End the workers of each job whose workers all run, until all jobs have ended; return the attempts' outcomes."""
    left = set(names)

    def train() -> set[str]:
        for name in sorted(left):
            status = ns.status(name)
            if status.get("phase") == "Running":
                ns.end(f"{name}-{status['currentAttempt']}", Exit(0))
            if status.get("phase") == "Succeeded":
                left.discard(name)
        return left

    ns.wait(train, lambda found: not found, seconds=600)
    return {name: [each["outcome"] for each in ns.status(name)["attempts"]] for name in names}


def test_many_jobs_on_few_machines_all_succeed(ns: Any) -> None:
    """Eight jobs of two and three workers on four machines, in whatever order the scheduler places them."""
    ns.operator(gangReleaseSeconds=10)
    for number in range(4):
        machine(ns, f"many-{number}", "many")
    names = [f"gang-{number}" for number in range(8)]
    for number, name in enumerate(names):
        ns.create(
            name, **{**job("many"), "nodes": 2 + number % 2, "training": {"epochs": 1, "batchSize": {"global": 6}}}
        )
    outcomes = train_all(ns, *names)
    assert {outcome for each in outcomes.values() for outcome in each} <= {"Succeeded", "GangReleased"}
