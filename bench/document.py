"""The job file of a benchmark, as a user writes it."""

from __future__ import annotations

from typing import Any


def document(name: str, *, train: str, batch: int, training: dict[str, Any], replicas: int = 1) -> dict[str, Any]:
    """An MPTrainingJob as a user writes it, everything else at its default."""
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "accelerator": {"type": "cpu", "countPerNode": replicas},
            "program": {"application": {"name": "mlp", "classes": 10}},
            "data": {"train": [train]},
            "training": {"batchSize": {"perReplica": batch}, **training},
        },
    }
