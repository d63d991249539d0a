"""Comparison of one record with the features of its data set: every feature, its kind, and its number of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mptraining_api.problems import InvalidData, nearest
from mptraining_records.tfrecord import example
from mptraining_records.tfrecord.example import Kind

_INTEGERS = frozenset({"uint8", "int32", "int64", "bool"})


class Described(Protocol):
    """A feature as a job or a manifest describes it."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int | None, ...]: ...
    @property
    def decode(self) -> str | None: ...


@dataclass(frozen=True)
class Fault:
    """The first difference between a record and its features; `hint` names the likely correction."""

    found: str
    expected: str = ""
    hint: str = ""

    @property
    def cause(self) -> str:
        return f"{self.found}; expected {self.expected}" if self.expected else self.found


def stored_as(feature: Described) -> Kind:
    """Return the list type of tf.train.Example that holds the feature."""
    if feature.decode is not None or feature.dtype == "string":
        return "bytes"
    return "int64" if feature.dtype in _INTEGERS else "float"


def fault(features: Sequence[Described], record: bytes) -> Fault | None:
    """Return why the record does not hold these features; None if it does. Images are not decoded."""
    try:
        found = example.parse(record)
    except InvalidData as problem:
        return Fault(problem.found, problem.expected)
    for feature in features:
        name = f"feature {feature.name!r}"
        if feature.name not in found:
            hint = nearest(feature.name, found) or f"The record has: {', '.join(sorted(found)) or 'no feature'}."
            return Fault(f"{name} is missing", hint=hint)
        kind, values = found[feature.name]
        wanted = stored_as(feature)
        if kind != wanted:
            return Fault(
                f"{name} is a {kind} list",
                f"a {wanted} list for {feature.decode or f'dtype {feature.dtype}'}",
                "Correct its dtype or decode in data.features.",
            )
        sizes = [] if feature.decode is not None else feature.shape
        count = math.prod(size or 1 for size in sizes)
        if len(values) != count:
            return Fault(
                f"{name} has {len(values)} values",
                f"{count} for {_tensor(feature)}",
                "Correct its shape in data.features.",
            )
        if feature.decode == "raw" and None not in feature.shape:
            length = math.prod(size or 1 for size in feature.shape) * np.dtype(feature.dtype).itemsize
            assert isinstance(values, list)
            if len(values[0]) != length:
                return Fault(
                    f"{name} has {len(values[0])} bytes",
                    f"{length} bytes for {_tensor(feature)}",
                    "Correct its dtype or shape in data.features.",
                )
    return None


def _tensor(feature: Described) -> str:
    return f"{feature.decode} data" if feature.decode in ("jpeg", "png") else f"{feature.dtype} {list(feature.shape)}"
