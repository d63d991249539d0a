"""Decoding of serialized examples to tensors, batch by batch; a record that cannot be decoded does not end a batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mptraining_records.tfrecord import record_check
from mptraining_records.tfrecord.features import IMAGES
from mptraining_trainer.data import stored_tensors
from mptraining_trainer.data.batch_spec import one_or_dict
from mptraining_trainer.data.padding import pad
from mptraining_trainer.data.schema import Column, Columns


def decoder(columns: Columns) -> Callable[[Any], tuple[Any, Any, Any]]:
    """Return a function from a string tensor [batch] to (inputs, labels, weights), for `tf.data.Dataset.map`.

    Inputs and labels are one tensor [batch, *shape], or a dict by name if there are several; no labels and no weights
    are an empty tuple. Weights are float32 [batch, *shape]. Features of variable size are RaggedTensors, but where
    padding gives them one shape they are padded. Every tensor has one row for each record, or TensorFlow raises
    InvalidArgumentError.
    """

    def decode(serialized: Any) -> tuple[Any, Any, Any]:
        tensors: dict[str, Any] = {}
        for column, tensor in zip(columns.columns, stored_tensors.read(serialized, columns.columns), strict=True):
            tensors[column.name] = pad(tensor, column) if column.is_fixed_when_padded else tensor
            if column.length_name is not None:
                tensors[column.length_name] = tf.cast(tensor.row_lengths(), tf.int32)
        labels = {name: tensors.pop(name) for name in columns.labels}
        weights = tf.cast(tensors.pop(columns.weight), tf.float32) if columns.weight else ()
        return one_or_dict(tensors), one_or_dict(labels), weights

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
                if column.decode in IMAGES:
                    for content in record_check.contents(column, record):
                        stored_tensors.image(content, column)
                else:
                    stored_tensors.read(tf.constant([record]), [column])
            except (tf.errors.OpError, ValueError) as error:
                return f"feature {column.name!r} cannot be decoded: {_first_line(error)}"
    return None


def bytes_per_example(columns: Sequence[Column]) -> int:
    """Return the memory of one decoded example."""
    total = 0.0
    for column in columns:
        elements = column.typical_size if column.is_variable else 1.0
        for size in column.shape:
            elements *= size or 1
        # An element of a string tensor is a pointer and, for short text, little more.
        total += elements * (64 if column.dtype == "string" else tf.as_dtype(column.dtype).size)
    return round(total)


def _first_line(error: Exception) -> str:
    """Return TensorFlow's message without the names of nodes and operations."""
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    return re.sub(r"\{\{.*?\}\}|\[Op:.*?\]|name: *$", "", message.strip().splitlines()[0]).strip(" .")[:200]
