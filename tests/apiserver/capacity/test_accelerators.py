"""The real scheduler places each accelerator's pods, or reports why it cannot; the nodes are simulated."""

from __future__ import annotations

from typing import Any

import pytest

GPU = "cloud.google.com/gke-accelerator"
TPU = "cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
TAINTED = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
TPU_TAINTED = [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]

# accelerator, workers of the job, resources of each node
JOBS: dict[str, tuple[dict[str, Any], int, dict[str, Any]]] = {
    "t4": (
        {"type": "t4", "countPerWorker": 4, "provisioning": "Spot"},
        2,
        {
            "labels": {GPU: "nvidia-tesla-t4", "cloud.google.com/gke-spot": "true"},
            "capacity": {"nvidia.com/gpu": "4"},
            "taints": [*TAINTED, {"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"}],
        },
    ),
    "v5e": (
        {"type": "v5e", "topology": "2x4", "countPerWorker": 8},
        1,
        {
            "labels": {TPU: "tpu-v5-lite-podslice", TOPOLOGY: "2x4"},
            "capacity": {"google.com/tpu": "8"},
            "taints": TPU_TAINTED,
        },
    ),
}


def job(name: str) -> dict[str, Any]:
    accelerator, workers, _ = JOBS[name]
    spec: dict[str, Any] = {"accelerator": accelerator, "runPolicy": {"pendingTimeoutSeconds": 600}}
    # The number of a TPU's workers follows from its topology.
    return spec | ({"workers": None} if "topology" in accelerator else {"workers": workers})


@pytest.mark.parametrize("name", JOBS)
def test_refused_without_the_machines_and_placed_on_them(cluster: Any, name: str) -> None:
    accelerator, workers, machine = JOBS[name]
    # A node of the wrong kind, and one without the taint: neither may get the pods.
    cluster.control_plane.nodes.create(f"{name}-plain", kwok=True)
    cluster.create(name, **job(name))
    # Before the scheduler knows of the new node, its message may be another.
    cluster.waits(name, "Unschedulable", "didn't match Pod's node affinity/selector")

    def placed() -> list[str]:
        pods = cluster.control_plane.pods.of_job(cluster.namespace, f"{name}-1")
        return [node for pod in pods if (node := pod.whole["spec"].get("nodeName"))]

    # With one node too few half of the gang waits, and the message reports it.
    for number in range(workers - 1):
        cluster.control_plane.nodes.create(f"{name}-{number}", kwok=True, **machine)
    cluster.wait(placed, lambda found: len(found) == workers - 1)
    assert cluster.condition(name, "Running")["status"] == "False"
    cluster.control_plane.nodes.create(f"{name}-{workers - 1}", kwok=True, **machine)
    status = cluster.running(name)
    assert status["workers"] == workers
    pods = cluster.control_plane.pods.of_job(cluster.namespace, f"{name}-1")
    assert len(set(placed())) == workers
    for pod in pods:
        limits = pod.whole["spec"]["containers"][0]["resources"]["limits"]
        resource = "google.com/tpu" if "topology" in accelerator else "nvidia.com/gpu"
        assert limits[resource] == str(accelerator["countPerWorker"])
    cluster.delete(name)
