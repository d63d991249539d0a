"""Elastic jobs on the real scheduler: machines come and go, and the attempts have the workers that can be placed."""

from __future__ import annotations

from typing import Any

GPU = "cloud.google.com/gke-accelerator"
MACHINE: dict[str, Any] = {
    "labels": {GPU: "nvidia-l4"},
    "capacity": {"nvidia.com/gpu": "1"},
    "taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}],
}
RESIZE = 3


def elastic(least: int, most: int) -> dict[str, Any]:
    return {
        "accelerator": {"type": "l4"},
        "workers": None,
        "elastic": {"min": least, "max": most},
        "training": {"epochs": 1, "batchSize": {"global": 24}},
        "runPolicy": {"resizeSeconds": RESIZE},
    }


def grown(cluster: Any, job: str, workers: int) -> dict[str, Any]:
    """Wait until an attempt of that size runs."""
    status: dict[str, Any] = cluster.until(
        job, lambda status: status.get("workers") == workers and status.get("phase") == "Running"
    )
    return status


def test_attempts_of_two_three_four_and_one_worker(cluster: Any) -> None:
    nodes = cluster.control_plane.nodes
    for name in ("one", "two"):
        nodes.create(name, kwok=True, **MACHINE)
    cluster.create("flowers", **elastic(1, 4))
    status = grown(cluster, "flowers", 2)
    assert [(each["workers"], each.get("outcome")) for each in status["attempts"]] == [(4, "Resized"), (2, None)]
    assert status["replicasInSync"] == 2
    assert "2 of 4 workers could be placed" in status["attempts"][0]["message"]

    # The pods of the probe wait for machines, which it takes no longer than the workers need to start.
    cluster.wait(lambda: cluster.child("batch/v1 jobs", "flowers-probe"), lambda probe: probe is not None)
    nodes.create("three", kwok=True, **MACHINE)
    grown(cluster, "flowers", 3)
    cluster.wait(lambda: cluster.child("batch/v1 jobs", "flowers-probe"), lambda probe: probe is not None)
    nodes.create("four", kwok=True, **MACHINE)
    status = grown(cluster, "flowers", 4)
    assert cluster.child("batch/v1 jobs", "flowers-probe") is None

    number = status["currentAttempt"]
    pods = cluster.control_plane.pods
    workers = pods.of_job(cluster.namespace, f"flowers-{number}")
    for pod in workers:
        if pod.node != "one":
            cluster.rest.delete(f"/api/v1/nodes/{pod.node}")
            # What the pod garbage collector does after 40 s.
            pods.disrupted(pod, reason="DeletionByPodGC")
    status = grown(cluster, "flowers", 1)
    assert [each["workers"] for each in status["attempts"]] == [4, 2, 3, 4, 4, 1]
    outcomes = [each.get("outcome") for each in status["attempts"]]
    assert outcomes == ["Resized", "Resized", "Resized", "NodeLost", "Resized", None]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 1)
    strategy = {"decision": "strategy", "value": "None", "reason": "the machines that this attempt got"}
    assert strategy in status["resolved"]
    cluster.wait_for_event("flowers", "Resized: 1 more machine for 2 workers")
    cluster.delete("flowers")
    cluster.wait(lambda: cluster.child("batch/v1 jobs", "flowers-probe"), lambda probe: probe is None)
