"""A user's script without this project: `plain_script.py GLOB` trains the same network on the same TFRecords with
`fit`.

Prints when the first batch was trained, in seconds since 1970, and ends there.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import tensorflow as tf

SHAPE = (28, 28, 1)


def parse(record: Any) -> tuple[Any, Any]:
    stored = tf.io.parse_single_example(
        record,
        {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)},
    )
    return tf.reshape(tf.io.decode_raw(stored["image"], tf.uint8), SHAPE), stored["label"]


def main(pattern: str) -> None:
    keras = tf.keras
    dataset = tf.data.TFRecordDataset(tf.io.gfile.glob(pattern))
    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).shuffle(10_000).repeat()
    dataset = dataset.batch(64, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    model = keras.Sequential(
        [
            keras.layers.Input(SHAPE),
            keras.layers.Rescaling(1.0 / 255.0),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.001),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )

    class FirstBatch(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            print(time.time(), flush=True)
            self.model.stop_training = True

    model.fit(dataset, steps_per_epoch=1, verbose=0, callbacks=[FirstBatch()])


if __name__ == "__main__":
    main(sys.argv[1])
