"""The job files of a benchmark, and the strategy that the trainer creates for them."""

from __future__ import annotations

import os
from typing import Any

from mptraining_api.launch import WorkerIdentity
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_trainer.devices.strategy import make_strategy

_IDENTITY = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="bench")


def document(name: str, *, train: str, batch: int, training: dict[str, Any], replicas: int = 1) -> dict[str, Any]:
    """Return an MPTrainingJob as a user writes it, everything else at its default."""
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "accelerator": {"type": "cpu", "countPerWorker": replicas},
            "program": {"application": {"name": "mlp", "classes": 10}},
            "data": {"train": [train]},
            "training": {"batchSize": {"perReplica": batch}, **training},
        },
    }


def trainers_strategy(replicas: int) -> Any:
    """Return the strategy that the trainer creates for a CPU job of so many replicas; data and program are not used."""
    written = document("bench", train="unread", batch=32, replicas=replicas, training={"epochs": 1})
    job = resolve(MPTrainingJob.model_validate(written), ClusterSettings())
    return make_strategy(job, _IDENTITY, os.environ)
