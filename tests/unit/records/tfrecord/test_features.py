"""Features: their inference, and records that do not hold them, as TensorFlow writes them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from mptraining_api.problems import InvalidData
from mptraining_records.tfrecord import example, features
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Decode, Dtype, Feature, infer
from mptraining_records.tfrecord.record_check import Fault, absent, fault, length


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


FEATURES = (
    Feature(name="x", dtype="float32", shape=(2,)),
    Feature(name="raw", dtype="float16", shape=(4,), decode="raw"),
    Feature(name="label", dtype="int64"),
)
SOUND: dict[str, list[Any]] = {"x": [1.0, 2.0], "raw": [np.arange(4, dtype=np.float16).tobytes()], "label": [3]}
DECODE, DTYPE, SHAPE = (f"Correct its {it} in data.features." for it in ("dtype or decode", "dtype or shape", "shape"))


def record(features: dict[str, list[Any]]) -> bytes:
    """Serialize the values with TensorFlow."""

    def of(values: list[Any]) -> tf.train.Feature:
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))

    example = tf.train.Example(features=tf.train.Features(feature={name: of(each) for name, each in features.items()}))
    return bytes(example.SerializeToString())


@pytest.mark.parametrize(
    ("content", "cause", "hint"),
    [
        (b"", "feature 'x' is missing", "The record has: no feature."),
        (b"no example", "not a tf.train.Example; expected serialized tf.train.Example records", ""),
        ({"X": [1.0, 2.0], "label": [3]}, "feature 'x' is missing", "Did you mean 'X'?"),
        ({"raw": SOUND["raw"]}, "feature 'x' is missing", "The record has: raw."),
        (SOUND | {"x": [1, 2]}, "feature 'x' is a int64 list; expected a float list for dtype float32", DECODE),
        (SOUND | {"x": [1.0]}, "feature 'x' has 1 values; expected 2 for float32 [2]", SHAPE),
        (SOUND | {"raw": [bytes(16)]}, "feature 'raw' has 16 bytes; expected 8 bytes for float16 [4]", DTYPE),
        (SOUND | {"raw": [bytes(8)] * 2}, "feature 'raw' has 2 values; expected 1 for float16 [4]", SHAPE),
    ],
    ids=["empty", "no example", "misspelt", "missing", "another kind", "too few", "a multiple", "two values"],
)
def test_the_first_difference_is_named(content: bytes | dict[str, list[Any]], cause: str, hint: str) -> None:
    assert fault(FEATURES, record(SOUND)) is None
    found = fault(FEATURES, content if isinstance(content, bytes) else record(content))
    assert isinstance(found, Fault)
    assert (found.cause, found.hint) == (cause, hint)


TENSOR = bytes(tf.make_tensor_proto([1, 2, 3], tf.int32).SerializeToString())
CASES = [
    (Feature(name="t", dtype="int64", shape=(None, 2)), [1, 2, 3], "has 3 values; expected a multiple of 2"),
    (Feature(name="t", dtype="uint8"), [256], "has the value 256; expected 0 to 255 for dtype uint8"),
    (Feature(name="t", dtype="int8"), [-129], "has the value -129; expected -128 to 127 for dtype int8"),
    (
        Feature(name="t", dtype="bfloat16", shape=(None, 2), decode="raw"),
        [bytes(6)],
        "has 6 bytes; expected a multiple of 4 bytes for bfloat16 [None, 2]",
    ),
    (Feature(name="t", dtype="int64", shape=(2,), decode="tensor"), [TENSOR], "is a tensor int32 [3]; expected"),
    (Feature(name="t", dtype="int64", shape=(2,), decode="tensor"), [b"text"], "is no serialized tensor; expected"),
]


@pytest.mark.parametrize(("feature", "values", "said"), CASES, ids=[case[2].partition(";")[0] for case in CASES])
def test_values_that_would_become_others_are_a_fault(feature: Feature, values: list[Any], said: str) -> None:
    found = fault([feature], record({"t": values}))
    assert found is not None
    assert f"feature 't' {said}" in found.cause


def sequence(**steps: list[list[Any]]) -> bytes:
    lists = {
        name: tf.train.FeatureList(
            feature=[tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for values in each]
        )
        for name, each in steps.items()
    }
    return bytes(tf.train.SequenceExample(feature_lists=tf.train.FeatureLists(feature_list=lists)).SerializeToString())


STEPS = Feature(name="t", dtype="int64", shape=(None, 2), sequence=True)


def test_each_step_of_a_feature_list_is_compared() -> None:
    assert fault([STEPS], sequence(t=[[1, 2], [3, 4]])) is None
    found = fault([STEPS], sequence(t=[[1, 2], [3]]))
    assert found is not None
    assert found.cause == "feature 't', step 1, has 1 values; expected 2 for int64 [None, 2]"


def test_a_feature_that_no_record_has_is_missing_although_it_may_be_empty() -> None:
    assert absent([STEPS], [sequence(t=[[1, 2]]), sequence()]) is None
    assert absent([STEPS], [sequence(), sequence(T=[[1, 2]])]) == Fault(
        "feature 't' is missing", hint="Did you mean 'T'?"
    )


@pytest.mark.parametrize(
    ("feature", "values", "expected"),
    [
        (Feature(name="t", dtype="int64", shape=(None, 2)), [1, 2, 3, 4], 2),
        (Feature(name="t", dtype="float16", shape=(None,), decode="raw"), [bytes(6)], 3),
        (Feature(name="t", dtype="int32", shape=(None,), decode="tensor"), [TENSOR], 3),
    ],
)
def test_the_length_of_a_variable_feature_is_its_first_size(feature: Feature, values: Any, expected: int) -> None:
    assert length(feature, record({"t": values})) == expected


def test_steps_and_tensors_are_inferred() -> None:
    tensor = bytes(tf.make_tensor_proto(np.zeros((2, 3), np.float16)).SerializeToString())
    assert infer([record({"t": [tensor]})]) == (Feature(name="t", dtype="float16", shape=(2, 3), decode="tensor"),)
    assert infer([sequence(t=[[1, 2]]), sequence()]) == (STEPS,)
