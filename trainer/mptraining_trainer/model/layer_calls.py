"""Which layers a model calls, in which order, with what numbers: seen while it is traced, whatever it is made of."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mptraining_api.inspected import LayerFacts
from mptraining_trainer.keras_backend import Keras


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer (or of an operation of a functional model) that called no other: `outputs` are its tensors.

    `path` names the layers that it stands in.
    """

    layer: Any
    path: str
    outputs: tuple[Any, ...]


@contextlib.contextmanager
def recorded(keras: Keras) -> Iterator[list[LayerCall]]:
    """Notes every innermost call while the block traces a model."""
    base = keras.module.layers.Layer
    # In Keras 3 the operations of a functional model are no layers, but are called in the same place.
    called = next((cls for cls in base.__mro__ if cls.__name__ == "Operation"), base)
    original = called.__call__
    calls: list[LayerCall] = []
    # For each call under way: its name, whether it called another that counts, and the layer.
    around: list[list[Any]] = []

    def call(layer: Any, *arguments: Any, **named: Any) -> Any:
        for each in around:
            # A recurrent layer is one layer: its cell is called in a loop, and to learn what it gives.
            each[1] = not isinstance(each[2], keras.module.layers.RNN)
        around.append([layer.name, False, layer])
        try:
            result = original(layer, *arguments, **named)
        finally:
            names = [each[0] for each in around]
            _, inner, _ = around.pop()
        outputs = tuple(each for each in tf.nest.flatten(result) if tf.is_tensor(each))
        inside_loop = any(isinstance(each[2], keras.module.layers.RNN) for each in around)
        if not inner and not inside_loop and outputs and not _passes_on(layer):
            # The model itself goes without saying.
            calls.append(LayerCall(layer, "/".join(names[1:] or names), outputs))
        return result

    called.__call__ = call
    try:
        yield calls
    finally:
        called.__call__ = original


def layer_facts(call: LayerCall, *, batch: int) -> LayerFacts:
    """The facts of one call that was traced with `batch` examples."""
    layer, output = call.layer, call.outputs[0]
    shape = tuple(output.shape[1:]) if output.shape.rank and output.shape[0] == batch else tuple(output.shape)
    weights = getattr(layer, "weights", None) or []
    inputs, outputs, multiply_adds = _multiplication(layer, output)
    activation = getattr(getattr(layer, "activation", None), "__name__", "")
    return LayerFacts(
        name=call.path,
        kind=type(layer).__name__,
        compute=str(getattr(layer, "compute_dtype", None) or output.dtype.name),
        variables=str(tf.as_dtype(weights[0].dtype).name) if weights else None,
        output=output.dtype.name,
        output_shape=shape,
        parameters=sum(math.prod(one.shape) for one in weights),
        inputs=inputs,
        outputs=outputs,
        multiply_adds=multiply_adds,
        softmax=activation == "softmax" or type(layer).__name__ == "Softmax",
    )


def _passes_on(layer: Any) -> bool:
    return type(layer).__name__ in ("InputLayer", "Identity", "Flatten", "Reshape", "Dropout") and not layer.weights


def _multiplication(layer: Any, output: Any) -> tuple[int | None, int | None, int]:
    """Widths and multiplications of an example, for the layers whose kernel meets the matrix units."""
    kernel = getattr(layer, "kernel", None)
    if kernel is None or not hasattr(kernel, "shape"):
        return None, None, 0
    shape, kind = tuple(int(size) for size in kernel.shape), type(layer).__name__
    positions = math.prod(int(size) for size in output.shape[1:-1] if size is not None)
    if kind == "EinsumDense":
        # The kernel's dimensions that the output has not are summed over.
        summed = _summed(layer.equation)
        width = math.prod(size for size, gone in zip(shape, summed, strict=True) if gone)
        units = math.prod(shape) // max(width, 1)
        tokens = math.prod(int(size) for size in output.shape[1:] if size is not None) // max(units, 1)
        return width, units, math.prod(shape) * max(tokens, 1)
    if "Depthwise" in kind or "Separable" in kind:
        # Each channel by itself: nothing that a matrix unit would be filled by.
        return None, None, math.prod(shape) * positions
    if "Transpose" in kind:
        units, width = shape[-2:]
        return width, units, math.prod(shape) * positions // max(1, math.prod(layer.strides))
    if len(shape) < 2:
        return None, None, 0
    return shape[-2], shape[-1], math.prod(shape) * positions


def _summed(equation: str) -> list[bool]:
    """For each dimension of an EinsumDense's kernel whether it is summed over."""
    inputs, _, result = equation.replace("...", "").partition("->")
    return [letter not in result for letter in inputs.split(",")[1]]
