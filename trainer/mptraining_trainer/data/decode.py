"""From serialized tf.train.Examples to tensors, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mptraining_trainer.data.schema import Column, Columns

# Images of one batch decoded side by side; the map around it runs on several threads as well.
_IMAGES_AT_ONCE = 8


def decoder(columns: Columns) -> Callable[[Any], tuple[Any, Any, Any]]:
    """A function from a string tensor [batch] to (inputs, labels, weights), for `tf.data.Dataset.map`.

    Inputs and labels are one tensor [batch, *shape] where there is one, else a dict by name; no labels and no weights
    are an empty tuple. Weights are float32 [batch, *shape].
    """
    description = {column.name: _stored(column) for column in columns.columns}

    def decode(serialized: Any) -> tuple[Any, Any, Any]:
        stored = tf.io.parse_example(serialized, description)
        tensors = {column.name: _tensor(stored[column.name], column) for column in columns.columns}
        labels = {name: tensors.pop(name) for name in columns.labels}
        weights = tf.cast(tensors.pop(columns.weight), tf.float32) if columns.weight else ()
        return _alone(tensors), _alone(labels) if labels else (), weights

    return decode


def _alone(tensors: dict[str, Any]) -> Any:
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors


def bytes_per_example(columns: Sequence[Column]) -> int:
    """Memory of one decoded example."""
    total = 0
    for column in columns:
        elements = 1
        for size in column.shape:
            elements *= size or 1
        # A string tensor's element is a pointer and, for short text, little more.
        total += elements * (64 if column.dtype == "string" else tf.as_dtype(column.dtype).size)
    return total


def _stored(column: Column) -> Any:
    if column.decode is not None:
        return tf.io.FixedLenFeature([], tf.string)
    dtype = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[column.stored_as]
    return tf.io.FixedLenFeature(column.shape, dtype)


def _tensor(stored: Any, column: Column) -> Any:
    dtype = tf.as_dtype(column.dtype)
    if column.decode is None:
        return stored if stored.dtype == dtype else tf.cast(stored, dtype)
    if column.decode == "raw":
        return tf.reshape(tf.io.decode_raw(stored, dtype), [-1, *column.shape])
    return tf.map_fn(
        lambda content: _image(content, column),
        stored,
        fn_output_signature=tf.TensorSpec(column.shape, dtype),
        parallel_iterations=_IMAGES_AT_ONCE,
    )


def _image(content: Any, column: Column) -> Any:
    dtype = tf.as_dtype(column.dtype)
    image = tf.io.decode_image(content, channels=column.shape[2], expand_animations=False)
    if column.resize:
        image = tf.image.resize(image, column.resize, antialias=True)
        if dtype.is_integer:
            image = tf.round(image)
    return tf.ensure_shape(tf.cast(image, dtype), column.shape)
