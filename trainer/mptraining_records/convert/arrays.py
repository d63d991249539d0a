"""A NumPy .npz file as rows: every array gives one feature, its first dimension counts the rows."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.labels import choose_label


class Arrays:
    """Tensors of uint8 and float16 are stored as their bytes, float64 as float32, text labels as classes."""

    def __init__(self, uri: str, path: Path, *, label: str | None) -> None:
        arrays = _load(uri, path)
        lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise InvalidData(
                uri,
                f"arrays of unequal length: {said}" if said else "no array in it",
                expected="one row of every array for each record",
                next_step="Save each split to a file of its own" if said else "",
            )
        self.count = next(iter(lengths.values()))
        self.label = choose_label(uri, list(arrays), label)
        self.classes: tuple[str, ...] | None = None
        self.notices: tuple[str, ...] = ()
        if self.label and arrays[self.label].dtype.kind in "SU":
            names, numbers = np.unique(arrays[self.label].astype(str), return_inverse=True)
            self.classes = tuple(names.tolist())
            arrays[self.label] = numbers.reshape(self.count).astype(np.int64)
        for name, array in arrays.items():
            if array.dtype == np.float64:
                self.notices += (f"{name}: float64 is stored as float32",)
            if array.dtype.kind not in "buifSU":
                raise InvalidData(uri, f"{name}: {array.dtype} values", expected="numbers, booleans or text")
            if name == self.label and array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                raise InvalidData(uri, f"{name}: the label of row {row} is not a finite number")
        self._arrays = arrays
        self._features = tuple(_feature(name, array) for name, array in sorted(arrays.items()))

    def rows(self) -> Iterator[Mapping[str, Encodable]]:
        for row in range(self.count):
            yield {feature.name: _stored(feature, self._arrays[feature.name][row]) for feature in self._features}

    def features(self) -> tuple[Feature, ...]:
        return self._features


def _load(uri: str, path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidData(uri, f"not a readable .npz file: {error}") from error
    return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}


def _feature(name: str, array: NDArray[Any]) -> Feature:
    shape = array.shape[1:]
    kind = array.dtype.kind
    if kind == "f":
        if array.dtype == np.float16:
            return Feature(name=name, dtype="float16", shape=shape, decode="raw")
        return Feature(name=name, dtype="float32", shape=shape)
    if kind in "SU":
        return Feature(name=name, dtype="string", shape=shape)
    if kind == "b":
        return Feature(name=name, dtype="bool", shape=shape)
    if array.dtype == np.uint8 and shape:
        return Feature(name=name, dtype="uint8", shape=shape, decode="raw")
    return Feature(name=name, dtype="int32" if array.dtype == np.int32 else "int64", shape=shape)


def _stored(feature: Feature, value: Any) -> Encodable:
    if feature.decode == "raw":
        array = np.asarray(value)
        return array.astype(array.dtype.newbyteorder("<")).tobytes()
    return np.asarray(value)
