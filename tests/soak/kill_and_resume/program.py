"""The program of the matrix: small, but with every kind of state that one step passes to the next.

A file of plain Keras, as a user's would be; it goes into the source folder of the runs.
"""

import os
from typing import Any

import tensorflow as tf

if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras
else:
    import keras


def build() -> dict[str, Any]:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((6, 6, 1)),
            layers.Flatten(),
            layers.Dense(8),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Dense(3, dtype="float32"),
        ]
    )
    rate = keras.optimizers.schedules.ExponentialDecay(0.01, decay_steps=10, decay_rate=0.9)
    return {
        "model": model,
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "optimizer": keras.optimizers.Adam(rate),
        "metrics": [
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
            # A sum of floats, of which every replica keeps a part.
            keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy"),
        ],
        "preprocess": augment,
    }


def augment(inputs: Any, labels: Any, seed: Any, training: bool) -> tuple[Any, Any]:
    images = tf.cast(inputs, tf.float32)
    if training:
        images = tf.image.stateless_random_flip_left_right(images, seed)
        images += 0.1 * tf.random.stateless_normal((6, 6, 1), seed + 1)
    return images, labels
