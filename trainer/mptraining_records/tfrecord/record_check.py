"""Comparison of one record with the features of its data set: every feature, its kind, and its number of values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mptraining_api.problems import InvalidData, nearest
from mptraining_records.tfrecord import example, tensor_proto
from mptraining_records.tfrecord.example import Kind, Values
from mptraining_records.tfrecord.features import IMAGES, is_variable

INTEGERS = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"})
_CORRECT_SHAPE = "Correct its shape in data.features."


class Described(Protocol):
    """A feature as a job or a manifest describes it; see `Feature`."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int | None, ...]: ...
    @property
    def decode(self) -> str | None: ...
    @property
    def sequence(self) -> bool: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def is_optional(self) -> bool: ...


@dataclass(frozen=True)
class Fault:
    """The first difference between a record and its features; `hint` names the likely correction."""

    mistake: str
    expected: str = ""
    hint: str = ""

    @property
    def cause(self) -> str:
        return f"{self.mistake}; expected {self.expected}" if self.expected else self.mistake


def stored_as(feature: Described) -> Kind:
    """Return the list type of tf.train.Example that holds the feature."""
    if feature.decode is not None or feature.dtype == "string":
        return "bytes"
    return "int64" if feature.dtype in INTEGERS or feature.dtype == "bool" else "float"


def fault(features: Sequence[Described], record: bytes) -> Fault | None:
    """Return why the record does not hold these features; None if it does. Images are not decoded."""
    try:
        parsed = example.parse(record)
        sequences = example.parse_sequences(record) if any(feature.sequence for feature in features) else {}
    except InvalidData as problem:
        return Fault(problem.found, problem.expected)
    for feature in features:
        names = sequences if feature.sequence else parsed
        if feature.name not in names:
            if feature.is_optional:
                continue
            return missing(feature, parsed, sequences)
        if feature.sequence:
            wrong = _steps_fault(feature, sequences[feature.name])
        else:
            wrong = _list_fault(feature, f"feature {feature.name!r}", feature.shape, *parsed[feature.name])
        if wrong is not None:
            return wrong
    return None


def absent(features: Sequence[Described], records: Iterable[bytes]) -> Fault | None:
    """Return the fault of the first feature that none of these records has; None if each is in one of them."""
    names: set[str] = set()
    sequences: set[str] = set()
    for record in records:
        names |= example.parse(record).keys()
        sequences |= example.parse_sequences(record).keys()
    for feature in features:
        if feature.name not in (sequences if feature.sequence else names):
            return missing(feature, names, sequences)
    return None


def length(feature: Described, record: bytes) -> int:
    """Return the size of a variable first dimension in a record without a fault."""
    if feature.sequence:
        return len(example.parse_sequences(record).get(feature.name, ()))
    _, values = example.parse(record).get(feature.name, ("bytes", []))
    step_values = math.prod(size or 1 for size in feature.shape[1:])
    if feature.decode in IMAGES:
        return len(values)
    if feature.decode is None:
        return len(values) // step_values
    content = bytes(values[0]) if len(values) else b""
    if feature.decode == "raw":
        return len(content) // (step_values * tensor_proto.item_bytes(feature.dtype))
    header = tensor_proto.header(content)
    return header.shape[0] if header else 0


def missing(feature: Described, *names: Any) -> Fault:
    """Return the fault of a feature that none of `names` is."""
    there = sorted({name for feature_names in names for name in feature_names})
    hint = nearest(feature.name, there) or f"The record has: {', '.join(there) or 'no feature'}."
    return Fault(f"feature {feature.name!r} is missing", hint=hint)


def contents(feature: Described, record: bytes) -> list[bytes]:
    """Return the bytes values of a feature of a record without a fault, of all its steps if it is a feature list."""
    if feature.sequence:
        steps = example.parse_sequences(record).get(feature.name, [])
        return [bytes(value) for _, values in steps for value in values]
    _, values = example.parse(record).get(feature.name, ("bytes", []))
    return [bytes(value) for value in values]


