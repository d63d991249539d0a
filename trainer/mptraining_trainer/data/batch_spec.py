"""Specs and zeros of a batch, where a model is traced or built without data."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from mptraining_trainer.data.schema import ExampleSpec, TensorSpec

# A variable size; it is large enough for several pooling layers.
_ANY_SIZE = 32


def batch_spec(tensor: TensorSpec, rows: int) -> Any:
    """Return the spec of a tensor [rows, *shape]; a variable size becomes 32, a ragged tensor keeps it."""
    if tensor.ragged:
        return tf.RaggedTensorSpec([rows, *tensor.shape], tensor.dtype, ragged_rank=1)
    return tf.TensorSpec([rows, *(_ANY_SIZE if size is None else size for size in tensor.shape)], tensor.dtype)


def example_specs(example: ExampleSpec, rows: int) -> tuple[Any, Any, Any]:
    """Return the specs of a batch of such examples: inputs, labels, weights."""
    inputs, labels = (
        one_or_dict({tensor.name: batch_spec(tensor, rows) for tensor in tensors})
        for tensors in (example.inputs, example.labels)
    )
    return inputs, labels, tf.TensorSpec([rows], tf.float32) if example.weighted else ()


def one_or_dict(tensors: dict[str, Any]) -> Any:
    """Return the only tensor, several by name, or an empty tuple, as a model and a loss take them."""
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors or ()


def zeros(tensor: TensorSpec, rows: int) -> Any:
    """Return zeros of `batch_spec`; a ragged tensor has one value in each row."""
    if tensor.ragged:
        return tf.RaggedTensor.from_uniform_row_length(tf.zeros([rows, *tensor.shape[1:]], tensor.dtype), 1)
    spec = batch_spec(tensor, rows)
    return tf.zeros(spec.shape, spec.dtype)
