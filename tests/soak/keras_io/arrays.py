"""Small synthetic arrays with the shapes, dtypes and value ranges of `keras.datasets`.

Numbers of rows come from `rows` in the environment's settings, because some scripts slice off a fixed number. Every
array is drawn from its own generator: the global random states, which scripts seed, stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Split = tuple[Array, Array]
IMAGES = {"mnist": (28, 28), "fashion_mnist": (28, 28), "cifar10": (32, 32, 3), "cifar100": (32, 32, 3)}
_CLASSES = {"mnist": 10, "fashion_mnist": 10, "cifar10": 10, "cifar100": 100, "reuters": 46}


def images(name: str, rows: tuple[int, int]) -> tuple[Split, Split]:
    """Return uint8 images in which the class is visible, and labels: (rows,) for mnist, (rows, 1) for cifar."""
    shape, classes = IMAGES[name], _CLASSES[name]

    def split(count: int, seed: int) -> Split:
        draw = np.random.default_rng(seed)
        # Every class occurs, in turn: scripts that select "the images of class 7" find some.
        labels = np.arange(count) % classes
        draw.shuffle(labels)
        noise = draw.integers(0, 128, (count, *shape))
        level = (labels * 127 // classes).reshape(-1, *[1] * len(shape))
        flat = name in ("mnist", "fashion_mnist")
        pixels = (noise + level).astype("uint8")
        return pixels, labels.astype("uint8") if flat else labels.astype("int64").reshape(-1, 1)

    return split(rows[0], 0), split(rows[1], 1)


def token_lists(name: str, rows: tuple[int, int], *, vocabulary: int, maxlen: int | None = None) -> tuple[Split, Split]:
    """Return object arrays of lists of token ids, of varying length, and labels: 0 and 1 for imdb, 46 classes for
    reuters.
    """
    classes = _CLASSES.get(name, 2)

    def split(count: int, seed: int) -> Split:
        draw = np.random.default_rng(seed)
        lists = np.empty(count, dtype=object)
        for each in range(count):
            length = int(draw.integers(20, min(maxlen or 120, 120)))
            lists[each] = [1, *draw.integers(4, vocabulary, length).tolist()]
        return lists, draw.integers(0, classes, count).astype("int64")

    return split(rows[0], 0), split(rows[1], 1)


def table(rows: tuple[int, int], *, columns: int) -> tuple[Split, Split]:
    """Return float64 columns and a target that depends on them."""
    weights = np.random.default_rng(7).normal(size=columns)

    def split(count: int, seed: int) -> Split:
        features = np.random.default_rng(seed).normal(size=(count, columns))
        return features, features @ weights + 20.0

    return split(rows[0], 0), split(rows[1], 1)
