"""Specs and zeros of a batch, where a model is traced or built without data."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from mptraining_trainer.data.schema import TensorSpec

# A variable size; it is large enough for several pooling layers.
_ANY_SIZE = 32


def batch_spec(one: TensorSpec, rows: int) -> Any:
    """Return the spec of a tensor [rows, *shape]; a variable size becomes 32, a ragged tensor keeps it."""
    if one.ragged:
        return tf.RaggedTensorSpec([rows, *one.shape], one.dtype, ragged_rank=1)
    return tf.TensorSpec([rows, *(_ANY_SIZE if size is None else size for size in one.shape)], one.dtype)


def zeros(one: TensorSpec, rows: int) -> Any:
    """Return zeros of `batch_spec`; a ragged tensor has one value in each row."""
    if one.ragged:
        return tf.RaggedTensor.from_uniform_row_length(tf.zeros([rows, *one.shape[1:]], one.dtype), 1)
    spec = batch_spec(one, rows)
    return tf.zeros(spec.shape, spec.dtype)
