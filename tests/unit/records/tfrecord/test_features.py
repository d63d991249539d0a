from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import pytest
from PIL import Image

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord import example, features
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Feature


def _image(kind: str, size: tuple[int, int], mode: str = "RGB") -> bytes:
    content = io.BytesIO()
    Image.new(mode, (size[1], size[0])).save(content, kind)
    return content.getvalue()


def _infer(*rows: Mapping[str, Encodable], label: str | None = None) -> tuple[Feature, ...]:
    return features.infer([example.encode(row) for row in rows], label)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3, 4], Feature(name="x", dtype="int64")),
        ([[1, 2], [3, 4]], Feature(name="x", dtype="int64", shape=(2,))),
        ([0.5, 1.5], Feature(name="x", dtype="float32")),
        ([np.zeros(784), np.ones(784)], Feature(name="x", dtype="float32", shape=(784,))),
        ([b"abc", b""], Feature(name="x", dtype="string")),
        ([["a", "b"], ["c", "d"]], Feature(name="x", dtype="string", shape=(2,))),
        (
            [_image("jpeg", (8, 9)), _image("jpeg", (8, 9))],
            Feature(name="x", dtype="uint8", shape=(8, 9, 3), decode="jpeg"),
        ),
        (
            [_image("jpeg", (8, 9)), _image("jpeg", (7, 9))],
            Feature(name="x", dtype="uint8", shape=(None, 9, 3), decode="jpeg"),
        ),
        ([_image("png", (8, 9), "L")], Feature(name="x", dtype="uint8", shape=(8, 9, 1), decode="png")),
        ([_image("png", (8, 9), "RGBA")], Feature(name="x", dtype="uint8", shape=(8, 9, 4), decode="png")),
        ([_image("png", (8, 9), "P")], Feature(name="x", dtype="uint8", shape=(8, 9, 3), decode="png")),
        (
            [_image("png", (8, 9), "L"), _image("jpeg", (8, 9))],
            Feature(name="x", dtype="uint8", shape=(8, 9, 3), decode="png"),
        ),
        ([_image("png", (8, 9)), b"text"], Feature(name="x", dtype="string")),
        ([1, [1, 2]], Feature(name="x", dtype="int64", shape=(None,))),
        ([[0.5, 1.0], np.zeros(0, np.float32)], Feature(name="x", dtype="float32", shape=(2,))),
        ([["a"], ["b", "c"]], Feature(name="x", dtype="string", shape=(None,))),
        (
            [[_image("jpeg", (8, 9))], [_image("jpeg", (8, 9))] * 2],
            Feature(name="x", dtype="uint8", shape=(None, 8, 9, 3), decode="jpeg"),
        ),
    ],
)
def test_features_are_what_the_records_show(values: list[Encodable], expected: Feature) -> None:
    assert _infer(*({"x": value} for value in values)) == (expected,)


def test_they_are_sorted_by_name() -> None:
    assert [feature.name for feature in _infer({"b": 1, "a": 2, "c": 3})] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"x": 1}, {"x": 0.5}], "its kind varies: float, int64"),
        ([{"x": 1, "y": 1}, {"x": 1}], "record 1: feature 'y' is missing"),
        ([{"x": 1}, {"x": 1, "y": 1}], "record 0: feature 'y' is missing"),
        ([{"x": _image("jpeg", (8, 8))[:20]}], "a damaged image"),
        # Found by fuzzing: an IHDR chunk of 5 bytes is a ValueError in Pillow.
        ([{"x": b"\x89PNG\r\n\x1a\n" + b"\0\0\0\5IHDR" + bytes(9)}], "a damaged image"),
    ],
)
def test_records_that_differ_are_refused(rows: list[Mapping[str, Encodable]], said: str) -> None:
    with pytest.raises(InvalidData, match=said):
        _infer(*rows)


def test_no_records_show_nothing() -> None:
    with pytest.raises(InvalidData, match="no record"):
        features.infer([])


@pytest.mark.parametrize(
    ("mode", "channels", "bits"), [("L", 1, 8), ("1", 1, 1), ("I;16", 1, 16), ("P", 3, 1), ("LA", 4, 8), ("RGBA", 4, 8)]
)
def test_every_mode_of_pillow_has_its_channels(mode: str, channels: int, bits: int) -> None:
    assert features.stored_image(_image("png", (4, 5), mode)) == ("png", (4, 5, channels), bits)


@pytest.mark.parametrize(("label", "dtype"), [("x", "uint16"), (None, "uint8")])
def test_labels_keep_16_bits(label: str | None, dtype: str) -> None:
    (feature,) = _infer({"x": _image("png", (4, 5), "I;16")}, label=label)
    assert feature.dtype == dtype
