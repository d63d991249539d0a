"""One size for a variable dimension on all replicas, so that a step does not depend on their number.

Each replica's part of a batch is padded to its own longest example. A model that reads the padding, or a loss over
labels of varying length, would then differ from the same batch on one replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def align(batch: Any, padding: Any) -> Any:
    """Return this replica's batch with each dimension without a static size as large as on the largest replica.

    `padding` has the value to pad each tensor with, in the structure of the batch. Call it in replica context, on every
    replica.
    """
    context = tf.distribute.get_replica_context()
    leaves, values = tf.nest.flatten(batch), tf.nest.flatten(padding)
    axes = [(number, axis, size) for number, leaf in enumerate(leaves) for axis, size in enumerate(leaf.shape)]
    dynamic = [(number, axis) for number, axis, size in axes if size is None]
    if not dynamic:
        return batch
    local_sizes = tf.stack([tf.cast(tf.shape(leaves[number])[axis], tf.float32) for number, axis in dynamic])
    row = tf.one_hot(context.replica_id_in_sync_group, context.num_replicas_in_sync)
    # The sum of one row for each replica, since strategies have no maximum.
    sizes = tf.reduce_max(context.all_reduce(tf.distribute.ReduceOp.SUM, row[:, None] * local_sizes), axis=0)
    largest = dict(zip(dynamic, tf.unstack(tf.cast(sizes, tf.int32)), strict=True))
    aligned = [
        _pad(leaf, [largest.get((number, axis)) for axis in range(leaf.shape.rank)], value)
        for number, (leaf, value) in enumerate(zip(leaves, values, strict=True))
    ]
    return tf.nest.pack_sequence_as(batch, aligned)


def _pad(tensor: Any, sizes: Sequence[Any], value: Any) -> Any:
    if all(size is None for size in sizes):
        return tensor
    shape = tf.shape(tensor)
    missing = [0 if size is None else size - shape[axis] for axis, size in enumerate(sizes)]
    if tensor.dtype != tf.string:
        value = tf.cast(value, tensor.dtype)
    padded = tf.pad(tensor, [[0, size] for size in missing], constant_values=value)
    return tf.ensure_shape(padded, tensor.shape)
