"""Variables of which every replica keeps a value of its own: read and restored apart, so that a resume is exact.

A metric's sums are such: each replica adds up its own examples, and only a read adds the replicas. Restored as one sum,
the replicas would go on from other numbers than they had, and float32 sums end in other last digits.
Every worker must call these functions, because the values of the others come by a collective operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Collective operations know few types; int32 is among them, and every value can be cut into such words.
_WORD = 4


def kept_apart(variable: Any) -> bool:
    """Whether each replica has its own value of this TensorFlow variable."""
    return (
        isinstance(variable, tf.distribute.DistributedValues)
        and variable.synchronization == tf.VariableSynchronization.ON_READ
    )


def read(strategy: Any, variables: Sequence[Any]) -> list[Any]:
    """Copies of all values as NumPy arrays; of those kept apart with one more dimension in front, [replicas, …]."""
    apart = [variable for variable in variables if kept_apart(variable)]
    of_replicas = iter(_gathered(strategy, apart))
    # A copy: the array of a variable on the CPU may be the very memory that the next step writes to.
    return [
        next(of_replicas) if kept_apart(variable) else np.array(variable.numpy(), copy=True, order="C")
        for variable in variables
    ]


def assign(strategy: Any, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
    """Gives every variable its value, and each replica its own where there are as many as were saved.

    Another number of replicas shares what they had together: by sum or mean, as the variable is read.
    """
    apart, values = [], []
    for variable, array in zip(variables, arrays, strict=True):
        if array.ndim == len(variable.shape):
            variable.assign(array)
        elif kept_apart(variable) and len(array) == strategy.num_replicas_in_sync:
            apart.append(variable)
            values.append(array)
        elif kept_apart(variable):
            apart.append(variable)
            values.append(_spread(variable, array, strategy.num_replicas_in_sync))
        else:
            variable.assign(_together(variable, array))
    if not apart:
        return

    def on_replica() -> None:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        for variable, array in zip(apart, values, strict=True):
            variable.assign(tf.gather(tf.constant(array), number))

    strategy.run(on_replica)


def fits(variable: Any, shape: Sequence[int]) -> bool:
    """Whether an array of this shape can be assigned: the variable's own, or one with the replicas in front."""
    own = list(variable.shape)
    return list(shape) == own or (_adds_up(variable) is not None and list(shape[1:]) == own)


def _gathered(strategy: Any, variables: Sequence[Any]) -> list[Any]:
    if not variables:
        return []

    def words() -> Any:
        return tf.concat([_words(variable.read_value()) for variable in variables], axis=0)[tf.newaxis]

    rows = tf.function(lambda: strategy.gather(strategy.run(words), axis=0))().numpy()
    arrays, first = [], 0
    for variable in variables:
        dtype, shape = variable.dtype.as_numpy_dtype, [len(rows), *variable.shape]
        count = int(np.prod(variable.shape, dtype=np.int64)) * max(1, np.dtype(dtype).itemsize // _WORD)
        cut = np.ascontiguousarray(rows[:, first : first + count])
        whole = cut.view(dtype) if np.dtype(dtype).itemsize >= _WORD else cut.astype(np.uint8).view(dtype)
        arrays.append(whole.reshape(shape))
        first += count
    return arrays


def _words(value: Any) -> Any:
    if value.dtype.size >= _WORD:
        return tf.reshape(tf.bitcast(value, tf.int32), [-1])
    if value.dtype.size == 1:
        return tf.reshape(tf.cast(tf.cast(value, tf.uint8), tf.int32), [-1])
    raise NotImplementedError(f"a variable of {value.dtype.name} that every replica keeps apart")


def _adds_up(variable: Any) -> str | None:
    """How a read makes one of the replicas' values: Sum, Mean, First, or None for a variable that has one only."""
    if variable.synchronization != tf.VariableSynchronization.ON_READ:
        return None
    names = {
        tf.VariableAggregation.SUM: "Sum",
        tf.VariableAggregation.MEAN: "Mean",
        tf.VariableAggregation.ONLY_FIRST_REPLICA: "First",
    }
    return names.get(variable.aggregation, "First")


def _together(variable: Any, array: Any) -> Any:
    how = _adds_up(variable)
    if how == "First":
        return array[0]
    return (array.sum(axis=0) if how == "Sum" else array.mean(axis=0)).astype(array.dtype)


def _spread(variable: Any, array: Any, replicas: int) -> Any:
    """For each replica its part of what the replicas of the checkpoint had together, [replicas, …]."""
    together = _together(variable, array)
    if _adds_up(variable) != "Sum":
        return np.stack([together] * replicas)
    return np.stack([together, *[np.zeros_like(together)] * (replicas - 1)])
