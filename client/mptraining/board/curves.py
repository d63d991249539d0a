"""The curves of a run: the columns of all its attempts, without the steps that were trained again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mptraining.board.event_batches import Batch, Column, Started, join, metrics
from mptraining_api.run_folder import metric_direction

_EMPTY = np.empty(0)


@dataclass(frozen=True, slots=True)
class Curves:
    """Arrays with one element per point. `seconds` is the training time until then, without pauses between attempts."""

    step: Column = field(default_factory=lambda: _EMPTY)
    epoch: Column = field(default_factory=lambda: _EMPTY)
    seconds: Column = field(default_factory=lambda: _EMPTY)
    values: dict[str, Column] = field(default_factory=dict)
    steps_per_epoch: int | None = None
    # Seconds of training whose steps were trained again.
    lost_seconds: float = 0.0
    total_seconds: float = 0.0

    def series(self, name: str, x: str) -> tuple[Column, Column]:
        """Return the points of one value where it is known; x is step, epoch or seconds. Empty for unknown names."""
        y = self.values.get(name)
        if y is None:
            return _EMPTY, _EMPTY
        known = ~np.isnan(y)
        axis = {"step": self.step, "epoch": self.epochs, "seconds": self.seconds}[x]
        return axis[known], y[known]

    @property
    def epochs(self) -> Column:
        """Return the passes over the data until each point, in fractions if the length of an epoch is known."""
        return self.step / self.steps_per_epoch if self.steps_per_epoch else self.epoch


def best(values: Mapping[str, Column]) -> dict[str, float]:
    """Return the best value of each metric whose direction is known."""
    found = {}
    for name, column in metrics(values).items():
        direction = metric_direction(name)
        if direction is not None:
            found[name] = float(column.max() if direction == "up" else column.min())
    return found


def last(values: Mapping[str, Column]) -> dict[str, float]:
    """Return the last known value of each metric."""
    return {name: float(column[-1]) for name, column in metrics(values).items()}


def merge(launches: Sequence[Batch]) -> Curves:
    """Merge the launches of a run, in order of time, as `mptraining.runs.history` does.

    If an attempt resumes from, or a recovery rolls back to, an earlier step, the points after that step are dropped.
    """
    seconds, past = [], 0.0
    for each in launches:
        begin = each.first if each.begin is None else each.begin
        seconds.append(past + each.time - begin)
        past += each.last - begin
    whole = join(launches)
    if whole is None:
        return Curves()
    elapsed = np.concatenate(seconds)
    keep = whole.step <= _limits(len(whole.step), whole.cuts)
    return Curves(
        step=whole.step[keep],
        epoch=whole.epoch[keep],
        seconds=elapsed[keep],
        values={name: column[keep] for name, column in whole.values.items()},
        steps_per_epoch=next(
            (each.steps_per_epoch for each in reversed(whole.others) if isinstance(each, Started)), None
        ),
        lost_seconds=_lost(elapsed, keep),
        total_seconds=past,
    )


def _limits(count: int, cuts: Sequence[tuple[int, int]]) -> Column:
    """Return for each point the smallest step to which training went back after it; infinity if it did not."""
    after = np.full(count + 1, np.inf)
    for at, step in cuts:
        after[at] = min(after[at], step)
    limits: Column = np.minimum.accumulate(after[::-1])[::-1][1:]
    return limits


def _lost(elapsed: Column, keep: NDArray[np.bool_]) -> float:
    """Return the time that was spent up to the points that are dropped, from the point before each."""
    if not len(elapsed) or bool(keep.all()):
        return 0.0
    took = np.diff(elapsed, prepend=0.0)
    return float(took[~keep].clip(min=0.0).sum())
