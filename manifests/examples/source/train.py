"""A plain training script: ten patterns under noise, a dense network, model.fit."""

import argparse

import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=128)
arguments = parser.parse_args()

# Nothing to download, and nothing that the trainer's image lacks.
random = np.random.default_rng(7)
labels = random.integers(0, 10, 1800)
patterns = random.random((10, 64))
images = (patterns[labels] + random.normal(0, 0.3, (1800, 64))).astype("float32")

model = keras.Sequential(
    [
        keras.Input((64,)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10, dtype="float32"),
    ]
)
model.compile(
    optimizer="adam",
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(
    images[:1500],
    labels[:1500],
    validation_data=(images[1500:], labels[1500:]),
    epochs=arguments.epochs,
    batch_size=arguments.batch_size,
    verbose=2,
)
