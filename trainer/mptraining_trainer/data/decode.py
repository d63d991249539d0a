"""Decoding of serialized examples to tensors, one by one or in batches; an undecodable record does not end them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import tensorflow as tf

from mptraining_records.tfrecord import record_check
from mptraining_records.tfrecord.features import IMAGES
from mptraining_trainer.data import stored_tensors
from mptraining_trainer.data.batch_spec import one_or_dict
from mptraining_trainer.data.padding import pad
from mptraining_trainer.data.schema import Column, Columns


def is_decoded_singly(columns: Columns) -> bool:
    """Whether the examples are decoded one by one, as images and serialized tensors are; numbers in batches."""
    return any(column.decode in (*IMAGES, "tensor") for column in columns.columns)


def decoder(columns: Columns) -> Callable[[Any], tuple[Any, Any, Any]]:
    """Return a function from a string tensor [batch] to (inputs, labels, weights), for `tf.data.Dataset.map`.

    Inputs and labels are one tensor [batch, *shape], or a dict by name if there are several; no labels and no weights
    are an empty tuple. Weights are float32 [batch, *shape]. Features of variable size are RaggedTensors, but where
    padding gives them one shape they are padded. Every tensor has one row for each record, or TensorFlow raises
    InvalidArgumentError. For a string tensor [] they are the tensors of one example, without the first dimension.
    """

    def decode(serialized: Any) -> tuple[Any, Any, Any]:
        if serialized.shape.rank == 0:
            parts: tuple[Any, Any, Any] = tf.nest.map_structure(lambda tensor: tensor[0], decode(serialized[None]))
            return parts
        tensors: dict[str, Any] = {}
        for column, tensor in zip(columns.columns, stored_tensors.read(serialized, columns.columns), strict=True):
            tensors[column.name] = pad(tensor, column) if column.is_fixed_when_padded else tensor
            if column.length_name is not None:
                tensors[column.length_name] = tf.cast(tensor.row_lengths(), tf.int32)
        labels = {name: tensors.pop(name) for name in columns.labels}
        weights = tf.cast(tensors.pop(columns.weight), tf.float32) if columns.weight else ()
        return one_or_dict(tensors), one_or_dict(labels), weights

    return decode


Function = TypeVar("Function", bound=Callable[..., Any])


def not_converted(function: Function) -> Function:
    """Return the function for a dataset as it is written.

    AutoGraph would convert every function that decoding calls, which takes a second of processor time.
    """
    return cast("Function", tf.autograph.experimental.do_not_convert(function))


# A function of records [n], their numbers and their mask, as arrays, that returns records and mask without those that
# cannot be decoded.
Repair = Callable[[Any, Any, Any], tuple[Any, Any]]


def decode_elements(dataset: Any, columns: Columns, repair: Repair | None, parallel: int) -> Any:
    """Decode examples or batches (records, numbers, mask, rest) to (inputs, labels, weights, mask, rest), in order.

    One that cannot be decoded is an error, or with `repair` it is decoded again after it. TensorFlow has no other way
    to catch an error inside a dataset than a dataset of one element without it. `Dataset.range` is one of the few
    sources that leave parallel calls as they are under op determinism (see `generator`).
    """
    decode = decoder(columns)

    @not_converted
    def decode_element(records: Any, _: Any, mask: Any, rest: Any) -> tuple[Any, ...]:
        return (*decode(records), mask, rest)

    def decode_or_repair(records: Any, numbers: Any, mask: Any, rest: Any) -> Any:
        def repaired(_: Any) -> tuple[Any, ...]:
            several = [tf.reshape(tensor, [-1]) for tensor in (records, numbers, mask)]
            sound = tf.numpy_function(repair, several, [tf.string, tf.float32], stateful=False)
            sound = [tf.ensure_shape(tf.reshape(tensor, tf.shape(mask)), mask.shape) for tensor in sound]
            return decode_element(sound[0], numbers, sound[1], rest)

        once = tf.data.Dataset.range(1)
        decoded = once.map(lambda _: decode_element(records, numbers, mask, rest)).ignore_errors()
        return decoded.concatenate(once.map(repaired)).take(1)

    if repair is None:
        return dataset.map(decode_element, num_parallel_calls=parallel, deterministic=True)
    return dataset.interleave(
        decode_or_repair, cycle_length=parallel, block_length=1, num_parallel_calls=parallel, deterministic=True
    )


def batched(dataset: Any, columns: Columns, size: int, *, drop_remainder: bool = True) -> Any:
    """Return batches of a dataset of examples; features of variable size are RaggedTensors, as from `decoder`."""
    # A feature that padding gives one shape is padded when it is decoded.
    is_ragged = any(column.is_variable and not column.is_fixed_when_padded for column in columns.columns)
    return (dataset.ragged_batch if is_ragged else dataset.batch)(size, drop_remainder=drop_remainder)


def fault(columns: Columns, record: bytes) -> str | None:
    """Return why the record cannot be decoded, naming the feature; None if it can."""
    difference = record_check.fault(columns.columns, record)
    if difference is not None:
        return difference.cause
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
