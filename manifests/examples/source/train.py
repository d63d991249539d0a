"""A training script as anybody writes it: handwritten digits, a dense network, model.fit."""

import argparse

import keras
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=128)
arguments = parser.parse_args()

digits = load_digits()
images, labels = digits.data.astype("float32") / 16.0, digits.target

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
