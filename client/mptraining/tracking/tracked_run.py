"""A run on a tracking server: its parameters, tags and identity, and what the server has of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from mptraining_api.model import Model
from mptraining_api.resolved_job import ResolvedJob

# MLflow's oldest limit; W&B has none that matters here.
_LONGEST_VALUE = 500
# Not settings of the training: reasons, and what follows from other fields.
_NOT_PARAMETERS = ("version", "choices", "placement", "tracking", "output")


class State(Model):
    """What a tracking server has of a run: its id there, its page, and the last step that it has."""

    run_id: str
    url: str | None = None
    step: int = -1


class States(Model):
    """`tracking.json` in the run folder: the states by server, `mlflow` or `wandb`."""

    version: int = 1
    states: dict[str, State] = Field(default_factory=dict)


def run_key(name: str, first_incarnation: str) -> str:
    """Return the id of a run on every tracking server: the same for all attempts, and another for another run."""
    return hashlib.sha256(f"{name} {first_incarnation}".encode()).hexdigest()[:16]


def parameters(job: ResolvedJob) -> dict[str, str]:
    """Return the job's settings as text by path, such as `training.optimizer.config.learning_rate`."""
    document = {name: value for name, value in job.to_document().items() if name not in _NOT_PARAMETERS}
    return {path: text[:_LONGEST_VALUE] for path, text in _flat("", document)}


def tags(job: ResolvedJob, folder: str) -> dict[str, str]:
    """Return what people filter runs by, and the link to the run folder."""
    found = {
        "mptraining.job": job.name,
        "mptraining.run_folder": folder,
        "mptraining.accelerator": job.accelerator.type,
        "mptraining.precision": job.precision.policy,
        "mptraining.strategy": job.strategy,
        "mptraining.keras": job.keras,
    }
    return {name: str(value) for name, value in found.items()}


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _flat(f"{path}.{name}" if path else str(name), below)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for number, below in enumerate(value):
            yield from _flat(f"{path}.{number}", below)
    elif value is not None:
        yield path, value if isinstance(value, str) else json.dumps(value)
