"""The program of the elastic runs: it counts the records of each epoch and their places in its order.

A file of plain Keras, as a user's would be; it goes into the source folder of the runs.
"""

from typing import Any

import keras
import tensorflow as tf

# tests.soak.kill_and_resume.elastic writes so many records.
RECORDS = 480
# A place is known by the seed of its augmentation, which depends on the position in the epoch's order alone.
_PLACES = 9973
_PRIME = 999_983


class Records(keras.metrics.Metric):  # type: ignore[misc]
    """Sums by record number over an epoch; `once` is the number of records seen exactly once, `order` a digest of the
    place of every record.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.sums = self.add_variable((RECORDS,), "zeros", name="sums")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels = tf.cast(y_true, tf.int32)
        seen = tf.ones_like(labels[:, 2]) if self.name == "once" else labels[:, 2]
        self.sums.assign_add(tf.math.unsorted_segment_sum(tf.cast(seen, tf.float32), labels[:, 1], RECORDS))

    def result(self) -> Any:
        sums = tf.convert_to_tensor(self.sums)
        if self.name == "once":
            return tf.reduce_sum(tf.cast(tf.equal(sums, 1.0), tf.float32))
        weighted = tf.cast(sums, tf.int64) * tf.range(1, RECORDS + 1, dtype=tf.int64)
        return tf.cast(tf.math.floormod(tf.reduce_sum(weighted), _PRIME), tf.float32)


class ClassLoss(keras.losses.Loss):  # type: ignore[misc]
    """Cross-entropy of the first of the three label columns."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(y_true[:, 0], y_pred, from_logits=True)


def accuracy(y_true: Any, y_pred: Any) -> Any:
    return keras.metrics.sparse_categorical_accuracy(y_true[:, 0], y_pred)


def plain() -> dict[str, Any]:
    """Without random numbers or statistics of a replica: only the order of sums depends on the number of replicas."""
    return _program([])


def random() -> dict[str, Any]:
    """With dropout and BatchNormalization, whose masks and statistics are those of each replica's rows."""
    return _program([keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)])


def _program(between: list[Any]) -> dict[str, Any]:
    layers = keras.layers
    model = keras.Sequential(
        [layers.Input((6, 6, 1)), layers.Flatten(), layers.Dense(16, "tanh"), *between, layers.Dense(3)]
    )
    return {
        "model": model,
        "loss": ClassLoss(),
        "optimizer": keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 20, 0.9)),
        "metrics": [keras.metrics.MeanMetricWrapper(accuracy, name="accuracy"), Records("once"), Records("order")],
        "preprocess": preprocess,
    }


def preprocess(inputs: Any, labels: Any, seed: Any, training: bool) -> tuple[Any, Any]:
    images = tf.cast(inputs["image"], tf.float32)
    if training:
        images += 0.1 * tf.random.stateless_normal((6, 6, 1), seed)
    place = tf.math.floormod(tf.reduce_sum(seed), _PLACES)
    return images, tf.stack([tf.cast(each, tf.int64) for each in (labels, inputs["number"], place)])
