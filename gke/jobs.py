"""The job of each pool, and what became of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gke.costs import JOB_HOURS
from gke.pools import Pool
from gke.settings import Settings
from mptraining_api.spec import API_VERSION

# Minutes that a job waits for its machine: a cold GPU node takes about five, and after this Google has none.
_PENDING_SECONDS = 1200


def name(pool: Pool) -> str:
    return f"try-{pool.name}"


def records(settings: Settings) -> str:
    """Return the folder of the records in the bucket."""
    return f"gs://{settings.bucket}/records"


def document(settings: Settings, pool: Pool) -> dict[str, Any]:
    """Return the MPTrainingJob of a pool: a small network on records of the bucket, everything else at its default."""
    return {
        "apiVersion": API_VERSION,
        "kind": "MPTrainingJob",
        "metadata": {"name": name(pool), "namespace": settings.namespace},
        "spec": {
            "accelerator": dict(pool.job_accelerator),
            "program": {"application": {"name": "cnn", "weights": "none", "classes": 10}},
            "data": {"train": [f"{records(settings)}/train-*.tfrecord"]},
            "training": {"epochs": 20, "batchSize": {"perReplica": 128}, "seed": 7},
            "checkpoint": {"everySteps": 200},
            "output": {"uri": f"gs://{settings.bucket}/runs/{name(pool)}"},
            "runPolicy": {
                "pendingTimeoutSeconds": _PENDING_SECONDS,
                # The time that `plan` counts: a job that hangs does not keep its machine.
                "activeDeadlineSeconds": int(JOB_HOURS * 3600),
                "backoffLimit": 1,
            },
            "podTemplate": {"serviceAccountName": settings.account},
        },
    }


def finished(job: Mapping[str, Any]) -> bool:
    """Return whether the job has ended, by its condition."""
    return any(one["type"] == "Finished" and one["status"] == "True" for one in _conditions(job))


def summary(pool: Pool, job: Mapping[str, Any]) -> str:
    """Return one line: the end and its reason, the policy, the speed."""
    status = job.get("status") or {}
    progress = status.get("progress") or {}
    parts = [f"{pool.name:5} {status.get('phase', 'Pending'):10}"]
    for label, value in (
        ("policy", status.get("precision")),
        ("strategy", status.get("strategy")),
        ("examples/s", progress.get("examplesPerSecond")),
    ):
        if value is not None:
            parts.append(f"{label} {value}")
    message = next((one.get("message", "") for one in _conditions(job) if one["type"] == "Failed"), "")
    return "  ".join([*parts, *([message] if message else [])])


def _conditions(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list((job.get("status") or {}).get("conditions") or ())
