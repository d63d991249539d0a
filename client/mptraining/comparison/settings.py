"""The configuration of a run: the settings that comparisons always name, and every other one in which runs differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mptraining.comparison.values import reported
from mptraining.display.text import number
from mptraining.runs import Run
from mptraining_api.resolved_job import ResolvedJob

_XLA = {"Always": "on", "WherePossible": "where possible", "Never": "off"}
# Fields of job.json that are no setting, or that a named setting below shows.
_NOT_COMPARED = (
    *("version", "name", "image", "placement", "source", "output", "choices", "accelerator", "strategy", "jitCompile"),
    *("alternatives", "workersRange"),
    *("keras", "workers", "replicas", "replicasPerWorker", "globalBatchSize", "precision.policy"),
    *("training.optimizer", "training.epochs", "training.totalSteps", "training.seed", "learningRate.factor"),
)

Setting = str | float | None


def named_settings(run: Run) -> dict[str, tuple[str, Setting]]:
    """Return title and value of the settings that every comparison shows, by key; None for what is not known.

    What the run reported comes before what its job asked for.
    """
    job = run.job
    training = job.training if job else None
    optimizer = training.optimizer if training else None
    return {
        "precision": ("precision", run.precision or (job.precision.policy if job else None)),
        "xla": ("XLA", _XLA[job.jit_compile] if job else None),
        "strategy": ("strategy", reported(run, "strategy") or (job.strategy if job else None)),
        "replicas": ("replicas", reported(run, "replicas_in_sync") or (job.replicas if job else None)),
        "global_batch_size": ("global batch size", batch_size(run)),
        "accelerator": ("accelerator", job.accelerator.title if job else None),
        "keras": ("Keras", keras(run)),
        "optimizer": ("optimizer", _optimizer(optimizer.class_name, optimizer.config or {}) if optimizer else None),
        "learning_rate": ("learning rate", learning_rate(run)),
        "epochs": ("epochs", _length(job)),
        "seed": ("seed", training.seed if training else None),
    }


def batch_size(run: Run) -> int | None:
    reports: int | None = reported(run, "global_batch_size")
    return reports or (run.job.global_batch_size if run.job else None)


def keras(run: Run) -> str | None:
    """Return the version of Keras, as `3.15.1` or `tf_keras 2.21.0`, or its generation if only that is known."""
    started = run.history.started
    known: str | None = started.keras if started else reported(run, "keras") or (run.job.keras if run.job else None)
    return keras_text(known)


def keras_text(known: str | None) -> str | None:
    """Return a version or generation of Keras, as events and results have it, for people."""
    if known is None:
        return None
    return {"Keras3": "3", "Legacy": "tf_keras"}.get(known, known.removeprefix("keras "))


def learning_rate(run: Run) -> Setting:
    """Return the job's learning rate, else the name of its schedule, else the highest that the run recorded."""
    job = run.job
    optimizer = job.training.optimizer if job and job.training else None
    config = (optimizer.config or {}) if optimizer else {}
    given = config.get("learning_rate", config.get("learningRate"))
    if isinstance(given, Mapping):
        return str(given.get("class_name") or given.get("className") or "a schedule")
    if isinstance(given, int | float) and job is not None:
        return float(given) * job.learning_rate.factor
    recorded = [value for _, value in run.history.series("learning_rate")]
    return max(recorded, default=None)


def other_settings(runs: Sequence[Run]) -> dict[str, list[Setting]]:
    """Return the values of every other field of job.json in which the runs differ, by its path."""
    flat = [dict(_flattened(run.job)) if run.job else None for run in runs]
    known = [each for each in flat if each is not None]
    paths = dict.fromkeys(path for each in known for path in each)
    different = [path for path in paths if len({each.get(path) for each in known}) > 1]
    return {path: [each.get(path) if each else None for each in flat] for path in different}


def setting_text(value: Setting) -> str:
    return number(value) if isinstance(value, float) else str(value)


def _flattened(job: ResolvedJob) -> Iterator[tuple[str, Setting]]:
    def walk(value: Any, path: str) -> Iterator[tuple[str, Setting]]:
        if path in _NOT_COMPARED:
            return
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                yield from walk(inner, f"{path}.{key}" if path else str(key))
        else:
            plain = isinstance(value, str | int | float) and not isinstance(value, bool)
            yield path, value if plain else json.dumps(value)

    return walk(job.to_document(), "")


def _optimizer(name: str, config: Mapping[str, Any]) -> str:
    """Return the class with its arguments, except the learning rate, which is a setting of its own."""
    rest = {key: value for key, value in config.items() if key not in ("learning_rate", "learningRate", "name")}
    return name + (f"({', '.join(f'{key}={value}' for key, value in sorted(rest.items()))})" if rest else "")


def _length(job: ResolvedJob | None) -> Setting:
    if job is None or job.training is None:
        return None
    return job.training.epochs if job.training.epochs is not None else f"{job.training.total_steps} steps"
