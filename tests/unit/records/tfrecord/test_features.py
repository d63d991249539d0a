from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import pytest
from PIL import Image

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord import example, features
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Decode, Dtype, Feature


def _image(kind: str, size: tuple[int, int], mode: str = "RGB") -> bytes:
    content = io.BytesIO()
    Image.new(mode, (size[1], size[0])).save(content, kind)
    return content.getvalue()


def _infer(*rows: Mapping[str, Encodable], label: str | None = None) -> tuple[Feature, ...]:
    return features.infer([example.encode(row) for row in rows], label)


JPEG, PNG = _image("jpeg", (8, 9)), _image("png", (8, 9))


@pytest.mark.parametrize(
    ("values", "dtype", "shape", "decode"),
    [
        ([3, 4], "int64", (), None),
        ([[1, 2], [3, 4]], "int64", (2,), None),
        ([0.5, 1.5], "float32", (), None),
        ([np.zeros(784), np.ones(784)], "float32", (784,), None),
        ([b"abc", b""], "string", (), None),
        ([["a", "b"], ["c", "d"]], "string", (2,), None),
        ([JPEG, JPEG], "uint8", (8, 9, 3), "jpeg"),
        ([JPEG, _image("jpeg", (7, 9))], "uint8", (None, 9, 3), "jpeg"),
        ([_image("png", (8, 9), "L")], "uint8", (8, 9, 1), "png"),
        ([_image("png", (8, 9), "RGBA")], "uint8", (8, 9, 4), "png"),
        ([_image("png", (8, 9), "P")], "uint8", (8, 9, 3), "png"),
        ([_image("png", (8, 9), "L"), JPEG], "uint8", (8, 9, 3), "png"),
        ([PNG, b"text"], "string", (), None),
        ([1, [1, 2]], "int64", (None,), None),
        ([[0.5, 1.0], np.zeros(0, np.float32)], "float32", (2,), None),
        ([["a"], ["b", "c"]], "string", (None,), None),
        ([[JPEG], [JPEG] * 2], "uint8", (None, 8, 9, 3), "jpeg"),
    ],
)
def test_features_are_what_the_records_show(
    values: list[Encodable], dtype: Dtype, shape: tuple[int | None, ...], decode: Decode | None
) -> None:
    assert _infer(*({"x": value} for value in values)) == (Feature(name="x", dtype=dtype, shape=shape, decode=decode),)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no record"),
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


@pytest.mark.parametrize(
    ("mode", "channels", "bits"), [("L", 1, 8), ("1", 1, 1), ("I;16", 1, 16), ("P", 3, 1), ("LA", 4, 8), ("RGBA", 4, 8)]
)
def test_every_mode_of_pillow_has_its_channels(mode: str, channels: int, bits: int) -> None:
    assert features.stored_image(_image("png", (4, 5), mode)) == ("png", (4, 5, channels), bits)


@pytest.mark.parametrize(("label", "dtype"), [("x", "uint16"), (None, "uint8")])
def test_labels_keep_16_bits(label: str | None, dtype: str) -> None:
    # Features are sorted by name.
    other, feature = _infer({"x": _image("png", (4, 5), "I;16"), "a": 1}, label=label)
    assert (other.name, feature.dtype) == ("a", dtype)
