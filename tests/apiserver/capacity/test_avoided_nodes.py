"""A node with a broken device, on the real scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed import ControlPlane, Exit

POOL = "avoided-node-test"


@pytest.fixture
def ns(scheduled: ControlPlane, new_namespace: Any, namespace: str) -> Iterator[Any]:
    ns = new_namespace(scheduled, f"{namespace}-avoided").with_kubelet(bind=False)
    ns.operator()
    yield ns
    ns.close()


def test_the_third_attempt_leaves_the_node_that_failed_two_whatever_the_job_prefers(ns: Any) -> None:
    workers = ns.control_plane.nodes
    workers.create("broken", labels={POOL: "fast"})
    workers.create("healthy", labels={POOL: "slow"})
    fast = {"matchExpressions": [{"key": POOL, "operator": "In", "values": ["fast"]}]}
    pool = {"matchExpressions": [{"key": POOL, "operator": "Exists"}]}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [pool]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "preference": fast}],
    }
    ns.create("flowers", workers=1, podTemplate={"affinity": {"nodeAffinity": affinity}})
    for attempt in (1, 2, 3):
        ns.running("flowers", attempt)
        (pod,) = ns.control_plane.pods.of_job(ns.namespace, f"flowers-{attempt}")
        ns.end(f"flowers-{attempt}", Exit(1 if pod.node == "broken" else 0))
    attempts = ns.phase("flowers", "Succeeded")["attempts"]
    assert [(each["outcome"], each.get("node")) for each in attempts] == [
        ("ProgramFailed", "broken"),
        ("ProgramFailed", "broken"),
        ("Succeeded", None),
    ]
    ns.wait_for_event("flowers", "NodeAvoided: workers failed on node broken in attempts 1, 2: the next attempt uses")
