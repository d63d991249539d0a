"""Jobs of tests, from their YAML."""

from __future__ import annotations

from typing import Any

from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_api.validation.job_text import read_job_text


def parsed_job(text: str) -> MPTrainingJob:
    """Return the job in a text, as `MPTrainingJob.load` that in a file. Raises InvalidSpec."""
    return MPTrainingJob.parse_written(read_job_text(text, file="job"))


def two_workers(**spec: Any) -> MPTrainingJob:
    """Return the job `flowers` of two workers with a T4 each; `spec` adds fields, or replaces these."""
    return MPTrainingJob.parse(
        {
            "metadata": {"name": "flowers", "namespace": "team"},
            "spec": {
                "accelerator": {"type": "t4"},
                "workers": 2,
                "program": {"application": {"name": "cnn"}},
                "data": {"train": ["gs://bucket/*.tfrecord"]},
                **spec,
            },
        }
    )


def resolved_job(name: str = "numbers", **spec: Any) -> ResolvedJob:
    """Return the resolved job of an application `mlp` on a CPU; `spec` adds fields, replaces these, or drops those that
    are None.
    """
    document = {
        "accelerator": {"type": "cpu"},
        "program": {"application": {"name": "mlp", "classes": 3}},
        "data": {"train": ["a.tfrecord"]},
        **spec,
    }
    given = {field: value for field, value in document.items() if value is not None}
    return resolve(MPTrainingJob.parse({"metadata": {"name": name}, "spec": given}), ClusterSettings())
