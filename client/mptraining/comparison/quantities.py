"""Quantities of one run: outcome, metrics, speed, time, memory and settings; and the best of several values."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from mptraining.display.text import number
from mptraining.runs import Run
from mptraining_api.run_folder import metric_direction

Better = Literal["higher", "lower"] | None
Value = float | str | None

_BETTER: dict[str | None, Better] = {"up": "higher", "down": "lower"}


_XLA = {"Always": "on", "WherePossible": "where possible", "Never": "off"}
# Fields of job.json that are no setting, or that a named setting below shows.
_NOT_COMPARED = (
    *("version", "name", "image", "placement", "source", "output", "choices", "accelerator", "strategy", "jitCompile"),
    *("alternatives", "workersRange"),
    *("keras", "workers", "replicas", "replicasPerWorker", "globalBatchSize", "precision.policy"),
    *("training.optimizer", "training.epochs", "training.totalSteps", "training.seed", "learningRate.factor"),
)

# The same job run twice differs by as much in speed and memory.
TIE = 0.01


def best(values: Sequence[object], direction: Better, *, able: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the best value and of its ties; empty if all runs that are `able` to be best are ties."""
    numbers = {at: float(value) for at in able if isinstance(value := values[at], int | float) and math.isfinite(value)}
    if direction is None or len(numbers) < 2:
        return ()
    top = (max if direction == "higher" else min)(numbers.values())
    ties = tuple(at for at, value in numbers.items() if abs(value - top) <= TIE * max(abs(value), abs(top)))
    return () if len(ties) == len(numbers) else ties


def step_seconds_direction(batch_sizes: Iterable[object]) -> Better:
    """Return the better direction of the time per step, which is comparable for equal batch sizes only."""
    return "lower" if len(set(batch_sizes)) == 1 else None


def labels(runs: Sequence[Run]) -> tuple[str, ...]:
    """Return a unique label per run: as many last elements of the folder's path as needed."""
    parts = [run.folder.rstrip("/").split("/") for run in runs]
    for depth in range(1, max(map(len, parts), default=0) + 1):
        names = tuple("/".join(part[-depth:]) for part in parts)
        if len(set(names)) == len(names):
            return names
    return tuple(f"{run.folder} ({index + 1})" for index, run in enumerate(runs))


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Return the validation metrics (those that improve upwards first) and the training loss, or else all metrics."""
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))
    validation = [name for name in names if name.startswith("val_")]
    chosen = sorted(validation or names, key=lambda name: better_direction(name) != "higher")
    return chosen + ["loss"] * (bool(validation) and "loss" in names)


def better_direction(name: str) -> Better:
    """Return the direction in which a metric of that name improves; None if unknown."""
    return _BETTER.get(metric_direction(name))


def outcome(run: Run) -> str:
    """Return the reason of the run's end; unfinished, with its last step, if none was reported."""
    if run.reason is not None:
        return run.reason
    return "unfinished" if run.history.progress is None else f"unfinished, step {run.history.progress.step}"


def reported(run: Run, field: str) -> Any:
    """Return a field that both Result and Started have; None before the start."""
    source = run.result or run.history.started
    return None if source is None else getattr(source, field)


def latest(run: Run, field: str) -> float | None:
    """Return a field that both Result and Progress have; None before the first progress."""
    source = run.result or run.history.progress
    return None if source is None else getattr(source, field)


def speed_ratio(run: Run, base: Run) -> float | None:
    speed, other = latest(run, "examples_per_second"), latest(base, "examples_per_second")
    return speed / other if speed is not None and other else None


def input_bound_percent(run: Run) -> float | None:
    source = run.result or run.history.finished
    return source.input_bound_percent if source else None


