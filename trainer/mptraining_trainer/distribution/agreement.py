"""Do all workers see the same data and the same checkpoint? Asked once, before the first step.

Each worker looks for itself. Where one sees a folder of its own, or a file more than the others, weights of different
trainings would be averaged without a word, or a collective operation would wait for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from mptraining_api.problems import InvalidData, ResumeRefused
from mptraining_trainer.distribution.replicas import sum_over_replicas

_PIECES = 8


def require_agreement(strategy: Any, *, data: str, checkpoint: str, folder: str) -> None:
    """Every worker must call it. Raises InvalidData or ResumeRefused, on all of them, when one says something else."""
    same_data, same_checkpoint = _agree(strategy, (data, checkpoint))
    if not same_data:
        raise InvalidData(
            "spec.data",
            "the workers do not find the same records",
            next_step="Put the files where all workers see them, and write nothing to them while a job starts.",
        )
    if not same_checkpoint:
        raise ResumeRefused(
            folder,
            "the workers do not find the same checkpoint",
            expected="one folder that all of them share",
            next_step="Name a bucket or a volume that every node mounts, or set training.resume: Never.",
        )


def sum_over_workers(strategy: Any, workers: int) -> Callable[[float], float]:
    """A function that adds up the numbers that the workers call it with; with several, each must call it."""
    if workers == 1:
        return lambda value: value
    count = strategy.num_replicas_in_sync // workers
    total = _summing(strategy)
    return lambda value: float(total(tf.constant(value, tf.float32)).numpy()) / count


def _agree(strategy: Any, texts: tuple[str, ...]) -> list[bool]:
    """For each text whether it is the same everywhere."""
    digests = [list(hashlib.sha256(text.encode()).digest()[:_PIECES]) for text in texts]
    said = tf.constant(digests, tf.float32)
    # n numbers are equal if and only if n times the sum of their squares is the square of their sum. They are bytes,
    # so that float32, which every collective knows, is exact for 256 replicas.
    count = strategy.num_replicas_in_sync
    sums, squares = _sum_over_replicas(strategy, said), _sum_over_replicas(strategy, said * said)
    return [
        all(count * int(square) == int(sum) ** 2 for sum, square in zip(*each, strict=True))
        for each in zip(sums, squares, strict=True)
    ]


def mean_over_workers(strategy: Any, values: Sequence[float]) -> list[float]:
    """What all workers come to together, the same on each; every worker must call it with as many values."""
    if not values:
        return []
    sums = _sum_over_replicas(strategy, tf.constant(list(values), tf.float32))
    return [float(value) / strategy.num_replicas_in_sync for value in sums]


def gathered(strategy: Any, seat: int, workers: int, values: Sequence[int]) -> list[list[int]]:
    """What each worker says, by its index; every worker must call it with as many small whole numbers."""
    own = [[float(value) if worker == seat else 0.0 for value in values] for worker in range(workers)]
    sums = _sum_over_replicas(strategy, tf.constant(own, tf.float32))
    replicas_each = strategy.num_replicas_in_sync / workers
    return [[round(float(value) / replicas_each) for value in row] for row in sums]


def meet(strategy: Any) -> None:
    """Returns when every worker has called it."""
    _sum_over_replicas(strategy, tf.constant(0.0))


def _sum_over_replicas(strategy: Any, values: Any) -> Any:
    return _summing(strategy)(values).numpy()


def _summing(strategy: Any) -> Any:
    return tf.function(partial(sum_over_replicas, strategy))
