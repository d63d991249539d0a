"""The job of `mptj ensemble`: members chosen from runs by a metric, and their weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from mptraining.display.text import number
from mptraining.prediction_job import accelerator_document, records_section
from mptraining.runs import Run
from mptraining_api import run_folder
from mptraining_api.problems import InvalidData, InvalidSpec, nearest
from mptraining_api.run_folder import metric_direction
from mptraining_api.spec import API_VERSION, KIND

DEFAULT_MONITOR = "val_loss"
Mode = Literal["min", "max"]


class _About(BaseModel):
    """What is read of model.json."""

    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The members, the best first, each with its value of `monitor`; `skipped` runs, each with the reason."""

    monitor: str
    mode: Mode
    members: tuple[tuple[Run, float], ...]
    skipped: tuple[tuple[Run, str], ...]


def choose(runs: Sequence[Run], *, monitor: str | None = None, mode: Mode | None = None, top: int = 5) -> Chosen:
    """Return the best `top` runs by `monitor`, by default the metric that all exports were chosen by, or val_loss.

    The value of a run is that of the exported weights. Raises InvalidSpec for a metric that no run has or whose better
    direction is not known, InvalidData if there are fewer than two runs with a model.
    """
    named = {run.job.export.monitor for run in runs if run.job is not None}
    monitor = monitor or (named.pop() if len(named) == 1 else None) or DEFAULT_MONITOR
    mode = mode or _mode(runs, monitor)
    found: list[tuple[Run, float]] = []
    skipped: list[tuple[Run, str]] = []
    seen: set[str] = set()
    for run in runs:
        folder, value = run.folder.rstrip("/"), score(run, monitor)
        if folder in seen:
            skipped.append((run, "is named twice"))
        elif run.result is None or run.result.model is None:
            skipped.append((run, "has no exported model"))
        elif value is None:
            skipped.append((run, f"has no {monitor}"))
        elif not math.isfinite(value):
            skipped.append((run, f"has {monitor} {number(value)}"))
        else:
            found.append((run, value))
        seen.add(folder)
    if not found and any(run.metrics for run in runs):
        known = sorted({name for run in runs for name in run.metrics})
        raise InvalidSpec(
            "--monitor", f"no run has {monitor!r}", expected=f"one of {known}", next_step=nearest(monitor, known)
        )
    if len(found) < 2:
        reasons = "; ".join(f"{run.folder} {reason}" for run, reason in skipped)
        raise InvalidData(
            "RUN", f"{len(found)} of {len(runs)} runs can be members: {reasons}", expected="at least two members"
        )
    found.sort(key=lambda each: each[1], reverse=mode == "max")
    return Chosen(monitor, mode, tuple(found[:top]), tuple(skipped))


def score(run: Run, monitor: str) -> float | None:
    """Return the metric of the weights that the run has exported; None if it has none of that name.

    Raises InvalidData if the best step's metrics are needed and cannot be read, StorageUnavailable if a bucket does not
    answer.
    """
    best = run.result.best if run.result is not None else None
    if best is None or run.result is None or run.result.model is None:
        # The last weights are exported, or none.
        return run.metrics.get(monitor)
    return best.value if best.monitor == monitor else _exported_metrics(run.folder).get(monitor)


def _exported_metrics(folder: str) -> dict[str, float]:
    """Return the metrics of the exported step of the run in `folder`, by its model.json."""
    from mptraining_records.storage import storage

    uri = storage.join(folder, run_folder.MODEL, "model.json")
    try:
        return _About.model_validate_json(storage.read(uri)).metrics
    except ValidationError:
        raise InvalidData(
            uri,
            "cannot be read",
            expected="the description of an exported model, with its metrics",
            next_step="Leave this run out, or write --monitor with the metric of its export.",
        ) from None


def score_weights(chosen: Chosen) -> list[float]:
    """Return weights with the sum 1 in proportion to the scores; where less is better, to their reciprocals.

    Raises InvalidSpec for a score that is not positive.
    """
    for run, value in chosen.members:
        if value <= 0:
            raise InvalidSpec(
                "--weights",
                f"score with the {chosen.monitor} {value:g} of {run.folder}",
                expected="scores above 0",
                next_step="Write --weights equal, or another --monitor.",
            )
    raw = [value if chosen.mode == "max" else 1.0 / value for _, value in chosen.members]
    return [each / sum(raw) for each in raw]


def ensemble_document(name: str, chosen: Chosen, weights: Sequence[float] | None, run_folder: str) -> dict[str, Any]:
    """Return the document of the job, with the records of the best member.

    Raises InvalidSpec if that has no validation data.
    """
    best = chosen.members[0][0]
    if best.job is None or best.job.data is None:
        raise InvalidSpec("RUN", f"{best.folder} is the run of a script, whose records and loss are not known")
    if not best.job.data.validation:
        raise InvalidSpec(
            "RUN",
            f"the job of {best.folder} has no data.validation to evaluate the ensemble on",
            next_step="Train the members with data.validation.",
        )
    ensemble: dict[str, Any] = {"members": [run.folder for run, _ in chosen.members]}
    if weights is not None:
        ensemble["weights"] = list(weights)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {
            "accelerator": accelerator_document(best.job.accelerator),
            "program": {"ensemble": ensemble},
            "data": records_section(best.job),
            "export": {"format": best.job.export.format},
            "output": {"uri": run_folder},
        },
    }


def _mode(runs: Sequence[Run], monitor: str) -> Mode:
    """Return the better direction of a metric, by the runs' own exports or else by its name."""
    for run in runs:
        if run.result is not None and run.result.best is not None and run.result.best.monitor == monitor:
            return run.result.best.mode
    direction = metric_direction(monitor)
    if direction is None:
        raise InvalidSpec(
            "--monitor",
            f"whether more or less of {monitor!r} is better is not known",
            next_step="Write --mode min or --mode max.",
        )
    return "max" if direction == "up" else "min"
