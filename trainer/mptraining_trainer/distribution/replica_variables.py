"""Variables of which every replica keeps a value of its own: read and restored apart, so that a resume is exact.

A metric's sums are such: each replica adds up its own examples, and only a read adds the replicas. Restored as one sum,
the replicas would go on from other numbers than they had, and float32 sums end in other last digits.
The values of other workers come by a collective operation, in which all of them take part.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

# Collective operations know few types; int32 is among them, and every value can be cut into such words.
_WORD = 4
# Threads that copy a large state; more than a few do not make memory faster.
_COPYING = 4
_PIECE_BYTES = 4 << 20


def kept_apart(variable: Any) -> bool:
    """Whether each replica has its own value of this TensorFlow variable."""
    return (
        isinstance(variable, tf.distribute.DistributedValues)
        and variable.synchronization == tf.VariableSynchronization.ON_READ
    )


class ReplicaValues:
    """Reads and assigns variables that were made under one strategy; every worker must call the same."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        # Traced once: a save must not wait for it each time.
        self._gather: dict[tuple[int, ...], Any] = {}

    def share(self, variables: Sequence[Any]) -> None:
        """Takes part in the `read` of another worker, without copies of its own."""
        if self._several_workers:
            self._of_all([variable for variable in variables if kept_apart(variable)])

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Copies of all values as NumPy arrays; of those kept apart with one more dimension in front, [replicas, …]."""
        apart = [variable for variable in variables if kept_apart(variable)]
        of_replicas = iter(self._of_all(apart) if self._several_workers else map(self._of_this_worker, apart))
        # Of those that are the same everywhere the first replica's, which costs half of what reading the whole does.
        same = [self._strategy.experimental_local_results(each)[0] for each in variables if not kept_apart(each)]
        small = sum(each.dtype.size * each.shape.num_elements() for each in same) <= _PIECE_BYTES
        # `numpy` copies by itself, and threads would only cost a small state time.
        copies = iter(
            [np.asarray(each.numpy(), order="C") for each in same]
            if small
            else _copies([np.asarray(each.read_value()) for each in same])
        )
        return [next(of_replicas if kept_apart(variable) else copies) for variable in variables]

    def assign(self, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Gives every variable its value, and each replica its own where there are as many as were saved.

        Another number of replicas shares what they had together: by sum or mean, as the variable is read.
        """
        replicas = self._strategy.num_replicas_in_sync
        apart = {}
        for number, (variable, array) in enumerate(zip(variables, arrays, strict=True)):
            if array.ndim == len(variable.shape):
                variable.assign(array)
            elif kept_apart(variable):
                apart[number] = array if len(array) == replicas else _spread(variable, array, replicas)
            else:
                variable.assign(_together(variable, array))
        if not apart:
            return

        def on_replica() -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            for number, array in apart.items():
                variables[number].assign(tf.gather(tf.constant(array), replica))

        self._strategy.run(on_replica)

    @property
    def _several_workers(self) -> bool:
        return isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy)

    def _of_this_worker(self, variable: Any) -> Any:
        return np.stack([each.numpy() for each in self._strategy.experimental_local_results(variable)])

    def _of_all(self, variables: Sequence[Any]) -> list[Any]:
        if not variables:
            return []

        def words() -> Any:
            return tf.concat([_words(variable.read_value()) for variable in variables], axis=0)[tf.newaxis]

        def gather() -> Any:
            return self._strategy.gather(self._strategy.run(words), axis=0)

        traced = self._gather.setdefault(tuple(map(id, variables)), tf.function(gather))
        return _cut(traced().numpy(), variables)


def fits(variable: Any, shape: Sequence[int]) -> bool:
    """Whether an array of this shape can be assigned: the variable's own, or one with the replicas in front."""
    own = list(variable.shape)
    return list(shape) == own or (_adds_up(variable) is not None and list(shape[1:]) == own)


