"""Values that differ between replicas: saved and restored per replica, redistributed over other numbers of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_trainer.devices.replica_variables import (
    ReplicaValues,
    half_square,
    is_per_replica,
    shape_matches,
)

SUM, MEAN = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN


def mirrored(replicas: int) -> Any:
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])


def variable(strategy: Any, aggregation: Any, dtype: str = "float32") -> Any:
    """Each replica has [its number + 1, 0.1]."""
    with strategy.scope():
        made = tf.Variable(
            np.zeros(2, dtype),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=aggregation,
        )

    def fill() -> None:
        context = tf.distribute.get_replica_context()
        own = tf.stack(
            [tf.cast(context.replica_id_in_sync_group + 1, dtype), tf.constant(0.1 if "float" in dtype else 0, dtype)]
        )
        made.assign(own)

    strategy.run(fill)
    return made


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_each_replica_gets_its_own_back(dtype: str) -> None:
    strategy = mirrored(2)
    saved = variable(strategy, SUM, dtype)
    values = ReplicaValues(strategy)
    (array,) = values.read([saved])
    assert array.dtype == dtype
    assert array.tolist() == np.array([[1, 0.1], [2, 0.1]]).astype(dtype).tolist()
    with strategy.scope():
        fresh = tf.Variable(
            tf.zeros(2, dtype), synchronization=tf.VariableSynchronization.ON_READ, aggregation=SUM, trainable=False
        )
    values.assign([fresh], [array])
    assert np.array_equal(values.read([fresh])[0], array)


def test_an_ordinary_variable_is_read_as_it_is() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        plain = tf.Variable([1.0, 2.0])
    assert not is_per_replica(plain)
    (array,) = ReplicaValues(strategy).read([plain])
    assert array.tolist() == [1.0, 2.0]
    plain.assign([3.0, 4.0])
    assert array.tolist() == [1.0, 2.0], "a copy"


@pytest.mark.parametrize(("aggregation", "together"), [(SUM, [3.0, 0.2]), (MEAN, [1.5, 0.1])])
@pytest.mark.parametrize("replicas", [1, 3])
def test_another_number_of_replicas_shares_what_there_was(
    aggregation: Any, together: list[float], replicas: int
) -> None:
    two = mirrored(2)
    (array,) = ReplicaValues(two).read([variable(two, aggregation)])
    others = mirrored(replicas)
    fresh = variable(others, aggregation)
    ReplicaValues(others).assign([fresh], [array])
    assert fresh.numpy() == pytest.approx(together)
    alone = tf.Variable([0.0, 0.0], aggregation=aggregation, synchronization=tf.VariableSynchronization.ON_READ)
    ReplicaValues(tf.distribute.get_strategy()).assign([alone], [array])
    assert alone.numpy() == pytest.approx(together)


def test_what_fits() -> None:
    apart = variable(mirrored(2), SUM)
    plain = tf.Variable([1.0, 2.0])
    assert [shape_matches(apart, shape) for shape in ([2], [5, 2], [2, 3], [3])] == [True, True, False, False]
    assert [shape_matches(plain, shape) for shape in ([2], [5, 2])] == [True, False]


def test_the_norm_of_an_embeddings_gradient_is_that_of_the_dense_one() -> None:
    """Rows that a batch looks up several times count once, with their sum: as with accumulation, which adds them."""
    values = tf.constant(np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32))
    for indices in ([4, 1, 4, 4, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6], []):
        sparse = tf.IndexedSlices(values[: len(indices)], tf.constant(indices, tf.int64), tf.constant([9, 3], tf.int64))
        dense = tf.convert_to_tensor(sparse)
        for half in (half_square, tf.function(half_square), tf.function(half_square, jit_compile=True)):
            assert np.sqrt(2 * half([sparse])) == pytest.approx(float(tf.norm(dense)), rel=1e-6)
