"""Resolved jobs of short specs."""

from __future__ import annotations

from typing import Any

from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import Choice, ResolvedJob
from mptraining_api.spec import MPTrainingJob

CLUSTER = ClusterSettings()
NO_ACCELERATORS = ClusterSettings(cpu_fallback=True)
APPLICATION = {"application": {"name": "ResNet50", "classes": 5}}
FUNCTION = {"function": {"entryPoint": "flowers:build"}}
SCRIPT = {"script": {"path": "train.py"}}
DATA = {"train": ["gs://bucket/train-*.tfrecord"]}


def resolved(
    type: str = "t4",
    *,
    settings: ClusterSettings = CLUSTER,
    accelerator: dict[str, Any] | None = None,
    program: dict[str, Any] = APPLICATION,
    **spec: Any,
) -> ResolvedJob:
    document = {"accelerator": {"type": type} | (accelerator or {}), "program": program} | spec
    if program is not SCRIPT:
        document.setdefault("data", DATA)
    return resolve(MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": document}), settings)


def choice(job: ResolvedJob, field: str) -> Choice:
    (found,) = [choice for choice in job.choices if choice.field == field]
    return found
