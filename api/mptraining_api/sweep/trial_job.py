"""The MPTrainingJob of a trial, and the rounding of the metrics that it reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mptraining_api.spec import API_VERSION, KIND
from mptraining_api.sweep.search_space import trial_spec
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import SWEEP, SWEEP_UID, TRIAL, Trial


def rounded(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics with 6 significant digits: a sweep proposes the same from a status as from a run folder."""
    return {name: float(f"{value:.6g}") if math.isfinite(value) else value for name, value in metrics.items()}


def output_uri(sweep: MPTrainingSweep, number: int) -> str | None:
    """Return the run folder of a trial, which all its jobs share; None if the sweep's job has no output."""
    output = sweep.spec.job.get("output")
    uri = output.get("uri") if isinstance(output, Mapping) else None
    return f"{uri.rstrip('/')}/trials/{number}" if isinstance(uri, str) and uri else None


def job_document(sweep: MPTrainingSweep, trial: Trial, *, epochs: int | None = None) -> dict[str, Any]:
    """Return the MPTrainingJob of the trial's current rung.

    `epochs`: the epochs at which the rung ends; None to train as the job says. The operator adds the owner reference.
    """
    spec = trial_spec(sweep.spec.job, trial.parameters)
    uri = output_uri(sweep, trial.number)
    if uri is not None:
        spec["output"] = {**spec["output"], "uri": uri}
    if epochs is not None:
        spec["training"] = {**(spec.get("training") or {}), "epochs": epochs}
    # The sweep suspends and deletes its jobs itself: a job must not be gone before its result is recorded.
    policy = {
        key: value
        for key, value in (spec.pop("runPolicy", None) or {}).items()
        if key not in ("suspend", "ttlSecondsAfterFinished")
    }
    if policy:
        spec["runPolicy"] = policy
    owner = sweep.metadata
    labels = {SWEEP: owner.name, TRIAL: str(trial.number)} | ({SWEEP_UID: owner.uid} if owner.uid else {})
    metadata = {"name": trial.job, **({"namespace": owner.namespace} if owner.namespace else {}), "labels": labels}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
