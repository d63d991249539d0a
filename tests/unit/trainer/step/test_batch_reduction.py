"""Keras' losses over parts of a batch: the mean over two replicas equals Keras' value for the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.step.batch_reduction import Part, current_part, reduce_as_part, wrap_reductions

ROWS, TOKENS = 8, 5
_NUMBERS = np.random.default_rng(3)
LABELS = _NUMBERS.normal(size=(ROWS, TOKENS, 3)).astype(np.float32)
OUTPUTS = _NUMBERS.normal(size=(ROWS, TOKENS, 3)).astype(np.float32)
# Parts with different numbers of valid tokens, weights and real rows.
MASK = np.arange(TOKENS) < np.array([1, 2, 1, 3, 5, 5, 4, 5])[:, None]
WEIGHTS = np.array([1, 2, 3, 1, 0, 7, 1, 2], np.float32)
REAL = np.array([1, 1, 1, 1, 1, 1, 0, 0], np.float32)


@pytest.fixture
def replicas(keras: Keras) -> Iterator[Any]:
    wrap_reductions(legacy=keras.legacy)
    yield tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert current_part() is None


def loss_of(keras: Keras, reduction: str) -> Any:
    return keras.module.losses.MeanSquaredError(reduction=reduction)


def computed(loss: Any, outputs: Any, labels: Any, weights: Any, mask: Any) -> Any:
    outputs = tf.identity(outputs)
    if mask is not None:
        outputs._keras_mask = mask
    return loss(labels, outputs, sample_weight=weights)


def over_replicas(
    strategy: Any, loss: Any, *, weights: Any = None, mask: Any = None, rows: Any = None, labels: Any = LABELS
) -> float:
    """Return the mean over two replicas, each with one half of the batch."""
    half = ROWS // 2

    def on_replica() -> Any:
        context = tf.distribute.get_replica_context()
        first = context.replica_id_in_sync_group * half

        def own(array: Any) -> Any:
            return (
                None
                if array is None
                else tf.ensure_shape(tf.constant(array)[first : first + half], (half, *array.shape[1:]))
            )

        def mean(value: Any) -> Any:
            return context.all_reduce(tf.distribute.ReduceOp.MEAN, value)

        part = Part(2, mean)
        if rows is not None:
            part.rows, part.mean_rows = own(rows), tf.constant(rows.sum() / 2)
            part.mean_rows_now = part.mean_rows
        with reduce_as_part(part):
            return computed(loss, own(OUTPUTS), own(labels), own(weights), own(mask))

    losses = tf.function(lambda: strategy.run(on_replica))()
    return float(np.mean([result.numpy() for result in strategy.experimental_local_results(losses)]))


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
@pytest.mark.parametrize("mask", [None, MASK], ids=["", "masked"])
def test_two_replicas_have_the_loss_of_the_whole_batch(
    keras: Keras, replicas: Any, reduction: str, weights: Any, mask: Any
) -> None:
    loss = loss_of(keras, reduction)
    if weights is not None:
        weights = np.broadcast_to(weights[:, None], (ROWS, TOKENS)).copy()
    expected = float(computed(loss, OUTPUTS, LABELS, weights, mask))
    assert over_replicas(replicas, loss, weights=weights, mask=mask) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("mask", [None, MASK], ids=["", "masked"])
def test_a_mean_by_weights_divides_by_those_of_all_replicas(keras3: Keras, mask: Any) -> None:
    wrap_reductions(legacy=False)
    loss = loss_of(keras3, "mean_with_sample_weight")
    weights = np.broadcast_to(WEIGHTS[:, None], (ROWS, TOKENS)).copy()
    expected = float(computed(loss, OUTPUTS, LABELS, weights, mask))
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert over_replicas(strategy, loss, weights=weights, mask=mask) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("mask", [None, MASK], ids=["", "masked"])
def test_padded_rows_do_not_count_whatever_they_hold(keras: Keras, replicas: Any, mask: Any) -> None:
    real = int(REAL.sum())
    labels = np.where(REAL[:, None, None] > 0, LABELS, np.float32(np.inf))
    loss = loss_of(keras, "sum_over_batch_size")
    expected = float(computed(loss, OUTPUTS[:real], LABELS[:real], None, None if mask is None else mask[:real]))
    assert over_replicas(replicas, loss, mask=mask, rows=REAL, labels=labels) == pytest.approx(expected, rel=1e-5)


def test_a_loss_without_a_number_is_refused(keras: Keras) -> None:
    wrap_reductions(legacy=keras.legacy)
    with pytest.raises(InvalidProgram, match="over a batch in 2 parts"), reduce_as_part(Part(2, tf.identity)):
        computed(loss_of(keras, "none"), OUTPUTS, LABELS, None, None)


def test_outside_of_a_part_keras_is_as_it_was(keras: Keras, replicas: Any) -> None:
    expected = np.square(LABELS - OUTPUTS).mean()
    assert float(computed(loss_of(keras, "sum_over_batch_size"), OUTPUTS, LABELS, None, None)) == pytest.approx(
        expected
    )
