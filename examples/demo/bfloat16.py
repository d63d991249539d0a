"""Prints how many times as fast this CPU multiplies matrices in bfloat16 as in float32, measured with TensorFlow."""

from __future__ import annotations

import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

ROWS, WIDTH, ROUNDS = 256, 1024, 7


def seconds(dtype: tf.DType) -> float:
    left, right = (tf.cast(tf.random.normal((rows, WIDTH), seed=7), dtype) for rows in (ROWS, WIDTH))
    multiply = tf.function(lambda: tf.matmul(left, right))
    multiply()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        multiply().numpy()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    print(f"{seconds(tf.float32) / seconds(tf.bfloat16):.3f}")
