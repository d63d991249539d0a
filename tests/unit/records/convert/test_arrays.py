from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mptraining_api.problems import InvalidData
from mptraining_records.convert.convert import convert
from mptraining_records.storage import storage
from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.manifest import Manifest
from tests.unit.records.convert.pictures import records


def _convert(path: Path, label: str | None = None, /, **arrays: NDArray[Any]) -> Manifest:
    np.savez(path / "rows.npz", **arrays)
    (made,) = convert(str(path / "rows.npz"), str(path / "out"), label=label, keep_order=True)
    return made


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((3, 8, 8), np.uint8), Feature(name="x", dtype="uint8", shape=(8, 8), decode="raw")),
        (np.zeros(3, np.uint8), Feature(name="x", dtype="int64")),
        (np.zeros((3, 4), np.float32), Feature(name="x", dtype="float32", shape=(4,))),
        (np.zeros((3, 4)), Feature(name="x", dtype="float32", shape=(4,))),
        (np.zeros((3, 4), np.float16), Feature(name="x", dtype="float16", shape=(4,), decode="raw")),
        (np.zeros((3, 2, 2), np.int32), Feature(name="x", dtype="int32", shape=(2, 2))),
        (np.zeros((3, 4), np.int8), Feature(name="x", dtype="int8", shape=(4,), decode="raw")),
        (np.zeros((3, 4), np.uint16), Feature(name="x", dtype="uint16", shape=(4,), decode="raw")),
        (np.zeros((3, 4), np.uint32), Feature(name="x", dtype="uint32", shape=(4,), decode="raw")),
        (np.zeros((3, 4), "V2"), Feature(name="x", dtype="bfloat16", shape=(4,), decode="raw")),
        (np.zeros(3, np.int64), Feature(name="x", dtype="int64")),
        (np.zeros(3, bool), Feature(name="x", dtype="bool")),
        (np.array(["a", "bc", ""]), Feature(name="x", dtype="string")),
    ],
)
def test_arrays_become_features(tmp_path: Path, array: NDArray[Any], expected: Feature) -> None:
    assert _convert(tmp_path, x=array).features == (expected,)


def test_raw_tensors_are_little_endian_in_c_order(tmp_path: Path) -> None:
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    halves = np.asfortranarray(np.arange(12, dtype=">f2").reshape(2, 2, 3))
    _convert(tmp_path, image=images, half=halves)
    first, second = records(f"{tmp_path}/out/*.tfrecord")
    assert first["image"] == [bytes(range(12))]
    assert second["half"] == [np.arange(6, 12, dtype="<f2").tobytes()]


def test_narrowing_is_reported(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros(2))
    said: list[str] = []
    convert(str(tmp_path / "rows.npz"), str(tmp_path / "out"), notice=said.append)
    assert said == ["x: float64 is stored as float32"]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros(3), "y": np.zeros(4)}, "arrays of unequal length: x has 3, y has 4"),
        ({"x": np.float32(1)}, "no row"),
        ({"x": np.zeros((0, 3))}, "no row"),
        ({}, "no array in it"),
        ({"x": np.zeros(2), "y": np.array([1, np.nan])}, "y: the label of row 1 is not a finite number"),
        ({"x": np.array([1j, 2])}, "x: complex128 values"),
        ({"x": np.array([{}], object)}, "not a readable"),
    ],
)
def test_arrays_that_cannot_be_records_are_refused(tmp_path: Path, arrays: dict[str, NDArray[Any]], said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        _convert(tmp_path, **arrays)
    assert not storage.glob_or_empty(f"{tmp_path}/out/*")
