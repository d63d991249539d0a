"""Hyperparameters that a program's function asks for, from `python -m mptraining_trainer hyperparameters`."""

from __future__ import annotations

from typing import Literal

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