def _steps_fault(feature: Described, steps: list[tuple[Kind, Values]]) -> Fault | None:
    if feature.limit is not None and len(steps) > feature.limit:
        return _too_long(feature, len(steps))
    for number, (kind, values) in enumerate(steps):
        if feature.shape[1:2] == (None,) and feature.decode is None and not len(values):
            # A step without values has no kind.
            continue
        wrong = _list_fault(feature, f"feature {feature.name!r}, step {number},", feature.shape[1:], kind, values)
        if wrong is not None:
            return wrong
    return None


def _list_fault(
    feature: Described, name: str, shape: tuple[int | None, ...], kind: Kind, values: Values
) -> Fault | None:
    """Compare one list of values with the tensor of this shape that it holds."""
    stored_kind = stored_as(feature)
    if kind != stored_kind:
        return Fault(
            f"{name} is a {kind} list",
            f"a {stored_kind} list for {feature.decode or f'dtype {feature.dtype}'}",
            "Correct its dtype or decode in data.features.",
        )
    variable = is_variable(shape, feature.decode)
    if feature.decode in IMAGES:
        # An image is one value, whatever its shape; four sizes are a list of images.
        sizes: tuple[int | None, ...] = shape[:1] if len(shape) == 4 else ()
    else:
        sizes = shape if feature.decode is None else ()
    step_values = math.prod(size or 1 for size in sizes)
    repeated = variable and bool(sizes)
    if len(values) % step_values if repeated else len(values) != step_values:
        expected = f"{'a multiple of ' if repeated else ''}{step_values} for {_tensor(feature)}"
        return Fault(f"{name} has {len(values)} values", expected, _CORRECT_SHAPE)
    length = len(values) // step_values if repeated else 0
    if feature.decode in ("raw", "tensor"):
        wrong, length = _bytes_fault(feature, name, shape, bytes(values[0]))
        if wrong is not None:
            return wrong
    if variable and not feature.sequence and feature.limit is not None and length > feature.limit:
        return _too_long(feature, length)
    return _range_fault(feature, name, values)


def _bytes_fault(
    feature: Described, name: str, shape: tuple[int | None, ...], content: bytes
) -> tuple[Fault | None, int]:
    """Compare the bytes of a tensor with its shape; return also its first size."""
    correct = "Correct its dtype or shape in data.features."
    if feature.decode == "tensor":
        header = tensor_proto.header(content)
        if header is None:
            return Fault(
                f"{name} is no serialized tensor", f"bytes of tf.io.serialize_tensor for {_tensor(feature)}"
            ), 0
        fits = len(header.shape) == len(shape) and all(
            size in (None, has) for size, has in zip(shape, header.shape, strict=True)
        )
        if header.dtype != feature.dtype or not fits:
            return Fault(f"{name} is a tensor {header.dtype} {list(header.shape)}", _tensor(feature), correct), 0
        return None, header.shape[0] if header.shape else 0
    length = math.prod(size or 1 for size in shape) * tensor_proto.item_bytes(feature.dtype)
    variable = None in shape
    if len(content) % length if variable else len(content) != length:
        expected = f"{'a multiple of ' if variable else ''}{length} bytes for {_tensor(feature)}"
        return Fault(f"{name} has {len(content)} bytes", expected, correct), 0
    return None, len(content) // length


def _range_fault(feature: Described, name: str, numbers: Values) -> Fault | None:
    if isinstance(numbers, list) or feature.dtype == "bool" or numbers.dtype != np.int64:
        return None
    limits, values = np.iinfo(feature.dtype), np.asarray(numbers, np.int64)
    outside = values[(values < limits.min) | (values > limits.max)]
    if not outside.size:
        return None
    return Fault(
        f"{name} has the value {outside[0]}",
        f"{limits.min} to {limits.max} for dtype {feature.dtype}",
        "Correct its dtype in data.features.",
    )


def _too_long(feature: Described, length: int) -> Fault:
    return Fault(
        f"feature {feature.name!r} has the length {length}",
        f"at most {feature.limit}, the last of its bucketBoundaries",
        f"Add {length} to bucketBoundaries, or shorten it where the records are written.",
    )


def _tensor(feature: Described) -> str:
    return f"{feature.decode} data" if feature.decode in IMAGES else f"{feature.dtype} {list(feature.shape)}"
