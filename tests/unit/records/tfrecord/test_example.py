"""Frames of records and tf.train.Examples, as TensorFlow writes them."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord import example, framing

# Written by tf.io.TFRecordWriter of TensorFlow 2.21: the records b"hello" and b"".
FRAMED = bytes.fromhex("0500000000000000eab2043e68656c6c6fbb1f1c19000000000000000029039807d8ea82a2")


def test_records_are_framed_as_tensorflow_frames_them() -> None:
    assert framing.encode(b"hello") + framing.encode(b"") == FRAMED
    framing.refuse_foreign("file", FRAMED)
    framing.refuse_foreign("file", b"")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PAR1" + bytes(20), "a Parquet file"),
        (b"PK\x03\x04" + bytes(20), r"a ZIP or NumPy .npz file"),
        (b"\xff\xd8\xff\xe0" + bytes(20), "a JPEG image"),
        (b"label,pixel\n1,2\n", "begins b'label,pi'"),
        (b"short", "begins b'short'"),
        (gzip.compress(FRAMED, mtime=0), "is compressed"),
        (zlib.compress(FRAMED), "is compressed"),
    ],
)
def test_other_files_are_refused_with_the_way_out(content: bytes, said: str) -> None:
    with pytest.raises(InvalidData, match=said) as caught:
        framing.refuse_foreign("gs://bucket/file", content)
    assert str(caught.value).startswith("gs://bucket/file: ")
    assert caught.value.next_step


# Written by TensorFlow 2.21: b = [b"x", b"y"], f = [1.5], i = [-1, 2].
BY_TENSORFLOW = bytes.fromhex(
    "0a340a0d0a016212080a060a01780a01790a0d0a0166120812060a040000c03f0a140a0169120f1a0d0a0bffffffffffffffffff0102"
)


def test_records_are_those_of_tensorflow() -> None:
    features = {"i": [-1, 2], "f": np.array([1.5]), "b": [b"x", "y"]}
    assert example.encode(features) == BY_TENSORFLOW
    parsed = example.parse(BY_TENSORFLOW)
    assert parsed["b"] == ("bytes", [b"x", b"y"])
    for name, kind, values in (("f", "float", [1.5]), ("i", "int64", [-1, 2])):
        assert parsed[name][0] == kind
        assert np.array(parsed[name][1]).tolist() == values


@pytest.mark.parametrize(
    ("value", "kind", "values"),
    [
        (b"\xff\0", "bytes", [b"\xff\0"]),
        ("grün", "bytes", ["grün".encode()]),
        (["a", b"b"], "bytes", [b"a", b"b"]),
        (np.array(["a", "bc"]), "bytes", [b"a", b"bc"]),
        (7, "int64", [7]),
        (True, "int64", [1]),
        (np.uint8(200), "int64", [200]),
        (np.array([[1, 2], [3, 4]], np.int32), "int64", [1, 2, 3, 4]),
        ([True, False], "int64", [1, 0]),
        (0.5, "float", [0.5]),
        ([1, 0.5], "float", [1.0, 0.5]),
        (np.array([0.5], np.float16), "float", [0.5]),
    ],
)
def test_values_become_lists_of_their_kind(value: example.Encodable, kind: str, values: list[object]) -> None:
    found_kind, found = example.parse(example.encode({"x": value}))["x"]
    assert found_kind == kind
    assert list(found) == values


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.lists(st.binary(), min_size=1)
        | st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1)
        | st.lists(st.floats(width=32, allow_nan=False), min_size=1),
        max_size=5,
    )
)
def test_features_survive(features: dict[str, list[bytes] | list[int] | list[float]]) -> None:
    parsed = example.parse(example.encode(features))
    assert {name: list(values) for name, (_, values) in parsed.items()} == features


def test_what_cannot_be_stored_is_refused() -> None:
    for value in (np.array([1j]), [b"a", 1], np.array([None])):
        with pytest.raises(TypeError, match="feature 'x'"):
            example.encode({"x": value})


def test_what_is_no_example_is_refused() -> None:
    with pytest.raises(InvalidData, match=r"not a tf\.train\.Example"):
        example.parse(b"\x0a\xff")


def test_the_package_does_not_import_tensorflow() -> None:
    code = """
import pkgutil, sys, mptraining_records
for module in pkgutil.walk_packages(mptraining_records.__path__, "mptraining_records."):
    __import__(module.name)
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)
