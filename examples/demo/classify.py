"""Loads an exported model with Keras alone and shows what it makes of digits that it was not trained on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

SHADES = " .:*#"
# Four digits fit a terminal of 80 columns.
SHOWN = 4


def main(model_folder: Path, data: Path) -> None:
    model = keras.models.load_model(model_folder / "model.keras")
    held_out = np.load(data)
    images, labels = held_out["image"], held_out["label"]
    predicted = np.asarray(model.predict(images.astype("float32"), verbose=0)).argmax(axis=1)
    right = predicted == labels
    wrong = np.flatnonzero(~right)[:1]
    shown = [*np.flatnonzero(right)[: SHOWN - len(wrong)], *wrong]
    for row in range(8):
        print(
            "  ".join(
                "".join(SHADES[int(pixel) * len(SHADES) // 256] * 2 for pixel in images[n, row, :, 0]) for n in shown
            )
        )
    captions = [f"{predicted[n]}" if right[n] else f"{predicted[n]} (it is a {labels[n]})" for n in shown]
    print("  ".join(caption.center(16) for caption in captions))
    policies = sorted({layer.dtype_policy.name for layer in model.layers})
    print(
        f"{right.sum()} of {len(labels)} held-out digits right ({right.mean():.4f}); the model's policy: {policies[0]}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