def named_settings(run: Run) -> dict[str, tuple[str, Value]]:
    """Return title and value of the settings that every comparison shows, by key; None for what is not known.

    What the run reported comes before what its job asked for.
    """
    job = run.job
    rates = run.history.curves.series("learningRate")[1]
    configured = job_settings(job.to_document() if job else {}, float(rates.max()) if len(rates) else None)
    return {
        "precision": ("precision", run.precision or (job.precision.policy if job else None)),
        "xla": ("XLA", configured["xla"]),
        "strategy": ("strategy", reported(run, "strategy") or (job.strategy if job else None)),
        "replicas": ("replicas", reported(run, "replicas_in_sync") or (job.replicas if job else None)),
        "global_batch_size": ("global batch size", batch_size(run)),
        "accelerator": ("accelerator", job.accelerator.title if job else None),
        "keras": ("Keras", keras(run)),
        "optimizer": ("optimizer", configured["optimizer"]),
        "learning_rate": ("learning rate", configured["learning_rate"]),
        "epochs": ("epochs", configured["epochs"]),
        "seed": ("seed", configured["seed"]),
    }


def job_settings(job: Mapping[str, Any], highest_rate: float | None) -> dict[str, Value]:
    """Return the settings in a job.json of any version, by key; None for what is not known.

    The learning rate is the job's, else the name of its schedule, else the highest that the run recorded.
    """
    training, optimizer = nested(job, "training"), nested(job, "training", "optimizer")
    name, config = _class_name(optimizer), nested(optimizer, "config")
    config = config if isinstance(config, Mapping) else {}
    rate = config.get("learning_rate", config.get("learningRate"))
    if isinstance(rate, int | float):
        factor = nested(job, "learningRate", "factor")
        rate = float(rate) * (factor if isinstance(factor, int | float) else 1.0)
    elif isinstance(rate, Mapping):
        rate = _class_name(rate) or "a schedule"
    else:
        rate = highest_rate
    epochs, steps, compiled = nested(training, "epochs"), nested(training, "totalSteps"), nested(job, "jitCompile")
    return {
        "xla": _XLA.get(str(compiled), compiled),
        "optimizer": _optimizer(name, config) if name else None,
        "learning_rate": rate,
        "epochs": f"{steps} steps" if epochs is None and steps is not None else epochs,
        "seed": nested(training, "seed"),
    }


def nested(document: Any, *path: str) -> Any:
    """Return the value at the path in a document of any types; None if there is none."""
    for key in path:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def _class_name(document: Any) -> str | None:
    name = nested(document, "class_name") or nested(document, "className")
    return None if name is None else str(name)


def batch_size(run: Run) -> int | None:
    report: int | None = reported(run, "global_batch_size")
    return report or (run.job.global_batch_size if run.job else None)


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


def other_settings(runs: Sequence[Run]) -> dict[str, list[Value]]:
    """Return the values of every other field of job.json in which the runs differ, by its path."""
    flat = [dict(flattened(run.job.to_document(), _NOT_COMPARED)) if run.job else None for run in runs]
    known = [settings for settings in flat if settings is not None]
    paths = dict.fromkeys(path for settings in known for path in settings)
    different = [path for path in paths if len({settings.get(path) for settings in known}) > 1]
    return {path: [settings.get(path) if settings else None for settings in flat] for path in different}


def setting_text(value: Value) -> str:
    return number(value) if isinstance(value, float) else str(value)


def flattened(value: Any, skipped: Collection[str] = (), path: str = "") -> Iterator[tuple[str, Value]]:
    """Yield the leaves of a document with their paths, such as training.optimizer.config.learning_rate."""
    if path in skipped or value is None:
        return
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flattened(inner, skipped, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for index, inner in enumerate(value):
            yield from flattened(inner, skipped, f"{path}.{index}")
    else:
        plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        yield path, value if plain else json.dumps(value)


def _optimizer(name: str, config: Mapping[str, Any]) -> str:
    """Return the class with its arguments, except the learning rate, which is a setting of its own."""
    rest = {key: value for key, value in config.items() if key not in ("learning_rate", "learningRate", "name")}
    return name + (f"({', '.join(f'{key}={value}' for key, value in sorted(rest.items()))})" if rest else "")
