"""`export.checkpoint: Best`: the weights with the best value of the monitored metric, kept in every checkpoint.

They are a part of the checkpoint, not a file beside it: so a training that goes on from any checkpoint, and from an
older one when the newest is damaged, exports the very weights that it would have exported undisturbed.
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
from mptraining_api.run_folder import Best, direction

Mode = Literal["min", "max"]
VALIDATION = "val_"


@dataclass(frozen=True)
class Monitor:
    """`metric` as the logs name it, validation's with `val_`; `sure` when something says that `mode` is right."""

    metric: str
    mode: Mode
    sure: bool = True

    @property
    def best(self) -> str:
        """The word for the best value: highest or lowest."""
        return "highest" if self.mode == "max" else "lowest"

    def better(self, value: float, than: float | None) -> bool:
        """Whether `value` is better; no number is better than nothing, NaN never is, an equal value is not."""
        if not math.isfinite(value):
            return False
        if than is None:
            return True
        return value > than if self.mode == "max" else value < than


def mode_of(metric: str, directions: Mapping[str, str | None]) -> Mode | None:
    """Which way is better for `metric` (with or without `val_`), None when nothing says it.

    `directions` is what Keras says of each metric, by name: "up", "down" or None. The loss goes down.
    """
    name = metric.removeprefix(VALIDATION)
    if name == "loss":
        return "min"
    way = directions.get(name) or direction(name)
    return None if way is None else "max" if way == "up" else "min"


def monitor(metric: str, directions: Mapping[str, str | None], *, validated: bool, where: str) -> Monitor:
    """The monitor of a metric that this training has; `directions` as in `mode_of`, one entry a metric.

    Raises InvalidSpec naming `where` for a metric that no log of this training will hold.
    """
    names = known(list(directions), validated=validated)
    if metric not in names:
        hint = nearest(metric, names)
        raise InvalidSpec(
            where, f"{metric!r} is no metric of this training", expected=f"one of {', '.join(names)}", next_step=hint
        )
    mode = mode_of(metric, directions)
    return Monitor(metric, mode or "min", mode is not None)


def known(metrics: Sequence[str], *, validated: bool) -> list[str]:
    """The names that logs have: the loss, the metrics, and validation's."""
    training = list(dict.fromkeys(["loss", *metrics]))
    return training + ([f"{VALIDATION}{name}" for name in training] if validated else [])


FIELD = "spec.export.monitor"


class BestWeights:
    """The best so far: `best` says which step and value, `metrics` what else was measured there, `weights` are host
    arrays in the order of `model.get_weights()`.
    """

    def __init__(self, model: Any, watched: Monitor) -> None:
        self._model = model
        self._watched = watched
        self.best: Best | None = None
        self.metrics: dict[str, float] = {}
        self.weights: list[np.ndarray] = []

    def offer(self, step: int, metrics: Mapping[str, float]) -> None:
        """After validation, or at the end of an epoch; every worker calls it with the same metrics."""
        value = metrics.get(self._watched.metric)
        if value is None or not self._watched.better(value, self.best.value if self.best else None):
            return
        self.best = Best(monitor=self._watched.metric, mode=self._watched.mode, step=step, value=value)
        self.metrics = {name: number for name, number in metrics.items() if np.isfinite(number)}
        self.weights = [np.array(array, copy=True) for array in self._model.get_weights()]

    def state(self) -> JsonValue:
        """What goes into a checkpoint beside the weights; None before the first value."""
        if self.best is None:
            return None
        return {"best": self.best.model_dump(mode="json", by_alias=False), "metrics": dict(self.metrics)}

    def restore(self, state: JsonValue, weights: Sequence[np.ndarray]) -> None:
        """Goes on from a checkpoint; one that was made for another monitor is forgotten."""
        if not isinstance(state, Mapping) or not weights:
            return
        best = Best.model_validate(state["best"])
        if (best.monitor, best.mode) == (self._watched.metric, self._watched.mode):
            self.best, self.weights = best, list(weights)
            self.metrics = {str(name): float(value) for name, value in dict(state["metrics"]).items()}  # type: ignore


def best_weights(
    export: ResolvedExport, model: Any, metrics: Sequence[Any], *, validated: bool, notice: Callable[..., None]
) -> BestWeights | None:
    """What keeps the best weights, None when the last are exported; says what it takes for better.

    Raises InvalidSpec for a monitor that this training does not have.
    """
    if export.checkpoint != "Best" or export.monitor is None:
        return None
    directions = {metric.name: getattr(metric, "_direction", None) for metric in metrics}
    watched = monitor(export.monitor, directions, validated=validated, where=FIELD)
    when = "validation" if watched.metric.startswith(VALIDATION) else "epoch"
    text = f"the weights with the {watched.best} {watched.metric} are exported, looked at after each {when}"
    if not watched.sure:
        text += "; nothing says that lower is better: name the metric ..._accuracy or the like where higher is"
    notice("Best", text, level="Info" if watched.sure else "Warning")
    return BestWeights(model, watched)
