"""Outputs of the live model on the first batch, with which every exported form is compared before it is published.

The bounds are relative to the largest output. A form under the same policy repeats the live model's operations, so that
it may differ by a few roundings alone. A float32 form of a model under a mixed policy differs by the roundings of the
whole model, which a deep model amplifies: there the median decides, and only after the form under the live policy has
passed the narrow bound. So a difference of precision refuses no form, and hides no other difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_trainer.keras_backend import Keras

# Unit roundoff of the products: GPUs multiply float32 as TF32, which has float16's 11 bits.
_ROUNDOFF = {"bfloat16": 2.0**-8}
# A graph rounds bfloat16 in other places than eager operations: up to 2.5 roundings were seen.
_NARROW, _WIDE = 8, 16
# Share of the outputs' range that the median may differ by under another precision.
_SHARE = 1 / 8
# A model that draws random numbers at inference differs from itself; its copy differs from it about as much.
_RANDOM = 4


@dataclass(frozen=True)
class Reference:
    """`outputs` of a model under `policy` on `inputs`, flat, and `noise`: how far each differs in a second call."""

    inputs: Any
    outputs: tuple[np.ndarray, ...]
    noise: tuple[float, ...]
    policy: str = "float32"

    @classmethod
    def of(cls, model: Any, keras: Keras, inputs: Any, policy: str) -> Reference:
        """Call the model twice; every worker calls it, since reading variables may be a collective operation."""
        first, second = call(model, keras, inputs), call(model, keras, inputs)
        return cls(inputs, first, tuple(_largest(a, b) for a, b in zip(first, second, strict=True)), policy)

    def difference(self, forward: Callable[[Any], Sequence[Any]], *, rounded: bool = False) -> str | None:
        """Return how the outputs of `forward` differ, None if they are equal within the bound.

        `rounded` means that `forward` computes under another policy.
        """
        try:
            outputs = forward(self.inputs)
        except Exception as error:  # noqa: BLE001 - a layer of the user may raise any error
            return f"it fails on the first batch: {describe(error)}"
        shapes, expected_shapes = ([output.shape for output in arrays] for arrays in (outputs, self.outputs))
        if shapes != expected_shapes:
            return f"its outputs have the shapes {shapes}, the trained model's {expected_shapes}"
        roundoff = _ROUNDOFF.get(self.policy.removeprefix("mixed_"), 2.0**-11)
        for output, expected, noise in zip(outputs, self.outputs, self.noise, strict=True):
            if expected.dtype.kind not in "fiub":
                if not rounded and not np.array_equal(output, expected):
                    return "its outputs are not those of the trained model"
                continue
            finite = np.isfinite(expected)
            if not finite.any():
                continue
            largest = float(np.abs(expected[finite]).max())
            if rounded:
                far = float(np.median(np.abs(output - expected)[finite]))
                bound = _WIDE * roundoff * largest + _SHARE * float(np.ptp(expected[finite]))
            else:
                far, bound = _largest(output, expected), _NARROW * roundoff * largest
            if not far <= bound + _RANDOM * noise:
                return f"its outputs differ by {far:.3g}, where the trained model's are up to {largest:.3g}"
        return None


def call(model: Any, keras: Keras, inputs: Any) -> tuple[np.ndarray, ...]:
    """Return the outputs of a Keras model as flat arrays.

    The states of stateful recurrent layers are zeros in the call, because Keras saves none, and unchanged after it.
    """
    states = [
        state
        for layer in keras.layers(model)
        if getattr(layer, "stateful", False)
        for state in tf.nest.flatten(getattr(layer, "states", None))
        if hasattr(state, "assign")
    ]
    states = keras.variables_of(states)
    before = [tf.identity(state) for state in states]
    for state, values in zip(states, before, strict=True):
        state.assign(tf.zeros_like(values))
    try:
        return flat(model(inputs))
    finally:
        for state, values in zip(states, before, strict=True):
            state.assign(values)


def flat(outputs: Any) -> tuple[np.ndarray, ...]:
    """Return the tensors of a structure as arrays; numbers as float64."""
    return tuple(_array(output) for output in tf.nest.flatten(outputs, expand_composites=True))


def _array(tensor: Any) -> np.ndarray:
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool:
        return np.asarray(tf.cast(tensor, tf.float64))
    return np.asarray(tensor)


def _largest(output: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference where `expected` is finite."""
    if output.shape != expected.shape or expected.dtype.kind != "f":
        return 0.0
    finite = np.isfinite(expected)
    return float(np.abs(output - expected)[finite].max()) if finite.any() else 0.0


def synthetic_batch(model: Any) -> Any:
    """Return random inputs of the shapes that the model names; None if it names none."""
    try:
        entries = model.input
    except (AttributeError, ValueError, RuntimeError):
        return None

    def values(entry: Any) -> Any:
        shape = [_ROWS if number == 0 else 8 for number in range(len(entry.shape))]
        shape = [known or size for known, size in zip(entry.shape, shape, strict=True)]
        dtype = tf.as_dtype(entry.dtype)
        if dtype == tf.string:
            return tf.strings.as_string(tf.random.stateless_uniform(shape, (0, 0), 0, 10, tf.int32))
        numbers = tf.random.stateless_uniform(shape, (0, 0), -1, 1)
        return tf.cast(numbers if dtype.is_floating else numbers > 0, dtype)

    return tf.nest.map_structure(values, entries)


_ROWS = 4


def first_rows(inputs: Any, model: Any) -> Any:
    """Return the inputs with the number of rows that the model fixes, unchanged if it fixes none."""
    fixed = next((entry.shape[0] for entry in getattr(model, "inputs", None) or () if len(entry.shape)), None)
    if fixed is None:
        return inputs
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, np.arange(fixed) % tensor.shape[0]), inputs)


def describe(error: Exception) -> str:
    """Return the error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
