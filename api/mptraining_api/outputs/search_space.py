"""Hyperparameters that a program's function asks for, from `python -m mptraining_trainer hyperparameters`."""

from __future__ import annotations

import math
from typing import Any, Literal

from mptraining_api.model import Model

Scalar = bool | int | float | str


class HyperparameterCondition(Model):
    """The value at `path` must be one of `values`."""

    path: str
    values: tuple[Scalar, ...]


class Hyperparameter(Model):
    """One hyperparameter of KerasTuner.

    `path` is the place of its value in the job's spec, `default` the value that the function gets if there is none.
    `low`, `high` (both possible values), `step` and `sampling` are those of an int or a float. With log sampling, the
    step is a factor and not a difference. `values` are those of a choice, a boolean or a fixed value. The
    hyperparameter counts only if all conditions in `when` hold.
    """

    path: str
    kind: Literal["int", "float", "choice", "boolean", "fixed"]
    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = None
    sampling: Literal["linear", "log", "reverse_log"] | None = None
    # Whether the values of a choice have an order.
    ordered: bool | None = None
    values: tuple[Scalar, ...] = ()
    default: Scalar
    when: tuple[HyperparameterCondition, ...] = ()

    def accepts(self, value: Any) -> bool:
        """Return whether the value has the type of this hyperparameter and is in its range."""
        if self.low is None or self.high is None:
            # True equals 1 in Python.
            return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.values)
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "int" else int | float):
            return False
        return self.low <= value <= self.high and self._is_step(value)

    def _is_step(self, value: float) -> bool:
        if self.step is None or self.low is None or self.high is None:
            return True
        if self.sampling == "linear":
            steps = (value - self.low) / self.step
        else:
            # The factors of reverse_log count from the upper end.
            factor = value if self.sampling == "log" else self.high + self.low - value
            steps = math.log(factor / self.low, self.step)
        return math.isclose(steps, round(steps), abs_tol=1e-6)

    def range_text(self) -> str:
        """Return the possible values, for a message."""
        if self.low is None:
            return ", ".join(repr(each) for each in self.values)
        step = "" if self.step in (None, 1) else f" in steps of {self.step}"
        factor = f" times {self.step} each" if self.step is not None else ""
        kind = "an integer" if self.kind == "int" else "a number"
        return f"{kind} from {self.low} to {self.high}{step if self.sampling == 'linear' else factor}"