def _copies(arrays: Sequence[Any]) -> list[Any]:
    """Contiguous copies. On the CPU an array may be a variable's own memory, which the next step writes to."""
    copies = [np.empty(array.shape, array.dtype) for array in arrays]
    pieces = [piece for pair in zip(copies, arrays, strict=True) for piece in _pieces(*pair)]
    # Fresh memory is what takes the time, page by page, and threads take their pages side by side.
    with ThreadPoolExecutor(max_workers=min(_COPYING, os.cpu_count() or 1)) as pool:
        for _ in pool.map(lambda piece: np.copyto(*piece), pieces):
            pass
    return copies


def _pieces(copy: Any, array: Any) -> Iterator[tuple[Any, Any]]:
    if array.nbytes <= _PIECE_BYTES or not array.flags.c_contiguous:
        yield copy, array
        return
    to, values, length = copy.reshape(-1), array.reshape(-1), _PIECE_BYTES // array.itemsize
    for first in range(0, array.size, length):
        yield to[first : first + length], values[first : first + length]


def _cut(rows: Any, variables: Sequence[Any]) -> list[Any]:
    """The arrays [replicas, …] of the variables from the words of all replicas, [replicas, words]."""
    arrays, first = [], 0
    for variable in variables:
        dtype = np.dtype(variable.dtype.as_numpy_dtype)
        count = int(np.prod(variable.shape, dtype=np.int64)) * max(1, dtype.itemsize // _WORD)
        cut = np.ascontiguousarray(rows[:, first : first + count])
        whole = cut.view(dtype) if dtype.itemsize >= _WORD else cut.astype(np.uint8).view(dtype)
        arrays.append(whole.reshape([len(rows), *variable.shape]))
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


def summed(shares: list[Any]) -> list[Any]:
    """Sums over all replicas, in replica context; None stays None."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        # TensorFlow would copy each of them.
        return shares
    present = [share for share in shares if share is not None]
    sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present))
    return [None if share is None else next(sums) for share in shares]


def run_eagerly(strategy: Any, on_replica: Callable[[], None]) -> None:
    """Runs a function on every replica, not traced, without TensorFlow's warning that this is slow."""
    log, level = tf.get_logger(), tf.get_logger().level
    log.setLevel("ERROR")
    try:
        strategy.run(on_replica)
    finally:
        log.setLevel(level)


def norm_of(gradients: list[Any]) -> Any:
    """The Euclidean norm of all of them together, a float32 scalar; not finite when one number of them is not."""
    return tf.cast(tf.linalg.global_norm(gradients), tf.float32)


def all_finite(values: Sequence[Any]) -> Any:
    """Whether no element of these floating tensors is infinite or NaN, a bool scalar."""
    by_type: dict[Any, list[Any]] = {}
    for value in values:
        by_type.setdefault(value.dtype, []).append(tf.reshape(value, [-1]))
    # One operation for all of a type: a model may have hundreds of small ones.
    fine = [tf.reduce_all(tf.math.is_finite(tf.concat(same, axis=0))) for same in by_type.values()]
    return tf.reduce_all(fine)


class CrossReplicaSum:
    """How workers tell each other a few numbers: alone, a worker hears itself.

    `count` is how many speak, each replica for its worker: a sum divided by it is the mean over the workers.
    """

    def __init__(self, strategy: Any, workers: int) -> None:
        self._strategy = strategy
        self._several = workers > 1
        self.count = strategy.num_replicas_in_sync if self._several else 1

    def heard(self, said: Any) -> Any:
        """The sum of what all say, in cross-replica context."""
        if not self._several:
            return said
        return sum_over_replicas(self._strategy, said)


def sum_over_replicas(strategy: Any, value: Any) -> Any:
    """Each replica of every worker counts its worker's value once; in cross-replica context."""
    shares = strategy.run(tf.identity, args=(value,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)


def assign(variable: Any, value: Any) -> Any:
    """For `extended.update`: one replica's copy of a variable becomes its value."""
    return variable.assign(value)
