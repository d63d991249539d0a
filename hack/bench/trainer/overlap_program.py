"""Program of `bench.trainer.determinism`: a map function that takes CPU time, a step that waits as for a GPU.

The trainer imports it by its entry point, so nothing here is patched but the part for `source: tensorflow`.
"""

from __future__ import annotations

import time
from typing import Any

import keras
import tensorflow as tf

SIDE, CLASSES = 96, 10


class Device(keras.layers.Layer):  # type: ignore[misc]
    """Returns its input after `seconds`, in which the processor is idle."""

    def __init__(self, seconds: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.seconds = seconds

    def call(self, inputs: Any) -> Any:
        def wait(value: Any) -> Any:
            time.sleep(self.seconds)
            return value

        with tf.control_dependencies([tf.numpy_function(wait, [tf.reduce_sum(inputs)], tf.float32)]):
            return tf.identity(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def build(seconds: float, source: str) -> Any:
    """Return a small model whose step takes about `seconds`; `source` selects the from_generator that feeds it."""
    if source == "tensorflow":
        _as_it_was()
    inputs = keras.Input((SIDE, SIDE, 3))
    x = keras.layers.GlobalAveragePooling2D()(inputs)
    outputs = keras.layers.Dense(CLASSES)(Device(seconds)(x))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def augment(image: Any, label: Any, seed: Any) -> tuple[Any, Any]:
    """Augment an example as image classifiers do."""
    image = tf.image.resize(tf.cast(image, tf.float32), [SIDE, SIDE], antialias=True)
    image = tf.image.stateless_random_flip_left_right(image, seed)
    image = tf.image.stateless_random_contrast(image, 0.8, 1.2, seed)
    return image / 255.0, label


def _as_it_was() -> None:
    """Use `tf.data.Dataset.from_generator` in the trainer's pipelines, as in its first versions."""
    from mptraining_trainer.data import pipeline as pipelines

    def from_generator(generate: Any, signature: Any) -> Any:
        return tf.data.Dataset.from_generator(generate, output_signature=signature)

    pipelines.from_generator = from_generator  # type: ignore[attr-defined]
