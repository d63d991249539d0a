"""A script as it stands in many repositories: arguments, callbacks, files of its own."""

import argparse
import os

import keras
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--output", default="outputs")


def build(lr):
    model = keras.Sequential()
    model.add(keras.Input((64,)))
    model.add(keras.layers.Dense(32, activation="relu"))
    model.add(keras.layers.Dense(10, activation="softmax"))
    optimizer = keras.optimizers.SGD(learning_rate=lr, momentum=0.9)
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main(args):
    os.makedirs(args.output, exist_ok=True)
    digits = load_digits()
    x, y = digits.data[:640] / 16.0, digits.target[:640]
    model = build(args.lr)
    callbacks = [
        keras.callbacks.ModelCheckpoint(
            os.path.join(args.output, "best.weights.h5"),
            save_best_only=True,
            save_weights_only=True,
            monitor="val_loss",
        ),
        keras.callbacks.EarlyStopping(patience=5),
        keras.callbacks.ReduceLROnPlateau(patience=2),
        keras.callbacks.CSVLogger(os.path.join(args.output, "log.csv"), append=True),
    ]
    history = model.fit(
        x, y, batch_size=args.batch_size, epochs=args.epochs, validation_split=0.2, callbacks=callbacks, verbose=1
    )
    model.save(os.path.join(args.output, "model.keras"))
    print("Epochs:", len(history.history["val_loss"]))


if __name__ == "__main__":
    main(parser.parse_args())
