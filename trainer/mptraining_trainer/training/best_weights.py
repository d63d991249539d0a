"""`export.checkpoint: Best`: the weights with the best value of the monitored metric, kept in every checkpoint.

They are a part of the checkpoint, not a file beside it: so a training that goes on from any checkpoint, and from an
older one when the newest is damaged, exports the very weights that it would have exported undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import JsonValue

from mptraining_api.resolved_job import ResolvedExport
from mptraining_api.run_folder import Best
from mptraining_trainer.training.monitor import VALIDATION, Monitor, monitor

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
