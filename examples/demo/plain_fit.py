"""Trains the demo's net with plain Keras, `model.fit` on one device, and prints the mean seconds of a step."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from wide_net import build  # type: ignore[import-not-found]

EPOCHS = 10


def main(folder: Path, width: int, batch: int) -> None:
    data = np.load(folder / "train.npz")
    # As the job's data.remainder: the last, smaller batch of an epoch is left out.
    steps = len(data["label"]) // batch
    images, labels = data["image"][: steps * batch].astype("float32"), data["label"][: steps * batch]
    model = build(width)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.0005), loss=loss, metrics=["accuracy"])
    # The first epoch traces the graph.
    model.fit(images, labels, batch_size=batch, epochs=1, verbose=0)
    start = time.perf_counter()
    model.fit(images, labels, batch_size=batch, epochs=EPOCHS, verbose=0)
    print((time.perf_counter() - start) / EPOCHS / steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
