"""Keras' loss reductions over a batch that is split into parts: replicas, accumulated batches, padded rows.

Keras reduces a loss over the rows that it receives. A part of a batch needs one correction, so that **the mean of the
parts' losses is the loss of the whole batch**, as `fit` on one device computes it:

| reduction | Keras divides by | correction |
|---|---|---|
| sum_over_batch_size, mean | values of the part | none; with padded rows: the mean number of real rows of the parts |
| the same, with a mask | valid values of the part | the mean number of valid values of the parts |
| mean_with_sample_weight | sum of weights of the part | the mean sum of weights of the parts |
| sum | nothing | times the number of parts |
| a loss that is one number for a batch | - | none: it must be a mean over rows, which `separable_loss` verifies |
| none | - | rejected: several parts have no single loss |

The functions of Keras that every `Loss` calls are wrapped once per process (`keras_internals.wrap_reductions`). Outside
of `reduce_as_part` they behave as in Keras. Inside, Keras' own scaling by the number of replicas is off, since the
training step averages over the parts. Wrapping the compiled losses instead would miss those that a program's own step
or `compute_loss` calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_trainer import keras_internals

_current = threading.local()


@dataclass
class Part:
    """One part of a batch while its loss is computed.

    `count` is the number of parts, or one divided by the share of this part. `mean` returns the mean of a scalar tensor
    over the parts that are computed at the same time (the replicas; only the part itself while batches are
    accumulated). `rows` is None, or a float vector [rows] with 0 for padded rows; `mean_rows` is then the number of
    real rows of the whole batch divided by `count`, `mean_rows_now` that of the parts computed at this time.
    """

    count: Any
    mean: Callable[[Any], Any]
    rows: Any = None
    mean_rows: Any = None
    mean_rows_now: Any = None


@contextmanager
def reduce_as_part(part: Part | None) -> Iterator[None]:
    """In the block, reduce losses of this thread as those of `part`; None for a whole batch."""
    before = getattr(_current, "part", None)
    _current.part = part
    try:
        yield
    finally:
        _current.part = before


def current_part() -> Part | None:
    """Return the part whose loss this thread computes."""
    part: Part | None = getattr(_current, "part", None)
    return part


def wrap_reductions(*, legacy: bool) -> None:
    """Wrap the reductions of Keras 3 or of tf_keras; a second call has no effect."""
    keras_internals.wrap_reductions(current_part, _corrected, legacy=legacy)


def _corrected(
    part: Part, values: Any, mask: Any, reduction: Any, weights: Callable[[Any], Any], reduce: Callable[[Any], Any]
) -> Any:
    values = _real_rows(tf.convert_to_tensor(values), part)
    loss = reduce(values)
    return loss * tf.cast(_correction(part, values, mask, reduction, lambda: weights(loss)), loss.dtype)


def local_value(value: Any) -> Any:
    """Return `value` itself: `Part.mean` where replicas cannot communicate, so that each part uses its own counts."""
    return value


def _real_rows(values: Any, part: Part) -> Any:
    """Return the values with zeros in padded rows, which may hold anything: a weight of 0 would turn inf into NaN."""
    if part.rows is None:
        return values
    if values.shape.rank in (0, None) or values.shape[0] != part.rows.shape[0]:
        raise InvalidProgram(
            "loss",
            f"values of shape {values.shape} for a batch with padded rows, which cannot be told apart in them",
            expected="a loss with one value per example",
            next_step="Set data.remainder: Drop, or return one value per example.",
        )
    keep = tf.reshape(part.rows, [-1, *[1] * (values.shape.rank - 1)]) > 0
    return tf.where(keep, values, tf.zeros_like(values))


def _correction(part: Part, values: Any, mask: Any, reduction: Any, weights: Callable[[], Any]) -> Any:
    """Return the factor for Keras' loss of this part with which the parts' mean is the loss of the whole batch."""
    if values.shape.rank == 0:
        return 1.0
    if reduction in (None, "none"):
        if isinstance(part.count, int) and part.count == 1 and part.rows is None:
            return 1.0
        raise InvalidProgram(
            "loss",
            f"reduction {reduction!r} over a batch in {part.count} parts (replicas, accumulated batches)",
            expected="sum_over_batch_size, mean, mean_with_sample_weight or sum",
            next_step="Choose a reduction, or train on one replica without accumulation.",
        )
    if reduction == "sum":
        return tf.cast(part.count, tf.float32)
    row_weights = weights() if reduction == "mean_with_sample_weight" else mask
    if row_weights is not None:
        return _own_share(part, row_weights)
    return 1.0 if part.rows is None else tf.cast(tf.shape(part.rows)[0], tf.float32) / part.mean_rows


def _own_share(part: Part, weights: Any) -> Any:
    """Return the sum of this part's weights divided by the mean of the parts' sums without padded rows."""
    weights = tf.cast(weights, tf.float32)
    divided_by = tf.reduce_sum(weights)
    real = divided_by if part.rows is None else tf.reduce_sum(_rows_of(weights, part))
    mean = part.mean(real)
    if part.rows is not None:
        # Accumulated batches are weighted by their real rows.
        mean *= part.mean_rows / tf.maximum(part.mean_rows_now, 1e-9)
    return tf.math.divide_no_nan(divided_by, mean)


def _rows_of(weights: Any, part: Part) -> Any:
    if weights.shape.rank in (0, None) or weights.shape[0] != part.rows.shape[0]:
        return weights
    return weights * tf.reshape(part.rows, [-1, *[1] * (weights.shape.rank - 1)])
