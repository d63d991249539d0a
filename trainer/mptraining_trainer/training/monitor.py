"""A metric by whose value weights are judged: which way is better, and whether one value is better than another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mptraining_api.metric_direction import direction
from mptraining_api.problems import InvalidSpec, nearest

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
