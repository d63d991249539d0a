"""The four kinds of jobs. Each kind has all fields that it needs, so that no reader checks for None."""

from __future__ import annotations

from dataclasses import dataclass

from mptraining_api.programs.fields import Ensemble, Prediction, Script
from mptraining_api.resolved_job import ResolvedData, ResolvedJob, ResolvedTraining


@dataclass(frozen=True)
class TrainingJob:
    """Trains a function's or an application's model; `global_batch_size` is before gradient accumulation."""

    job: ResolvedJob
    data: ResolvedData
    training: ResolvedTraining
    global_batch_size: int


@dataclass(frozen=True)
class ScriptJob:
    """Runs a script, or a notebook as one, which trains by its own `fit`."""

    job: ResolvedJob
    script: Script


@dataclass(frozen=True)
class PredictionJob:
    """Predicts records with a trained model; `batch_size` is one replica's."""

    job: ResolvedJob
    data: ResolvedData
    prediction: Prediction
    batch_size: int


@dataclass(frozen=True)
class EnsembleJob:
    """Averages trained models."""

    job: ResolvedJob
    data: ResolvedData
    ensemble: Ensemble


def kind_of(job: ResolvedJob) -> TrainingJob | ScriptJob | PredictionJob | EnsembleJob:
    """Return the job as its kind. Raises ValueError for a job.json that lacks a part of it."""
    program, data = job.program, job.data
    if program.script is not None:
        return ScriptJob(job, program.script)
    if program.prediction is not None and program.prediction.batch_size is not None and data is not None:
        return PredictionJob(job, data, program.prediction, program.prediction.batch_size)
    if program.ensemble is not None and data is not None:
        return EnsembleJob(job, data, program.ensemble)
    if job.training is not None and job.global_batch_size is not None and data is not None:
        return TrainingJob(job, data, job.training, job.global_batch_size)
    raise ValueError(f"job.json of {job.name!r} has no complete program")
