"""The accelerators of a cluster's nodes, as text."""

from __future__ import annotations

from typing import Any

from mptraining.cluster.submit import count_accelerators, missing_accelerator


def node(**labels: str) -> dict[str, Any]:
    return {
        "metadata": {"labels": {f"cloud.google.com/{key.replace('_', '-')}": value for key, value in labels.items()}}
    }


NODES = [
    node(gke_accelerator="nvidia-tesla-t4"),
    node(gke_accelerator="nvidia-tesla-t4"),
    node(gke_tpu_accelerator="tpu-v5-lite-podslice"),
    node(gke_nodepool="cpus"),
    {"metadata": {}},
]


def test_what_is_missing_names_what_is_there() -> None:
    assert dict(count_accelerators(NODES)) == {"nvidia-tesla-t4": 2, "tpu-v5-lite-podslice": 1}
    # What is there, or needs nothing.
    for wanted in ("nvidia-tesla-t4", "tpu-v5-lite-podslice", "cpu", "of-a-newer-version"):
        assert missing_accelerator(wanted, NODES) is None
    told = str(missing_accelerator("nvidia-tesla-v100", NODES))
    assert told.startswith("no node has nvidia-tesla-v100 now: the cluster has nvidia-tesla-t4 (2 nodes), tpu-v5-lite")
    assert "no node of the cluster has an accelerator" in str(missing_accelerator("nvidia-tesla-v100", []))
