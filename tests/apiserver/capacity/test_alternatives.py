"""A job with alternatives on a real API server with the real scheduler, while simulated nodes come and go."""

from __future__ import annotations

from typing import Any

from mptraining_api.accelerators import lookup

GPU = "cloud.google.com/gke-accelerator"
TAINTS = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
V100, L4, T4 = "v100", "l4", "t4"
# Seconds that a machine is tried for: longer than the scheduler needs on a busy machine to place a pod that fits.
TRY = 5


def create(cluster: Any, name: str, **accelerator: Any) -> None:
    """Create a job whose machines are of the pool of this name, so that no other test's nodes fit."""
    machines = {
        "type": V100,
        "countPerWorker": 8,
        "tryForSeconds": TRY,
        "alternatives": [
            {"type": L4, "countPerWorker": 4},
            {"type": T4, "countPerWorker": 2},
        ],
    }
    cluster.create(
        name,
        workers=1,
        accelerator=machines | accelerator,
        podTemplate={"nodeSelector": {"pool": name}},
        runPolicy={"pendingTimeoutSeconds": 600},
    )


def add_node(cluster: Any, pool: str, type: str, gpus: int) -> None:
    cluster.control_plane.nodes.create(
        f"{pool}-{type}",
        kwok=True,
        labels={GPU: lookup(type).gke, "pool": pool},
        capacity={"nvidia.com/gpu": str(gpus)},
        taints=TAINTS,
    )


def tried(status: dict[str, Any]) -> list[tuple[str, str | None]]:
    return [((V100, L4, T4)[each.get("machine", 0)], each.get("outcome")) for each in status["attempts"]]


def test_it_runs_on_the_last_alternative_when_only_that_is_there(cluster: Any) -> None:
    add_node(cluster, "last", T4, 2)
    create(cluster, "last")
    status = cluster.running("last", attempt=3)
    assert tried(status) == [(V100, "NoCapacity"), (L4, "NoCapacity"), (T4, None)]
    resolved = {each["decision"]: each["value"] for each in status["resolved"]}
    assert (resolved["machine"], status["replicasInSync"], resolved["batchSize"]) == (f"{T4} x 2 (OnDemand)", 2, "64")
    assert (status["infrastructureRestarts"], status["applicationFailures"]) == (0, 0)
    (pod,) = cluster.control_plane.pods.of_job(cluster.namespace, "last-3")
    assert pod.whole["spec"]["nodeName"] == f"last-{T4}"
    assert pod.whole["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    events = cluster.wait_for_event("last", f"NoCapacity: {L4} x 4 (OnDemand) did not come within {TRY} s")
    (first,) = [event for event in events if event.startswith(f"NoCapacity: {V100} x 8")]
    assert "Unschedulable" in first
    assert first.endswith(f"Next: {L4} x 4 (OnDemand) for {TRY} s")
    cluster.delete("last")
