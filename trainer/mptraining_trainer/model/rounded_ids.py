"""Token ids that a model's floating-point inputs or layers round, which trains on wrong tokens without an error.

Keras casts an integer feature to the dtype of a float `keras.Input`, and what reaches a layer to that layer's compute
dtype: float16 makes 20000 of 19997, bfloat16 keeps 8 bits. The layer then casts the rounded number to an index.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.model.first_look import as_tensor

# Integers above this are not all representable: significant bits are 24, 11 and 8.
_EXACT = {"float32": 2**24, "float16": 2048, "bfloat16": 256}
# Keras' layers that take ids, with the attribute that bounds them.
_TAKES_IDS = {
    "Embedding": "input_dim",
    "CategoryEncoding": "num_tokens",
    "Hashing": "num_bins",
    "IntegerLookup": "vocabulary_size",
}
# Operations that do not compute with a value: between an input and a cast to an index it remains an id.
_MOVES = frozenset(
    [
        *("Cast", "Identity", "Reshape", "ExpandDims", "Squeeze", "StridedSlice", "Slice", "Transpose", "Pack"),
        *("ConcatV2", "Split", "SplitV", "Unpack", "BroadcastTo", "EnsureShape", "StopGradient"),
    ]
)
_TOPIC = "TokenIdsRounded"


def rounded_ids(keras: Keras, compiled: CompiledModel, inputs: Any) -> str | None:
    """Return the warning about ids of a feature that this model rounds; None if it rounds none.

    `inputs` are some examples, as arrays. The model is traced if one of them has ids that its policy can round.
    """
    arrays = [array for array in tf.nest.flatten(inputs) if isinstance(array, np.ndarray) and array.size]
    layers = keras.layers(compiled.model)
    largest = int(max((array.max() for array in arrays if _is_whole(array)), default=0))
    dtypes = {"float32", *(str(getattr(layer, "compute_dtype", "")) for layer in layers)}
    bounds = [_bound(layer) or 0 for layer in layers]
    if max([largest, *bounds]) <= min(_EXACT[dtype] for dtype in dtypes & _EXACT.keys()):
        return None
    traced = keras.function(lambda batch: compiled.predictions(compiled.arrange_inputs(batch), training=False))
    try:
        graph = traced.get_concrete_function(tf.nest.map_structure(as_tensor, inputs)).graph
    except Exception:  # noqa: BLE001 - the first step reports it, with its place in the program
        return None
    for name, dtype in _index_casts(graph):
        # A scope that is entered again has a number in addition to the layer's name.
        layer = next((layer for layer in layers if layer.name in (name, name.rpartition("_")[0])), None)
        if (_bound(layer) or largest) > _EXACT[dtype]:
            return _warning(f"the layer {layer.name if layer else name!r}", dtype)
    return None


def _warning(what: str, dtype: str) -> str:
    text = f"{what} reads ids as {dtype}, in which those above {_EXACT[dtype]} are rounded: write "
    text += "keras.Input(..., dtype='int32')"
    if dtype != "float32":
        text += ", dtype='float32' for this layer and those around it, or precision: {policy: float32}"
    return text


def _is_whole(array: np.ndarray) -> bool:
    return array.dtype.kind in "iuf" and bool((np.isfinite(array) & (array == np.floor(array))).all())


def _bound(layer: Any) -> int | None:
    """Return the number of ids that a layer of Keras takes; None if it is not known."""
    for base in type(layer).__mro__:
        if (attribute := _TAKES_IDS.get(base.__name__)) is not None:
            value = getattr(layer, attribute, None)
            value = value() if callable(value) else value
            return value if isinstance(value, int) else None
    return None


def _index_casts(graph: Any) -> Iterator[tuple[str, str]]:
    """Yield the layer and the coarsest dtype of each input that goes through floats to a cast to an integer."""
    for operation in graph.get_operations():
        if operation.type == "Cast" and operation.outputs[0].dtype.is_integer:
            dtypes = _dtypes_of_input(operation.inputs[0])
            floats = [dtype for dtype in dtypes if dtype in _EXACT]
            if floats:
                layer = operation.name.rpartition("/")[0].rpartition("/")[2]
                yield layer, min(floats, key=lambda dtype: _EXACT[dtype])


def _dtypes_of_input(tensor: Any) -> set[str]:
    """Return the dtypes that a graph's input had on its way to this tensor; empty if this is a computed value."""
    dtypes = {tensor.dtype.name}
    while tensor.op.type in _MOVES:
        if not tensor.op.inputs:
            return set()
        tensor = tensor.op.inputs[-1 if tensor.op.type == "Split" else 0]
        dtypes.add(tensor.dtype.name)
    return dtypes if tensor.op.type == "Placeholder" else set()
