"""The demo's model: three wide layers, so that matrix products take most of a step, as in models that need speed."""

from __future__ import annotations

import keras


def build(width: int = 1024) -> keras.Model:
    """Return a classifier of [8, 8, 1] greys of 0 to 255; the head stays in float32 under every policy."""
    layers = [keras.Input((8, 8, 1)), keras.layers.Rescaling(1.0 / 255.0), keras.layers.Flatten()]
    for _ in range(3):
        layers += [keras.layers.Dense(width, activation="relu"), keras.layers.Dropout(0.3)]
    return keras.Sequential([*layers, keras.layers.Dense(10, dtype="float32")])
