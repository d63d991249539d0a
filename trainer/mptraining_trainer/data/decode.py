"""Decoding of serialized examples to tensors, batch by batch; a record that cannot be decoded does not end a batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mptraining_records.tfrecord import record_check
from mptraining_trainer.data.schema import Column, Columns

# Images of one batch that are decoded in parallel; several batches are decoded in parallel as well.
_IMAGES_AT_ONCE = 8


def decoder(columns: Columns) -> Callable[[Any], tuple[Any, Any, Any]]:
    """Return a function from a string tensor [batch] to (inputs, labels, weights), for `tf.data.Dataset.map`.

    Inputs and labels are one tensor [batch, *shape], or a dict by name if there are several; no labels and no weights
    are an empty tuple. Weights are float32 [batch, *shape]. Every tensor has one row for each record, or TensorFlow
    raises InvalidArgumentError.
    """
    description = {column.name: _stored(column) for column in columns.columns}

    def decode(serialized: Any) -> tuple[Any, Any, Any]:
        stored = tf.io.parse_example(serialized, description)
        tensors = {
            column.name: tf.ensure_shape(_tensor(stored[column.name], column), [serialized.shape[0], *column.shape])
            for column in columns.columns
        }
        labels = {name: tensors.pop(name) for name in columns.labels}
        weights = tf.cast(tensors.pop(columns.weight), tf.float32) if columns.weight else ()
        return _single_or_dict(tensors), _single_or_dict(labels) if labels else (), weights

    return decode


# A function of records [batch], their numbers and their mask, as arrays, that returns records and mask without those
# that cannot be decoded.
Repair = Callable[[Any, Any, Any], tuple[Any, Any]]


def decode_batches(dataset: Any, columns: Columns, repair: Repair, parallel: int) -> Any:
    """Decode a dataset of (records, numbers, mask, rest) to one of (inputs, labels, weights, mask, rest), in order.

    A batch that cannot be decoded is decoded again after `repair`. TensorFlow has no other way to catch an error inside
    a dataset than a dataset of one element without it. `Dataset.range` is one of the few sources that leave parallel
    calls as they are under op determinism (see `generator`).
    """
    decode = decoder(columns)

    def decode_one(records: Any, numbers: Any, mask: Any, rest: Any) -> Any:
        def repaired(_: Any) -> tuple[Any, ...]:
            sound, remaining = tf.numpy_function(
                repair, [records, numbers, mask], [tf.string, tf.float32], stateful=False
            )
            sound, remaining = tf.ensure_shape(sound, records.shape), tf.ensure_shape(remaining, mask.shape)
            return (*decode(sound), remaining, rest)

        once = tf.data.Dataset.range(1)
        decoded = once.map(lambda _: (*decode(records), mask, rest)).ignore_errors()
        return decoded.concatenate(once.map(repaired)).take(1)

    return dataset.interleave(
        decode_one, cycle_length=parallel, block_length=1, num_parallel_calls=parallel, deterministic=True
    )


def fault(columns: Columns, record: bytes) -> str | None:
    """Return why the record cannot be decoded, naming the feature; None if it can."""
    found = record_check.fault(columns.columns, record)
    if found is not None:
        return found.cause
    # The record alone, without a graph: this runs in a thread of tf.data, whose other threads may be busy.
    with tf.device("/CPU:0"):
        for column in columns.columns:
            try:
                stored = tf.io.parse_example([record], {column.name: _stored(column)})[column.name]
                if column.decode in ("jpeg", "png"):
                    _image(stored[0], column)
            except (tf.errors.OpError, ValueError) as error:
                return f"feature {column.name!r} cannot be decoded: {_first_line(error)}"
    return None


def bytes_per_example(columns: Sequence[Column]) -> int:
    """Return the memory of one decoded example."""
    total = 0
    for column in columns:
        elements = 1
        for size in column.shape:
            elements *= size or 1
        # An element of a string tensor is a pointer and, for short text, little more.
        total += elements * (64 if column.dtype == "string" else tf.as_dtype(column.dtype).size)
    return total


def _single_or_dict(tensors: dict[str, Any]) -> Any:
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors


def _stored(column: Column) -> Any:
    if column.decode is not None:
        return tf.io.FixedLenFeature([], tf.string)
    dtype = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[record_check.stored_as(column)]
    return tf.io.FixedLenFeature(column.shape, dtype)


def _tensor(stored: Any, column: Column) -> Any:
    dtype = tf.as_dtype(column.dtype)
    if column.decode is None:
        return stored if stored.dtype == dtype else tf.cast(stored, dtype)
    if column.decode == "raw":
        # The number of rows comes from the records, so that bytes of another shape are an error and no further rows.
        return tf.reshape(tf.io.decode_raw(stored, dtype), [tf.shape(stored)[0], *column.shape])
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


def _first_line(error: Exception) -> str:
    """Return TensorFlow's message without the names of nodes and operations."""
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    return re.sub(r"\{\{.*?\}\}|\[Op:.*?\]|name: *$", "", message.strip().splitlines()[0]).strip(" .")[:200]
