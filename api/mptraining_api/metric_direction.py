"""Which way a metric improves, by its name: what Keras 3 tells of some metrics alone, and tf_keras of none."""

from __future__ import annotations

import re
from typing import Literal

# Parts of names; "io_u" is what Keras makes of IoU.
_LOWER = (
    *("loss", "error", "entropy", "divergence", "perplexity", "hinge", "poisson", "false"),
    *("mse", "mae", "rmse", "mape", "msle"),
)
# Whole words, or how a name ends: "acc" is in many words that have nothing to do with it.
_HIGHER = (
    *("accuracy", "acc", "auc", "precision", "recall", "sensitivity", "specificity", "iou", "io_u"),
    *("fmeasure", "f1", "fbeta", "r2", "similarity", "true", "dice"),
)


def direction(name: str) -> Literal["up", "down"] | None:
    """The better way for a metric of that name, with or without `val_`; None when the name does not say."""
    name = name.lower()
    # First: a mean_squared_error_of_accuracy is an error still.
    if any(word in name for word in _LOWER):
        return "down"
    words = re.split(r"[^a-z0-9]+", name)
    bare = name.rstrip("_0123456789")
    return "up" if any(word in words or bare.endswith(word) for word in _HIGHER) else None
