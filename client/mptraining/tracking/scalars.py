"""Scalars of a run from its history, in order of steps."""

from __future__ import annotations

from collections.abc import Iterator

from mptraining.runs import History
from mptraining_api.outputs.scalars import Scalar, ScalarSeries


def scalars(history: History, step: int = -1) -> Iterator[Scalar]:
    """Yield the scalars of that step and of later ones."""
    # The point before tells whether a validation is new.
    first = max(0, int(history.curves.step.searchsorted(step)) - 1)
    series = ScalarSeries()
    for point in history.points_from(first):
        for scalar in series.at_step(point.step, point.time, point.metrics, point.gauges):
            if scalar.step >= step:
                yield scalar
