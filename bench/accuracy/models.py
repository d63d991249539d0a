"""The models whose accuracy is compared between policies, as function programs; `width` makes them smaller."""

from __future__ import annotations

from typing import Any

import keras

# Adam reaches it well before the last epoch.
_RATE = 2e-3


def mlp(width: int) -> dict[str, Any]:
    """Two hidden layers with dropout."""
    layers = keras.layers
    hidden = [layer for _ in range(2) for layer in (layers.Dense(16 * width, activation="relu"), layers.Dropout(0.2))]
    return _trained(keras.Sequential([_scaled(), layers.Flatten(), *hidden, *_head()]))


def cnn(width: int) -> dict[str, Any]:
    """Three convolutions with BatchNormalization, and dropout."""
    layers = keras.layers
    blocks = [
        layer
        for times in (1, 2, 4)
        for layer in (
            layers.Conv2D(width * times, 3, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
        )
    ]
    pooled = layers.GlobalAveragePooling2D()
    return _trained(keras.Sequential([_scaled(), *blocks, pooled, layers.Dropout(0.2), *_head()]))


def resnet(width: int) -> dict[str, Any]:
    """A stem and three residual blocks."""
    layers = keras.layers
    inputs = keras.Input((32, 32, 3))
    x = layers.Rescaling(1 / 255)(inputs)
    x = layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False)(x)
    for filters, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
        before = x if stride == 1 else layers.Conv2D(filters, 1, strides=stride, use_bias=False)(x)
        for step in (stride, 1):
            x = layers.BatchNormalization(momentum=0.9)(x)
            x = layers.ReLU()(x)
            x = layers.Conv2D(filters, 3, strides=step, padding="same", use_bias=False)(x)
        x = layers.Add()([x, before])
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    x = layers.GlobalAveragePooling2D()(x)
    for layer in _head():
        x = layer(x)
    return _trained(keras.Model(inputs, x))


def _scaled() -> Any:
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Rescaling(1 / 255)])


def _head() -> list[Any]:
    return [keras.layers.Dense(10, name="head", dtype="float32")]


def _trained(model: Any) -> dict[str, Any]:
    return {
        "model": model,
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "optimizer": keras.optimizers.Adam(_RATE),
        "metrics": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    }
