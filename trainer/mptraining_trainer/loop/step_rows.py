"""The rows of one step's batch, which all replicas of all workers share."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def with_rows(batch: Any, keep: Any, filler: Any, *, workers: int) -> Any:
    """This replica's batch with every row that is not kept replaced by its row `filler`; in replica context.

    `keep` is a bool vector over the rows of all replicas, in the order of the data: worker r of n has those that are r
    modulo n, and deals them to its replicas in equal pieces. All tensors of `batch` have the rows as their first axis.
    """
    context = tf.distribute.get_replica_context()
    replicas = context.num_replicas_in_sync // workers
    size = keep.shape[0] // context.num_replicas_in_sync
    worker, replica = context.replica_id_in_sync_group // replicas, context.replica_id_in_sync_group % replicas
    kept = tf.gather(keep, (replica * size + tf.range(size)) * workers + worker)

    def replaced(tensor: Any) -> Any:
        return tf.where(tf.reshape(kept, [size] + [1] * (len(tensor.shape) - 1)), tensor, tensor[filler])

    return tf.nest.map_structure(replaced, batch)
