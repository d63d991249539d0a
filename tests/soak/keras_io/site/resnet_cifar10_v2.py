"""In place of a file that a script fetches: a small residual network with the two functions that it calls."""

from typing import Any

from keras import layers


def stem(inputs: Any) -> Any:
    return layers.Conv2D(16, 3, padding="same", activation="relu", kernel_initializer="he_normal")(inputs)


def learner(x: Any, n_blocks: int) -> Any:
    for filters in (32, 64):
        for _ in range(n_blocks):
            hidden = layers.BatchNormalization()(layers.Conv2D(filters, 3, strides=2, padding="same")(x))
            short = layers.Conv2D(filters, 1, strides=2, padding="same")(x)
            x = layers.ReLU()(layers.Add()([short, hidden]))
    return x
