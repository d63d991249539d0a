"""The job files of a benchmark, and the resolved jobs that the trainer gets from them."""

from __future__ import annotations

import os
from typing import Any

from mptraining_api.launch import WorkerIdentity
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_trainer.distribution.strategy import make_strategy

SEAT = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="bench")


def document(name: str, *, train: str, batch: int, training: dict[str, Any], replicas: int = 1) -> dict[str, Any]:
    """Return an MPTrainingJob as a user writes it, everything else at its default."""
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


def resolved(*, batch: int, replicas: int, steps_per_execution: int | None) -> ResolvedJob:
    """Return the job by which a `Loop` on this machine is set up; its data and program are not used."""
    training: dict[str, Any] = {"epochs": 1}
    if steps_per_execution is not None:
        training["stepsPerExecution"] = steps_per_execution
    written = document("bench", train="unread", batch=batch, replicas=replicas, training=training)
    return resolve(MPTrainingJob.model_validate(written), ClusterSettings())


def trainers_strategy(replicas: int) -> Any:
    """Return the strategy that the trainer creates for a CPU job of so many replicas."""
    return make_strategy(resolved(batch=32, replicas=replicas, steps_per_execution=None), SEAT, os.environ)
