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

The functions of Keras that every `Loss` calls (`keras.src.losses.loss.reduce_weighted_values`; in tf_keras
`losses_utils.compute_weighted_loss`) are wrapped once per process. Outside of `reduce_as_part` they behave as in Keras.
Inside, Keras' own scaling by the number of replicas is off, since the training step averages over the parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_trainer.model.compiled import replace_update

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
    # tf_keras applies the mask before it reduces.
    mask: Any = field(default=None, init=False)


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
    if legacy:
        _wrap_tf_keras()
    else:
        _wrap_keras_3()


def _wrap_keras_3() -> None:
    from keras.src.losses import loss as module

    reduce = module.reduce_weighted_values
    if hasattr(reduce, "of_keras"):
        return

    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: Any = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        part = current_part()
        if part is None:
            return reduce(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)
        values = _real_rows(tf.convert_to_tensor(values), part)
        loss = reduce(values, sample_weight=sample_weight, mask=mask, reduction=reduction, dtype=dtype)

        def weights() -> Any:
            return module.apply_mask(sample_weight, mask, dtype=loss.dtype, reduction=reduction)

        return loss * tf.cast(_correction(part, values, mask, reduction, weights), loss.dtype)

    reduce_weighted_values.of_keras = reduce  # type: ignore[attr-defined]
    module.reduce_weighted_values = reduce_weighted_values
    for name in ("scale_loss_for_distribution", "unscale_loss_for_distribution"):
        setattr(module, name, _unless_part(getattr(module, name)))


def _wrap_tf_keras() -> None:
    from tf_keras.src import losses
    from tf_keras.src.utils import losses_utils as module

    reduce, apply_mask = module.compute_weighted_loss, module.apply_valid_mask
    if hasattr(reduce, "of_keras"):
        return

    def apply_valid_mask(values: Any, weights: Any, mask: Any, reduction: Any) -> Any:
        part = current_part()
        if part is not None:
            part.mask = mask
        return apply_mask(values, weights, mask, reduction)

    def compute_weighted_loss(
        values: Any, sample_weight: Any = None, reduction: Any = "sum_over_batch_size", name: Any = None
    ) -> Any:
        part = current_part()
        if part is None:
            return reduce(values, sample_weight=sample_weight, reduction=reduction, name=name)
        mask, part.mask = part.mask, None
        values = _real_rows(tf.convert_to_tensor(values), part)
        loss = reduce(values, sample_weight=sample_weight, reduction=reduction, name=name)
        return loss * tf.cast(_correction(part, values, mask, reduction, lambda: None), loss.dtype)

    compute_weighted_loss.of_keras = reduce  # type: ignore[attr-defined]
    module.compute_weighted_loss, module.apply_valid_mask = compute_weighted_loss, apply_valid_mask
    module.scale_loss_for_distribution = _unless_part(module.scale_loss_for_distribution)
    own = losses.Loss._get_reduction

    def _get_reduction(loss: Any) -> Any:
        # tf_keras rejects the default reduction outside of `compile`, since it cannot know the user's mean.
        if current_part() is not None and loss.reduction in ("auto", "sum_over_batch_size"):
            return "sum_over_batch_size"
        return own(loss)

    losses.Loss._get_reduction = _get_reduction
    _wrap_reported_losses()


def _wrap_reported_losses() -> None:
    """Make tf_keras report the training loss: with reduction `sum` it reports the loss times the number of replicas."""
    from tf_keras.src.engine.compile_utils import LossesContainer

    call = LossesContainer.__call__

    def reported(container: Any, *arguments: Any, **named: Any) -> Any:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if current_part() is None or replicas == 1 or not container.built:
            return call(container, *arguments, **named)
        sizes: list[Any] = []
        total = container._total_loss_mean
        with ExitStack() as ends:
            ends.enter_context(replace_update(total, lambda _update, _value, weight: sizes.append(weight)))
            for loss, mean in zip(container._losses, container._per_output_metrics, strict=True):
                if mean is not None and loss.reduction == "sum":
                    ends.enter_context(
                        replace_update(
                            mean, lambda update, value, weight: update(value / replicas, sample_weight=weight)
                        )
                    )
            loss = call(container, *arguments, **named)
        if sizes:
            total.update_state(loss, sample_weight=sizes[0])
        return loss

    LossesContainer.__call__ = reported


def local_value(value: Any) -> Any:
    """Return `value` itself: `Part.mean` where replicas cannot communicate, so that each part uses its own counts."""
    return value


def _unless_part(scale: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def scaled(value: Any) -> Any:
        return value if current_part() is not None else scale(value)

    return scaled


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
    own = weights() if reduction == "mean_with_sample_weight" else mask
    if own is not None:
        return _own_share(part, own)
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
