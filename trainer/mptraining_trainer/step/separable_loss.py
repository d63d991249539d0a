"""A check that a loss can be computed in parts: the loss of a batch must be the mean of the losses of its halves.

Keras' losses are separable with `batch_reduction`. A function that returns one number for a batch, an override of
`compute_loss` or `add_loss` may not be: it is called with the first examples, whole and in halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_trainer import keras_internals
from mptraining_trainer.devices.replica_variables import run_eagerly
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.step.batch_reduction import Part, reduce_as_part, wrap_reductions

# Rounding errors; under a mixed policy a product keeps 8 to 11 bits. Losses that are no mean differ by far more.
_TOLERANCE = {"float32": 5e-5, "mixed_bfloat16": 3e-2, "mixed_float16": 1e-2}

Batch = tuple[Any, Any, Any]


def needs_sums(strategy: Any, compiled: CompiledModel, batch: Batch, parts: int, *, padded: bool) -> bool:
    """Return whether the loss needs sums over the parts while it is computed, as for a mask or a sum of weights.

    `batch` are the first examples (inputs, labels, weights) as arrays. Runs the model eagerly, a few times, on every
    replica. Raises InvalidProgram for a loss that is not a mean over examples, and, if batches may be `padded`, for one
    in which padded rows cannot be separated; a loss that draws random numbers cannot be checked.
    """
    results: list[bool | InvalidProgram] = []

    def on_replica() -> None:
        try:
            results.append(_check(compiled, batch, parts, padded=padded))
        except InvalidProgram as problem:
            results.append(problem)

    try:
        run_eagerly(strategy, on_replica)
    finally:
        compiled.model.reset_metrics()
    if isinstance(results[0], InvalidProgram):
        raise results[0]
    return results[0]


def _check(compiled: CompiledModel, batch: Batch, parts: int, *, padded: bool) -> bool:
    rows = len(tf.nest.flatten(batch[0])[0]) // 2 * 2
    if rows == 0:
        return False
    wrap_reductions(legacy=compiled.keras.legacy)
    # A list, since every order may find a reason to refuse.
    sums = [_check_in_order(compiled, order, rows, parts, padded=padded) for order in _orders(batch)]
    return any(sums)


def _check_in_order(compiled: CompiledModel, batch: Batch, rows: int, parts: int, *, padded: bool) -> bool:
    inputs, labels, weights = batch
    if not isinstance(weights, tuple):
        # The weights are varied, so that two halves do not have the same weight by chance.
        batch = inputs, labels, (np.asarray(weights).T * np.linspace(0.5, 1.5, len(weights))).T.astype(weights.dtype)
    whole, halves = (slice(0, rows),), (slice(0, rows // 2), slice(rows // 2, rows))
    values = [_loss_of(compiled, batch, whole)[0] for _ in range(2)]
    separate, sums = _loss_of(compiled, batch, halves, padded=padded)
    tolerance = _TOLERANCE.get(compiled.keras.policy, 3e-2)
    if not np.isfinite([*values, separate]).all() or values[0] != values[1]:
        return sums
    # The tolerance is smaller, because an add_loss may be a small part of the loss; zeros in its sums change no other
    # bit.
    if padded and _relative_difference(*_with_padding(compiled, batch, rows)) > tolerance / 20:
        raise InvalidProgram(
            "loss",
            "padded or skipped rows change it (an add_loss or an activity regularizer counts them), and a batch here "
            f"has {parts} parts (replicas, accumulated batches)",
            expected="batches in which every row counts",
            next_step="Set data.remainder: Drop and badRecords.action: Fail, or train on one replica.",
        )
    # An untrained model may predict nearly the same for every row, which hides a loss that mixes rows.
    drawn = (
        _loss_of(compiled, batch, whole, drawn=True)[0],
        _loss_of(compiled, batch, halves, padded=padded, drawn=True)[0],
    )
    for loss, mean in ((values[0], separate), drawn):
        if np.isfinite([loss, mean]).all() and _relative_difference(loss, mean) > tolerance:
            raise InvalidProgram(
                "loss",
                f"{rows} examples give {loss:.6g}, the mean of their halves is {mean:.6g}: no mean over examples, "
                f"and a batch here has {parts} parts (replicas, accumulated batches)",
                expected="a loss whose value for a batch is the mean over its examples",
                next_step="Return one value per example, or train on one replica without accumulation.",
            )
    return sums


def _orders(batch: Batch) -> list[Batch]:
    """Return the rows in the order of each label, or of the inputs without labels; equal ones in that of the inputs.

    Two halves then do not have the same mean by chance, also if a small data set repeats its rows.
    """
    inputs, labels, _ = batch
    keys = [_row_means(arrays) for arrays in (inputs, labels)]
    orders = [np.lexsort([*keys[0], key]) for key in keys[1] or keys[0][-1:]]
    return [tf.nest.map_structure(lambda array, order=order: array[order], batch) for order in orders]


def _row_means(arrays: Any) -> list[Any]:
    numeric = [array for array in tf.nest.flatten(arrays) if array.dtype.kind in "biuf"]
    return [array.reshape(len(array), -1).mean(axis=1) for array in numeric]


def _loss_of(
    compiled: CompiledModel, batch: Batch, pieces: Sequence[slice], *, padded: bool = False, drawn: bool = False
) -> tuple[float, bool]:
    """Return the mean of the losses of pieces, each reduced as one of the parts, and whether sums were needed.

    `drawn` replaces the model's predictions by random numbers.
    """
    seen: list[list[Any]] = []
    # The pieces are computed one after the other: the first pass records the values that replicas would sum at the same
    # time.
    for piece in pieces:
        recorded: list[Any] = []
        _piece(compiled, batch, piece, _part(pieces, _record_means(recorded), padded=padded), drawn=drawn)
        seen.append(recorded)
    means = [sum(float(value) for value in values) / len(pieces) for values in zip(*seen, strict=True)]
    parts = [_part(pieces, _replay_means(means), padded=padded) for _ in pieces]
    values = [_piece(compiled, batch, piece, part, drawn=drawn) for piece, part in zip(pieces, parts, strict=True)]
    return float(np.mean(values)), bool(means)


def _relative_difference(first: float, second: float) -> float:
    return abs(first - second) / max(abs(first), abs(second), 1e-3)


def _with_padding(compiled: CompiledModel, batch: Batch, rows: int) -> tuple[float, float]:
    """Return the loss of the first half of some rows, and of all of them with the second half as padding."""
    half = rows // 2
    part = Part(1, tf.identity)
    part.rows = tf.concat([tf.ones([half]), tf.zeros([half])], axis=0)
    part.mean_rows = part.mean_rows_now = tf.constant(float(half))
    alone = _piece(compiled, batch, slice(0, half), Part(1, tf.identity))
    return alone, _piece(compiled, batch, slice(0, rows), part)


def _part(pieces: Sequence[slice], mean: Callable[[Any], Any], *, padded: bool) -> Part:
    part = Part(len(pieces), mean)
    if padded:
        rows = pieces[0].stop - pieces[0].start
        part.rows, part.mean_rows, part.mean_rows_now = tf.ones([rows]), tf.constant(float(rows)), float(rows)
    return part


def _record_means(recorded: list[Any]) -> Callable[[Any], Any]:
    def mean(value: Any) -> Any:
        recorded.append(value)
        return value

    return mean


def _replay_means(means: Sequence[float]) -> Callable[[Any], Any]:
    left = iter(means)
    return lambda value: tf.constant(next(left), value.dtype)


def _piece(compiled: CompiledModel, batch: Batch, piece: slice, part: Part, *, drawn: bool = False) -> float:
    tensors = tf.nest.map_structure(lambda array: tf.convert_to_tensor(array[piece]), batch)
    inputs, labels, weights = compiled.keras_arguments(tensors)
    with reduce_as_part(part):
        predictions = compiled.predictions(inputs, training=False)
        if drawn:
            predictions = tf.nest.map_structure(lambda tensor: _draw(tensor, piece), predictions)
        loss = compiled.loss(inputs, labels, predictions, weights, training=True)
    return float(tf.reduce_mean(tf.cast(loss, tf.float32)))


def _draw(tensor: Any, piece: slice) -> Any:
    """Return numbers of the tensor's shape and mask, which depend on the row: logits and probabilities alike."""
    if not tensor.dtype.is_floating or tensor.shape.rank == 0 or tensor.shape[0] != piece.stop - piece.start:
        return tensor
    numbers = np.random.default_rng(7).uniform(0.05, 0.95, (piece.stop, *tensor.shape[1:]))  # noqa: TID251 - seeded
    drawn = tf.constant(numbers[piece], tensor.dtype)
    if (mask := keras_internals.mask_of(tensor)) is not None:
        keras_internals.set_mask(drawn, mask)
    return drawn
