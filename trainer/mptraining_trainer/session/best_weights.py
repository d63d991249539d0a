"""`export.checkpoint: Best`: the weights with the best value of the monitored metric, saved in every checkpoint.

They are part of the checkpoint and not a separate file. So a training that resumes from any checkpoint, also from an
older one when the newest is damaged, exports the same weights as an uninterrupted training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import JsonValue

from mptraining_api.problems import InvalidSpec, nearest
from mptraining_api.resolved_job import ResolvedExport
from mptraining_api.run_folder import Best, metric_direction

Mode = Literal["min", "max"]
VALIDATION = "val_"


@dataclass(frozen=True)
class Monitor:
    """`metric` is its name in the logs, `val_` included; `is_mode_known` is False if `mode` is only a default."""

    metric: str
    mode: Mode
    is_mode_known: bool = True

    def is_better(self, value: float, best: float | None) -> bool:
        """Return whether `value` is better; NaN and infinity never are, nor an equal value. None is the worst."""
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        return value > best if self.mode == "max" else value < best


def mode_of(metric: str, directions: Mapping[str, str | None]) -> Mode | None:
    """Return the mode of `metric` (with or without `val_`), None if it is unknown.

    `directions` is the better direction of each metric by Keras, by name: "up", "down" or None. The loss goes down.
    """
    name = metric.removeprefix(VALIDATION)
    if name == "loss":
        return "min"
    way = directions.get(name) or metric_direction(name)
    return None if way is None else "max" if way == "up" else "min"


def monitor(metric: str, directions: Mapping[str, str | None], *, validated: bool, where: str) -> Monitor:
    """Return the monitor of a metric; `directions` as in `mode_of`, one entry per metric of this training.

    Raise InvalidSpec with the field `where` for a metric that no log of this training will contain.
    """
    names = log_names(list(directions), validated=validated)
    if metric not in names:
        hint = nearest(metric, names)
        raise InvalidSpec(
            where, f"{metric!r} is no metric of this training", expected=f"one of {', '.join(names)}", next_step=hint
        )
    mode = mode_of(metric, directions)
    return Monitor(metric, mode or "min", mode is not None)


def log_names(metrics: Sequence[str], *, validated: bool) -> list[str]:
    """Return the names in the logs: the loss, the metrics, and their `val_` names if `validated`."""
    training = list(dict.fromkeys(["loss", *metrics]))
    return training + ([f"{VALIDATION}{name}" for name in training] if validated else [])


FIELD = "spec.export.monitor"


class BestWeights:
    """The best weights so far: `best` is their step and value, `metrics` the other metrics of that step, `weights` the
    host arrays in the order of `model.get_weights()`.
    """

    def __init__(self, model: Any, monitor: Monitor) -> None:
        self._model = model
        self._monitor = monitor
        self.best: Best | None = None
        self.metrics: dict[str, float] = {}
        self.weights: list[np.ndarray] = []

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the weights if the metrics are better. Every worker calls it with the same metrics."""
        value = metrics.get(self._monitor.metric)
        if value is None or not self._monitor.is_better(value, self.best.value if self.best else None):
            return
        self.best = Best(monitor=self._monitor.metric, mode=self._monitor.mode, step=step, value=value)
        self.metrics = {name: number for name, number in metrics.items() if np.isfinite(number)}
        self.weights = [np.array(array, copy=True) for array in self._model.get_weights()]

    def state(self) -> JsonValue:
        """Return the state that a checkpoint saves with the weights; None before the first value."""
        if self.best is None:
            return None
        return {"best": self.best.model_dump(mode="json", by_alias=False), "metrics": dict(self.metrics)}

    def restore(self, state: JsonValue, weights: Sequence[np.ndarray]) -> None:
        """Restore from a checkpoint; ignore the state of another monitor."""
        if not isinstance(state, Mapping) or not weights:
            return
        best = Best.model_validate(state["best"])
        if (best.monitor, best.mode) == (self._monitor.metric, self._monitor.mode):
            self.best, self.weights = best, list(weights)
            self.metrics = {str(name): float(value) for name, value in dict(state["metrics"]).items()}  # type: ignore


def best_weights(
    export: ResolvedExport,
    model: Any,
    directions: Mapping[str, str | None],
    *,
    validated: bool,
    notice: Callable[..., None],
) -> BestWeights | None:
    """Return the keeper of the best weights, None if the last are exported. Report the monitor and its mode.

    Raise InvalidSpec for a monitor that this training does not have.
    """
    if export.checkpoint != "Best" or export.monitor is None:
        return None
    watched = monitor(export.monitor, directions, validated=validated, where=FIELD)
    when = "validation" if watched.metric.startswith(VALIDATION) else "epoch"
    best = "highest" if watched.mode == "max" else "lowest"
    text = f"the weights with the {best} {watched.metric} are exported, compared after each {when}"
    if not watched.is_mode_known:
        text += "; nothing says that lower is better: name the metric ..._accuracy or the like where higher is"
    notice("Best", text, level="Info" if watched.is_mode_known else "Warning")
    return BestWeights(model, watched)
