"""Metrics of both generations of Keras: those of containers, their results, and how they are updated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LoggedMetric:
    """One name in the logs; `_direction` is Keras' own word for the better way: up, down or None."""

    name: str
    _direction: str | None


@contextmanager
def updated_by(metric: Any, update: Callable[[Callable[..., Any], Any, Any], Any]) -> Iterator[None]:
    """While it lasts, `metric.update_state(values, sample_weight)` is `update(update_state, values, sample_weight)`."""
    before = metric.update_state
    object.__setattr__(metric, "update_state", lambda values, sample_weight=None: update(before, values, sample_weight))
    try:
        yield
    finally:
        object.__setattr__(metric, "update_state", before)


def flat(metrics: Sequence[Any]) -> list[Any]:
    """Each metric, those of a container in its place."""
    return [each for metric in metrics for each in getattr(metric, "metrics", None) or [metric]]


def result_of(metric: Any) -> Any:
    """The metric's result over all replicas."""
    try:
        return metric.result()
    except NotImplementedError:
        # tf_keras wraps `result` so that variables which cast themselves under a mixed policy cannot be read over the
        # replicas; without the wrapper they can.
        return type(metric).result(metric)
