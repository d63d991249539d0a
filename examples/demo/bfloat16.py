"""Prints how many times as fast this CPU multiplies matrices in bfloat16 as in float32, measured with TensorFlow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

ROWS, WIDTH, ROUNDS = 256, 1024, 100


def multiplication(dtype: tf.DType) -> Callable[[], tf.Tensor]:
    left, right = (tf.cast(tf.random.normal((rows, WIDTH), seed=7), dtype) for rows in (ROWS, WIDTH))
    multiply = tf.function(lambda: tf.matmul(left, right))
    multiply()
    return multiply


def seconds(multiply: Callable[[], tf.Tensor]) -> float:
    start = time.perf_counter()
    multiply().numpy()
    return time.perf_counter() - start


if __name__ == "__main__":
    in_float32, in_bfloat16 = multiplication(tf.float32), multiplication(tf.bfloat16)
    # In turn, and the fastest of each: other programs on this machine only add time.
    times = [(seconds(in_float32), seconds(in_bfloat16)) for _ in range(ROUNDS)]
    print(f"{min(first for first, _ in times) / min(second for _, second in times):.3f}")
