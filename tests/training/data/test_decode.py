"""From serialized examples to tensors, batch by batch."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from mptraining_records.tfrecord.example import encode
from mptraining_trainer.data.decode import bytes_per_example, decoder, fault
from mptraining_trainer.data.schema import Column, Columns

LABEL = Column("label", "int64", (), None, None)


def column(dtype: str, shape: tuple[int, ...] = (), decode: str | None = None, resize: Any = None) -> Column:
    return Column("x", dtype, shape, decode, resize)


def decoded(one: Column, *values: Any) -> np.ndarray:
    records = [encode({"x": value, "label": number}) for number, value in enumerate(values)]
    inputs, labels, weights = tf.function(decoder(Columns((one, LABEL), ("label",), None)))(tf.constant(records))
    assert labels.numpy().tolist() == list(range(len(values)))
    assert weights == ()
    assert inputs.shape[1:] == one.shape
    return np.asarray(inputs)


def picture(array: np.ndarray, kind: str) -> bytes:
    content = io.BytesIO()
    Image.fromarray(array).save(content, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return content.getvalue()


COLOURS = np.tile(np.array([200, 100, 50], np.uint8), (6, 4, 1))


@pytest.mark.parametrize(
    ("one", "values", "expected"),
    [
        (column("float32", (2,)), ([1.5, 2.5], [3.5, 4.5]), np.float32),
        (column("float16", (2,)), ([1.5, 2.5], [3.5, 4.5]), np.float16),
        (column("float64", (2,)), ([1.5, 2.5], [3.5, 4.5]), np.float64),
        (column("int64", (2,)), ([1, 2], [3, 4]), np.int64),
        (column("uint8", (2,)), ([1, 2], [3, 255]), np.uint8),
        (column("bool"), (True, False), np.bool_),
        (column("float32", (2, 2)), ([[1.0, 2.0], [3.0, 4.0]],), np.float32),
    ],
    ids=lambda value: value.dtype if isinstance(value, Column) else None,
)
def test_numbers_keep_their_values_and_get_their_type(one: Column, values: tuple[Any, ...], expected: Any) -> None:
    found = decoded(one, *values)
    assert found.dtype == expected
    assert np.array_equal(found, np.array(values, expected))


def test_text_stays_bytes() -> None:
    assert decoded(column("string", (2,)), ["a", "bc"]).tolist() == [[b"a", b"bc"]]


def test_a_png_comes_back_exactly() -> None:
    numbers = np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8)
    assert np.array_equal(decoded(column("uint8", (6, 4, 3), "png"), picture(numbers, "PNG"))[0], numbers)


def test_a_jpeg_comes_back_almost() -> None:
    found = decoded(column("uint8", (6, 4, 3), "jpeg"), picture(COLOURS, "JPEG"))[0]
    assert np.abs(found.astype(int) - COLOURS).max() <= 4


@pytest.mark.parametrize(("channels", "stored"), [(1, COLOURS[..., 0]), (3, COLOURS), (3, COLOURS[..., 0])])
def test_channels_are_those_of_the_feature(channels: int, stored: np.ndarray) -> None:
    found = decoded(column("uint8", (6, 4, channels), "png"), picture(stored, "PNG"))[0]
    assert np.array_equal(found, np.broadcast_to(stored.reshape(6, 4, -1), (6, 4, channels)))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_of_other_sizes_are_resized(dtype: str) -> None:
    contents = [picture(np.tile(COLOURS, (times, times, 1)), "PNG") for times in (1, 2, 3)]
    found = decoded(column(dtype, (5, 7, 3), "png", (5, 7)), *contents)
    assert found.dtype == dtype
    assert np.allclose(found, np.broadcast_to(COLOURS[0, 0], (3, 5, 7, 3)), atol=1e-3)


def test_resized_integers_are_rounded_not_cut() -> None:
    halves = np.zeros((2, 2, 1), np.uint8)
    halves[0] = 3
    found = decoded(column("uint8", (1, 1, 1), "png", (1, 1)), picture(halves[..., 0], "PNG"))
    assert found.item() == 2


@pytest.mark.parametrize(("sizes", "resize"), [((40, 50), (22, 24)), ((9, 30), (18, 10)), ((1, 1), (4, 4))])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_resized_images_are_those_of_tensorflow(sizes: tuple[int, int], resize: tuple[int, int], dtype: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*sizes, 3), np.uint8)
    expected = tf.image.resize(pixels, resize, antialias=True)
    found = decoded(column(dtype, (*resize, 3), "png", resize), picture(pixels, "PNG"))[0]
    assert np.array_equal(found, np.round(expected) if dtype == "uint8" else expected)


PHOTO = np.random.default_rng(0).integers(0, 256, (65, 100, 3), np.uint8)


@pytest.mark.parametrize(
    ("kind", "resize", "full_scale", "ratio"),
    [
        ("JPEG", (33, 20), False, 1),
        ("JPEG", (20, 51), False, 1),
        ("JPEG", (32, 50), False, 2),
        ("JPEG", (17, 10), False, 2),
        ("JPEG", (16, 25), False, 4),
        ("JPEG", (8, 12), False, 8),
        ("JPEG", (1, 1), False, 8),
        ("JPEG", (8, 12), True, 1),
        ("PNG", (8, 12), False, None),
    ],
)
def test_a_jpeg_is_decoded_at_the_smallest_scale_of_its_new_size(
    kind: str, resize: tuple[int, int], full_scale: bool, ratio: int | None
) -> None:
    content = picture(PHOTO, kind)
    pixels = tf.io.decode_png(content) if ratio is None else tf.io.decode_jpeg(content, ratio=ratio)
    one = replace(column("float32", (*resize, 3), "jpeg", resize), full_scale=full_scale)
    assert np.array_equal(decoded(one, content)[0], tf.image.resize(pixels, resize, antialias=True))


def test_several_inputs_are_a_dict_by_name() -> None:
    both = Columns((Column("a", "int64", (), None, None), column("float32", (2,)), LABEL), ("label",), None)
    inputs, _, _ = decoder(both)(tf.constant([encode({"a": 7, "x": [1.0, 2.0], "label": 0})]))
    assert {name: tensor.numpy().tolist() for name, tensor in inputs.items()} == {"a": [7], "x": [[1.0, 2.0]]}


def test_labels_and_weights_leave_the_inputs() -> None:
    weight = Column("w", "int64", (), None, None)
    columns = Columns(
        (column("float32", (2,)), LABEL, replace(LABEL, name="other"), weight), ("other", "label"), None, "w"
    )
    record = encode({"x": [1.0, 2.0], "label": 3, "other": 4, "w": 5})
    inputs, labels, weights = decoder(columns)(tf.constant([record]))
    assert inputs.numpy().tolist() == [[1.0, 2.0]]
    assert {name: tensor.numpy().tolist() for name, tensor in labels.items()} == {"label": [3], "other": [4]}
    assert (weights.dtype, weights.numpy().tolist()) == (tf.float32, [5.0])


def test_data_without_labels_has_an_empty_tuple_of_them() -> None:
    inputs, labels, _ = decoder(Columns((column("float32", (2,)),), (), None))(tf.constant([encode({"x": [1.0, 2.0]})]))
    assert (inputs.shape, labels) == ((1, 2), ())


TORN = picture(np.random.default_rng(0).integers(0, 256, (6, 4, 3), np.uint8), "PNG")[:-20]


@pytest.mark.parametrize(
    ("one", "value", "cause"),
    [
        (column("float32", (2,)), [1.0, 2.0, 3.0], r"feature 'x' has 3 values; expected 2 for float32 \[2\]"),
        (column("float32", (2,)), 7, "feature 'x' is a int64 list; expected a float list for dtype float32"),
        (
            column("uint8", (6, 4, 3), "png"),
            b"no picture",
            r"feature 'x' cannot be decoded: Unknown image file format\..* required$",
        ),
        (column("uint8", (6, 4, 3), "png"), TORN, "feature 'x' cannot be decoded: Invalid PNG"),
        (column("uint8", (5, 5, 3), "png"), picture(COLOURS, "PNG"), r"feature 'x' cannot be decoded: .*\[6,4,3\]"),
        (column("int32", (2, 3), "raw"), b"12345", r"feature 'x' has 5 bytes; expected 24 bytes for int32 \[2, 3\]"),
        (column("float16", (4,), "raw"), bytes(16), r"feature 'x' has 16 bytes; expected 8 bytes for float16 \[4\]"),
    ],
    ids=["too many values", "another kind", "no picture", "torn", "another size", "cut off", "a multiple"],
)
def test_what_is_not_as_the_columns_say_is_an_error_with_its_cause(one: Column, value: Any, cause: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        decoded(one, value)
    found = fault(Columns((one, LABEL), ("label",), None), encode({"x": value, "label": 0}))
    assert found is not None
    assert re.match(cause, found), found


def test_a_record_that_can_be_decoded_has_no_fault() -> None:
    columns = Columns((column("uint8", (6, 4, 3), "png"), LABEL), ("label",), None)
    assert fault(columns, encode({"x": picture(COLOURS, "PNG"), "label": 0})) is None


def test_memory_of_an_example() -> None:
    assert bytes_per_example([column("uint8", (6, 4, 3)), LABEL, column("float32", (10,))]) == 72 + 8 + 40
