"""TensorFlow's single-threaded executor for the fused steps of one CPU device, where it is the faster one.

The usual executor hands operations to threads, which costs about 0.3 microseconds each; a step of a small model is
some 250 of them. The single-threaded one runs the same kernels in topological order, so the bits are the same. It
takes no graph over several devices and no collective operation (core/common_runtime/single_threaded_executor.cc), and
on many processors a model with parallel branches may be slower by it. So both are timed, on steps of the training.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

# Executions by each that decide, and how much faster the single-threaded one must be.
_TIMED = 5
_WORTH_IT = 0.97
# Tracing again takes about as long as the first execution did: worth it where training takes so many times longer.
_TIMES_LONGER = 20.0


def single_threaded() -> AbstractContextManager[Any]:
    """Functions of TensorFlow that are traced and called inside run by one thread."""
    found: AbstractContextManager[Any] = context.function_executor_type("SINGLE_THREADED_EXECUTOR")
    return found


def possible(strategy: Any) -> bool:
    """Whether steps under this strategy run on one CPU device of one process."""
    # TensorFlow has no public name for it, and may move it.
    if strategy.num_replicas_in_sync > 1 or not hasattr(context, "function_executor_type"):
        return False
    mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    if mirrored:
        return all("CPU:" in name for name in strategy.extended.worker_devices)
    return strategy is tf.distribute.get_strategy() and not tf.config.list_logical_devices("GPU")


class ExecutorTrial:
    """Decides which executor the next execution uses: by turns while both are timed, then the faster one."""

    def __init__(self) -> None:
        self.single_threaded = False
        self._began = self._over = False
        # By the number of steps, since only executions of equal length are compared.
        self._usual: dict[int, list[float]] = {}
        self._single: dict[int, list[float]] = {}

    def due(self, *, first_seconds: float, remaining_seconds: float) -> bool:
        """Whether to begin now, given what the first execution took and what training will take from here."""
        return not self._began and remaining_seconds > _TIMES_LONGER * first_seconds

    def begin(self, *, works: bool) -> None:
        """`works` says whether the single-threaded executor takes these steps."""
        self._began, self._over = True, not works
        self.single_threaded = works

    def add(self, steps: int, seconds: float) -> None:
        """An execution of `steps` steps took `seconds`."""
        if not self._began or self._over:
            return
        (self._single if self.single_threaded else self._usual).setdefault(steps, []).append(seconds)
        self.single_threaded = not self.single_threaded
        # The first one under each fills caches.
        usual, single = self._usual.get(steps, [])[1:], self._single.get(steps, [])[1:]
        if min(len(usual), len(single)) >= _TIMED:
            self._over = True
            # The fastest of each: what else the machine does only makes them slower.
            self.single_threaded = min(single) < _WORTH_IT * min(usual)
