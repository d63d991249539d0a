"""NumPy's .npz file as a source of rows: one row of every array for each record."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert.request import Request, check_column, stored_columns
from mptraining_records.reading.order import Int64s
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Feature, choose_label

# As ml_dtypes.bfloat16 is after `np.savez` and `np.load`.
_BFLOAT16 = np.dtype("V2")
_STORED_AS_BYTES = frozenset({"int8", "uint8", "int16", "uint16", "uint32"})


class Arrays:
    """.npz: float64 is stored as float32, a text label as class numbers.

    Tensors of small numbers (integers below 64 bits but int32, float16 and bfloat16) are stored as bytes. NumPy has no
    name for bfloat16 and writes it as two bytes without a type.
    """

    random_access = True

    def __init__(self, uri: str, path: Path, request: Request) -> None:
        arrays = _load(uri, path)
        lengths = {name: array.shape[0] if array.ndim else 0 for name, array in arrays.items()}
        if len(set(lengths.values())) != 1:
            found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise InvalidData(
                uri,
                f"arrays of unequal length: {found}" if found else "no array in it",
                expected="one row of every array for each record",
                next_step="Save each split to a separate file" if found else "",
            )
        self.count = next(iter(lengths.values()))
        self.label = choose_label(uri, list(arrays), request.label)
        self.classes: tuple[str, ...] | None = None
        self._groups: NDArray[Any] | None = None
        if request.group is not None:
            check_column(uri, "--group", request.group, list(arrays))
            self._groups = arrays[request.group]
        kept = stored_columns(uri, list(arrays), self.label, request)
        arrays = {name: array for name, array in arrays.items() if name in kept}
        if self.label and arrays[self.label].dtype.kind in "SU":
            names, numbers = np.unique(arrays[self.label].astype(str), return_inverse=True)
            self.classes = tuple(names.tolist())
            arrays[self.label] = numbers.reshape(self.count).astype(np.int64)
        for name, array in arrays.items():
            if array.dtype == np.float64:
                request.notice(f"{name}: float64 is stored as float32")
            if array.dtype == _BFLOAT16:
                request.notice(f"{name}: two bytes without a type are bfloat16")
            elif array.dtype.kind not in "buifSU":
                raise InvalidData(uri, f"{name}: {array.dtype} values", expected="numbers, booleans or text")
            if name == self.label and array.dtype.kind == "f" and not np.isfinite(array).all():
                row = int(np.argwhere(~np.isfinite(array))[0][0])
                raise InvalidData(uri, f"{name}: the label of row {row} is not a finite number")
        self._arrays = arrays
        self._features = tuple(_feature(name, array) for name, array in sorted(arrays.items()))

    def rows(self, numbers: Int64s | None = None) -> Iterator[tuple[int, Mapping[str, Encodable]]]:
        for row in range(self.count) if numbers is None else numbers.tolist():
            values = {each.name: _encodable(each, self._arrays[each.name][row]) for each in self._features}
            yield row, values

    def features(self) -> tuple[Feature, ...]:
        return self._features

    def labels(self) -> Int64s | None:
        if self.label is None or self._arrays[self.label].ndim != 1 or self._arrays[self.label].dtype.kind not in "bui":
            return None
        return self._arrays[self.label].astype(np.int64)

    def groups(self) -> NDArray[Any]:
        assert self._groups is not None
        return self._groups

    def origin(self, number: int) -> str:
        return f"row {number}"


def _load(uri: str, path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidData(uri, f"not a readable .npz file: {error}") from error
    return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}


def _feature(name: str, array: NDArray[Any]) -> Feature:
    shape, dtype = array.shape[1:], array.dtype
    as_bytes = dtype in (np.float16, _BFLOAT16) or (shape and dtype.name in _STORED_AS_BYTES)
    if dtype == _BFLOAT16:
        stored = "bfloat16"
    elif as_bytes or dtype == np.int32:
        stored = dtype.name
    else:
        stored = {"f": "float32", "S": "string", "U": "string", "b": "bool"}.get(dtype.kind, "int64")
    return Feature.model_validate(
        {"name": name, "dtype": stored, "shape": shape, "decode": "raw" if as_bytes else None}
    )


def _encodable(feature: Feature, value: Any) -> Encodable:
    if feature.decode == "raw":
        array = np.asarray(value)
        return array.astype(array.dtype.newbyteorder("<")).tobytes()
    return np.asarray(value)
