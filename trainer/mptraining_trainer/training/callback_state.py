"""The state that a callback declares: JSON values and arrays in any nesting, as a checkpoint keeps them. No TensorFlow.

A callback declares it by two methods, `get_state()` and `set_state(state)`, or, as PyTorch Lightning's do,
`state_dict()` and `load_state_dict(state)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import JsonValue

_PAIRS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))
# Objects with one of these keys stand for what JSON has no value for.
_ARRAY, _NUMBER = "$array", "$number"
# What safetensors stores: booleans, integers, floating numbers.
_KINDS = "biuf"


def methods(callback: Any) -> tuple[str, str] | None:
    """The names of the methods by which it declares its state; None when it declares none."""
    for pair in _PAIRS:
        if all(callable(getattr(callback, name, None)) for name in pair):
            return pair
    return None


def packed(state: Any) -> tuple[JsonValue, list[np.ndarray]]:
    """The state as a JSON value, and the arrays in it. Raises TypeError that names the place of anything else."""
    arrays: list[np.ndarray] = []
    return _packed(state, "state", arrays), arrays


def unpacked(value: JsonValue, arrays: Sequence[np.ndarray]) -> Any:
    """The inverse of `packed`; tuples come back as lists, tensors as arrays."""
    if isinstance(value, list):
        return [unpacked(each, arrays) for each in value]
    if not isinstance(value, Mapping):
        return value
    if set(value) == {_ARRAY}:
        return arrays[int(str(value[_ARRAY]))]
    if set(value) == {_NUMBER}:
        return float(str(value[_NUMBER]))
    return {name: unpacked(each, arrays) for name, each in value.items()}


def _packed(value: Any, where: str, arrays: list[np.ndarray]) -> JsonValue:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str) or name in (_ARRAY, _NUMBER):
                raise TypeError(f"{where} has the key {name!r}, which is no name")
        return {name: _packed(each, f"{where}[{name!r}]", arrays) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_packed(each, f"{where}[{number}]", arrays) for number, each in enumerate(value)]
    if type(value) in (int, float):
        return value if math.isfinite(value) else {_NUMBER: str(value)}
    array = np.array(value) if hasattr(value, "__array__") else None
    if array is None or array.dtype.kind not in _KINDS:
        raise TypeError(f"{where} is of {type(value).__name__}, neither a JSON value nor an array of numbers")
    arrays.append(array)
    return {_ARRAY: len(arrays) - 1}
