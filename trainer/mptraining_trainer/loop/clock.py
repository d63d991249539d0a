"""The clock inside a graph, by which waiting for a batch is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def graph_clock() -> Callable[[], Any]:
    """A function that adds an operation to a graph: seconds as a float64 scalar, when it runs.

    Under op determinism `tf.timestamp` raises FailedPreconditionError, since its result is another one each time. No
    number of the training depends on these readings, so Python's clock is asked instead, which takes some 20
    microseconds more.
    """
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return _python_clock
    return tf.timestamp  # type: ignore[no-any-return]


def _python_clock() -> Any:
    now = tf.numpy_function(lambda: np.float64(time.perf_counter()), [], tf.float64)
    return tf.ensure_shape(now, [])
