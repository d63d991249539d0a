"""Variables with one value per replica, and sums over replicas: read, restore, all-reduce, norm and finiteness.

A metric's sums are such variables: each replica sums its own examples, and only a read adds the replicas. Read and
restored per replica, a resume is exact; restored as one sum, the replicas would continue from other numbers, and
float32 sums would differ in the last digits. A collective operation in which all workers take part transfers the values
of other workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

# Collective operations support few types; int32 is one, and every value can be split into such words.
_WORD = 4
# Threads that copy a large state; more than a few do not make memory faster.
_COPY_THREADS = 4
_PIECE_BYTES = 4 << 20


def is_per_replica(variable: Any) -> bool:
    """Return whether each replica has its own value of this TensorFlow variable."""
    return (
        isinstance(variable, tf.distribute.DistributedValues)
        and variable.synchronization == tf.VariableSynchronization.ON_READ
    )


class ReplicaValues:
    """Read and assign variables that were created under one strategy; every worker must make the same calls."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        # Each read is traced once, so that a save does not have to wait for a trace.
        self._gather: dict[tuple[int, ...], Any] = {}

    def take_part_in_read(self, variables: Sequence[Any]) -> None:
        """Take part in another worker's `read`, without copying the values."""
        if self._several_workers:
            self._gather_replicas([variable for variable in variables if is_per_replica(variable)])

    def read(self, variables: Sequence[Any]) -> list[Any]:
        """Return copies of all values as NumPy arrays; a variable with one value per replica is [replicas, …]."""
        per_replica = [variable for variable in variables if is_per_replica(variable)]
        local = self._strategy.experimental_local_results
        of_replicas = iter(
            self._gather_replicas(per_replica)
            if self._several_workers
            else [np.stack([result.numpy() for result in local(variable)]) for variable in per_replica]
        )
        # For a mirrored variable only the first replica is read, which costs half of reading the whole variable.
        mirrored = (variable for variable in variables if not is_per_replica(variable))
        same = [local(variable)[0] for variable in mirrored]
        small = sum(variable.dtype.size * variable.shape.num_elements() for variable in same) <= _PIECE_BYTES
        # `numpy` copies already, and threads would only slow down a small state.
        copies = iter(
            [np.asarray(variable.numpy(), order="C") for variable in same]
            if small
            else _copies([np.asarray(variable.read_value()) for variable in same])
        )
        return [next(of_replicas if is_per_replica(variable) else copies) for variable in variables]

    @contextmanager
    def preserved(self, variables: Sequence[Any]) -> Iterator[None]:
        """Give the variables their present values again at the end; not after an error."""
        before = self.read(variables)
        yield
        self.assign(variables, before)

    def assign(self, variables: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Assign every variable its value, and each replica its own if as many replicas were saved.

        Another number of replicas gets the sum or mean of the saved values, as a read of the variable aggregates them.
        """
        replicas = self._strategy.num_replicas_in_sync
        per_replica = {}
        for number, (variable, array) in enumerate(zip(variables, arrays, strict=True)):
            if array.ndim == len(variable.shape):
                variable.assign(array)
            elif is_per_replica(variable):
                per_replica[number] = array if len(array) == replicas else _redistribute(variable, array, replicas)
            else:
                variable.assign(_aggregate(variable, array))
        if not per_replica:
            return

        def on_replica() -> None:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            for number, array in per_replica.items():
                variables[number].assign(tf.gather(tf.constant(array), replica))

        self._strategy.run(on_replica)

    @property
    def _several_workers(self) -> bool:
        return isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy)

    def _gather_replicas(self, variables: Sequence[Any]) -> list[Any]:
        if not variables:
            return []

        def words() -> Any:
            return tf.concat([_as_words(variable.read_value()) for variable in variables], axis=0)[tf.newaxis]

        def gather() -> Any:
            return self._strategy.gather(self._strategy.run(words), axis=0)

        traced = self._gather.setdefault(tuple(map(id, variables)), tf.function(gather, autograph=False))
        return _split_words(traced().numpy(), variables)


def shape_matches(variable: Any, shape: Sequence[int]) -> bool:
    """Return whether an array of this shape can be assigned: the variable's shape, with or without a replica axis."""
    expected = list(variable.shape)
    return list(shape) == expected or (_aggregation(variable) is not None and list(shape[1:]) == expected)


def _copies(arrays: Sequence[Any]) -> list[Any]:
    """Return contiguous copies. On the CPU an array may be a variable's own memory, which the next step overwrites."""
    copies = [np.empty(array.shape, array.dtype) for array in arrays]
    pieces = [piece for pair in zip(copies, arrays, strict=True) for piece in _pieces(*pair)]
    # Page faults of new memory take the most time, and threads take them in parallel.
    with ThreadPoolExecutor(max_workers=min(_COPY_THREADS, os.cpu_count() or 1)) as pool:
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


def _split_words(rows: Any, variables: Sequence[Any]) -> list[Any]:
    """Return the variables' arrays [replicas, …] from the words of all replicas, [replicas, words]."""
    arrays, first = [], 0
    for variable in variables:
        dtype = np.dtype(variable.dtype.as_numpy_dtype)
        count = int(np.prod(variable.shape, dtype=np.int64)) * max(1, dtype.itemsize // _WORD)
        cut = np.ascontiguousarray(rows[:, first : first + count])
        whole = cut.view(dtype) if dtype.itemsize >= _WORD else cut.astype(np.uint8).view(dtype)
        arrays.append(whole.reshape([len(rows), *variable.shape]))
        first += count
    return arrays


def _as_words(value: Any) -> Any:
    if value.dtype.size >= _WORD:
        return tf.reshape(tf.bitcast(value, tf.int32), [-1])
    if value.dtype.size == 1:
        return tf.reshape(tf.cast(tf.cast(value, tf.uint8), tf.int32), [-1])
    raise NotImplementedError(f"a variable of {value.dtype.name} that every replica keeps apart")


def _aggregation(variable: Any) -> str | None:
    """Return how a read aggregates the replicas' values: Sum, Mean, First, or None for a variable with one value."""
    if variable.synchronization != tf.VariableSynchronization.ON_READ:
        return None
    names = {
        tf.VariableAggregation.SUM: "Sum",
        tf.VariableAggregation.MEAN: "Mean",
        tf.VariableAggregation.ONLY_FIRST_REPLICA: "First",
    }
    return names.get(variable.aggregation, "First")


def _aggregate(variable: Any, array: Any) -> Any:
    how = _aggregation(variable)
    if how == "First":
        return array[0]
    return (array.sum(axis=0) if how == "Sum" else array.mean(axis=0)).astype(array.dtype)


def _redistribute(variable: Any, array: Any, replicas: int) -> Any:
    """Return for each replica its part of the aggregated checkpoint values, [replicas, …]."""
    aggregated = _aggregate(variable, array)
    if _aggregation(variable) != "Sum":
        return np.stack([aggregated] * replicas)
    return np.stack([aggregated, *[np.zeros_like(aggregated)] * (replicas - 1)])


def all_reduce(gradients: Sequence[Any], overwritten: Sequence[bool], *, mean: bool = False) -> list[Any]:
    """Return sums (or means) over all replicas, in replica context; None stays None.

    The gradient of an `overwritten` variable is its next value. Its largest value is taken: the largest of a replica's
    rows, or what follows from earlier ones.
    """
    context = tf.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync
    if replicas == 1:
        # A reduction would copy every tensor.
        return list(gradients)
    operation = tf.distribute.ReduceOp.MEAN if mean else tf.distribute.ReduceOp.SUM
    mine = tf.range(replicas) == context.replica_id_in_sync_group

    def reduce(operation: Any, *, largest: bool) -> Iterator[Any]:
        pairs = zip(gradients, overwritten, strict=True)
        present = [gradient for gradient, overwrites in pairs if gradient is not None and overwrites == largest]
        if largest:
            # tf.distribute has no maximum: sum one row per replica.
            rows = (tf.reshape(mine, [replicas, *[1] * value.shape.rank]) for value in present)
            present = [tf.where(row, value, 0) for row, value in zip(rows, present, strict=True)]
        reduced = list(present)
        # TensorFlow concatenates the values of one call.
        for indices in _indices_by_type(present):
            values = context.all_reduce(operation, [present[index] for index in indices])
            for index, value in zip(indices, values, strict=True):
                reduced[index] = value
        return iter(reduced)

    sums = reduce(operation, largest=False)
    values = reduce(tf.distribute.ReduceOp.SUM, largest=True)
    return [
        None if gradient is None else tf.reduce_max(next(values), axis=0) if overwrites else next(sums)
        for gradient, overwrites in zip(gradients, overwritten, strict=True)
    ]


def run_eagerly(strategy: Any, on_replica: Callable[[], None]) -> None:
    """Run a function on every replica without tracing, and without TensorFlow's warning that this is slow."""
    log, level = tf.get_logger(), tf.get_logger().level
    log.setLevel("ERROR")
    try:
        strategy.run(on_replica)
    finally:
        log.setLevel(level)


def half_square(gradients: list[Any]) -> Any:
    """Return half of the global Euclidean norm's square, a float32 scalar; not finite if any element is not.

    It is what one operation a gradient computes: `tf.linalg.global_norm` takes twice the time in a small step.
    """
    summed = [
        _sum_repeated_rows(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
        for gradient in gradients
        if gradient is not None
    ]
    if not summed:
        return tf.constant(0.0)
    types = {gradient.dtype for gradient in summed}
    if len(types) > 1:
        # A layer may have another type than the rest of its model.
        wide = tf.float64 if tf.float64 in types else tf.float32
        summed = [tf.cast(gradient, wide) for gradient in summed]
    return tf.cast(tf.add_n([tf.nn.l2_loss(gradient) for gradient in summed]), tf.float32)


def _sum_repeated_rows(slices: Any) -> Any:
    """Return the rows of the dense tensor, one for each index; the shape is static, as XLA needs."""
    order = tf.argsort(slices.indices)
    indices = tf.gather(slices.indices, order)
    differs = tf.cast(indices[1:] != indices[:-1], tf.int32)
    begins = tf.concat([tf.zeros_like(indices[:1], tf.int32), differs], axis=0)
    rows = tf.shape(indices)[0]
    return tf.math.unsorted_segment_sum(tf.gather(slices.values, order), tf.cumsum(begins), rows)


def all_finite(values: Sequence[Any]) -> Any:
    """Return whether no element of these floating-point tensors is infinite or NaN, a bool scalar."""
    flat = [tf.reshape(value, [-1]) for value in values]
    # One operation per dtype, because a model may have hundreds of small tensors.
    same = [tf.concat([flat[index] for index in indices], axis=0) for indices in _indices_by_type(flat)]
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in same])


def _indices_by_type(values: Sequence[Any]) -> Iterable[list[int]]:
    """Return the indices of the values of each dtype."""
    indices: dict[Any, list[int]] = {}
    for index, value in enumerate(values):
        indices.setdefault(value.dtype, []).append(index)
    return indices.values()


class CrossReplicaSum:
    """The sum of a few numbers over all workers; a single worker gets its own numbers.

    `count` is the number of values in the sum, one per replica with its worker's value: the sum divided by it is the
    mean over the workers.
    """

    def __init__(self, strategy: Any, workers: int) -> None:
        self._strategy = strategy
        self._several = workers > 1
        self.count = strategy.num_replicas_in_sync if self._several else 1

    def reduce(self, values: Any) -> Any:
        """Return the sum of all workers' values, in cross-replica context."""
        if not self._several:
            return values
        return sum_over_replicas(self._strategy, values)


def sum_over_replicas(strategy: Any, value: Any) -> Any:
    """Return the sum of `value` over all replicas, each with its worker's value; in cross-replica context."""
    shares = strategy.run(tf.identity, args=(value,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)


def assign(variable: Any, value: Any) -> Any:
    """Assign a value to one replica's copy of a variable, for `extended.update`."""
    return variable.assign(value)
