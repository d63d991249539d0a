"""Values that every replica has of its own, and what they are together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


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


class Speakers:
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
