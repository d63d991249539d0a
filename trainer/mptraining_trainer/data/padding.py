"""Padding of features of variable size to one shape for a batch, and removal of padded rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from mptraining_trainer.data.schema import Column

_PLAIN = Column("", "float32", (None,), None, None)


def pad(tensor: Any, column: Column) -> Any:
    """Return a RaggedTensor [batch, None, …] as a dense one, filled with the column's default.

    The first size is that of the longest example, or the smallest boundary of the column that is enough; without such a
    boundary TensorFlow raises InvalidArgumentError.
    """
    value = _constant(column, tensor.dtype)
    if not column.boundaries:
        return tensor.to_tensor(value)
    longest = tf.reduce_max(tf.concat([tensor.row_lengths(), [0]], axis=0))
    boundaries = tf.constant(column.boundaries, tf.int64)
    with tf.control_dependencies([tf.debugging.assert_less_equal(longest, boundaries[-1])]):
        size = boundaries[tf.searchsorted(boundaries, longest[None])[0]]
    # `to_tensor` takes no tensor as its shape; -1: as the ragged tensor has it.
    padded = tf.raw_ops.RaggedTensorToTensor(
        shape=tf.concat([[-1], size[None], tf.fill([tensor.shape.rank - 2], tf.constant(-1, tf.int64))], axis=0),
        values=tensor.flat_values,
        default_value=value,
        row_partition_tensors=tensor.nested_row_splits,
        row_partition_types=["ROW_SPLITS"] * tensor.ragged_rank,
    )
    known = column.boundaries[0] if len(column.boundaries) == 1 else None
    return tf.ensure_shape(padded, [tensor.shape[0], known, *tensor.shape[2:]])


def without_padding(batch: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs, labels and weights of the rows whose mask, the last entry of the batch, is not 0."""
    *tensors, mask = batch
    return tuple(tf.nest.map_structure(lambda tensor: tf.boolean_mask(tensor, mask > 0), tensors))


def pad_all(tensors: Any, names: Sequence[str], columns: Sequence[Column]) -> Any:
    """Pad every RaggedTensor of a tensor, or of a dict by name, but those that the job wants as they are.

    `names` are those of the tensors before preprocessing: a single tensor has the name of a single one of them. A
    tensor that preprocessing created is padded with zeros.
    """

    def padded(tensor: Any, column: Column) -> Any:
        return pad(tensor, column) if isinstance(tensor, tf.RaggedTensor) and not column.ragged else tensor

    return _map_with_columns(padded, tensors, names, columns)


def padding_values(tensors: Any, names: Sequence[str], columns: Sequence[Column]) -> Any:
    """Return the value that `pad_all` fills each tensor with, in the structure of `tensors`."""
    return _map_with_columns(lambda tensor, column: _default(column, tensor.dtype), tensors, names, columns)


def _map_with_columns(
    function: Callable[[Any, Column], Any], tensors: Any, names: Sequence[str], columns: Sequence[Column]
) -> Any:
    known = {column.name: column for column in columns}
    if isinstance(tensors, Mapping):
        return {name: function(tensor, known.get(name, _PLAIN)) for name, tensor in tensors.items()}
    single = known.get(names[0], _PLAIN) if len(names) == 1 else _PLAIN
    return tf.nest.map_structure(lambda tensor: function(tensor, single), tensors)


def _constant(column: Column, dtype: Any) -> Any:
    default = _default(column, dtype)
    return tf.constant(default) if dtype == tf.string else tf.cast(tf.constant(float(default), tf.float64), dtype)


def _default(column: Column, dtype: Any) -> float | str:
    return column.default if column.default is not None else "" if dtype == tf.string else 0
