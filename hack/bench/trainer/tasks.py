"""The two models that the training figures use, with their input: the same for every contender.

TensorFlow is imported here, so only the children of a benchmark import this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf

TaskName = Literal["mlp", "resnet", "wide-mlp"]

CLASSES = 10


@dataclass(frozen=True)
class Task:
    """`batch` is the examples of each replica; `examples` are kept in memory."""

    name: TaskName
    shape: tuple[int, ...]
    batch: int
    examples: int
    # Units of the hidden layers, or filters of the residual blocks.
    widths: tuple[int, ...]


TASKS: dict[TaskName, Task] = {
    "mlp": Task("mlp", (32,), 32, 8192, (64, 64)),
    "resnet": Task("resnet", (32, 32, 3), 32, 2048, (8, 16, 32)),
    # Enough arithmetic that the precision matters.
    "wide-mlp": Task("wide-mlp", (1024,), 256, 2048, (1024, 1024, 1024)),
}


def model(keras: Any, task: Task) -> Any:
    """Return logits of the task's model; `keras` is the module of either generation."""
    inputs = keras.layers.Input(task.shape)
    x = (_residual_layers if len(task.shape) == 3 else _dense_layers)(keras, inputs, task.widths)
    return keras.Model(inputs, keras.layers.Dense(CLASSES, dtype="float32")(x), name=task.name)


def _dense_layers(keras: Any, x: Any, widths: Sequence[int]) -> Any:
    for units in widths:
        x = keras.layers.Dense(units, activation="relu")(x)
    return x


def _residual_layers(keras: Any, x: Any, widths: Sequence[int]) -> Any:
    layers = keras.layers
    # The stem halves the image, so that a step is milliseconds and the whole benchmark minutes.
    x = layers.Conv2D(widths[0], 3, strides=2, padding="same", use_bias=False)(x)
    for filters, stride in zip(widths, (1, 2, 2), strict=True):
        before = x
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.ReLU()(x)
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        if stride != 1:
            before = layers.Conv2D(filters, 1, strides=stride, use_bias=False)(before)
        x = layers.Add()([x, before])
    return layers.GlobalAveragePooling2D()(x)


def optimizer(keras: Any, task: Task) -> Any:
    if len(task.shape) == 1:
        return keras.optimizers.Adam(1e-3)
    return keras.optimizers.SGD(0.01, momentum=0.9)


def loss(keras: Any, **arguments: Any) -> Any:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **arguments)


def accuracy(keras: Any) -> Any:
    return keras.metrics.SparseCategoricalAccuracy(name="accuracy")


def dataset(task: Task, batch: int, *more: Any) -> Any:
    """Return endless batches (inputs, labels, *more) from memory, prefetched. Autotuning is off: it
    disturbs timings.
    """
    numbers = np.random.default_rng(7)
    inputs = numbers.normal(size=(task.examples, *task.shape)).astype(np.float32)
    labels = numbers.integers(0, CLASSES, task.examples)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # Batched once, cached and repeated: slicing single examples would be most of a small step.
    batches = tf.data.Dataset.from_tensor_slices((inputs, labels, *more)).batch(batch, drop_remainder=True)
    return batches.cache().repeat().prefetch(8).with_options(options)
