"""Tensors of records that TensorFlow wrote, compared with TensorFlow's own parsers and with the arrays themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_trainer.data.schema import Column
from mptraining_trainer.data.stored_tensors import read

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64")
ROWS = ([1, 2, 3], [], [4, 5])


def column(dtype: str, shape: tuple[int | None, ...] = (), decode: str | None = None, **fields: Any) -> Column:
    return Column("x", dtype, shape, decode, fields.pop("resize", None), **fields)


def feature(values: Any) -> tf.train.Feature:
    if len(values) and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if np.asarray(values).dtype.kind == "f" and len(values):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def example(**features: Any) -> bytes:
    made = tf.train.Features(feature={name: feature(values) for name, values in features.items()})
    return bytes(tf.train.Example(features=made).SerializeToString())


def sequence(context: dict[str, Any] | None = None, **lists: Any) -> bytes:
    made = {name: tf.train.FeatureList(feature=map(feature, steps)) for name, steps in lists.items()}
    features = tf.train.Features(feature={name: feature(values) for name, values in (context or {}).items()})
    whole = tf.train.SequenceExample(context=features, feature_lists=tf.train.FeatureLists(feature_list=made))
    return bytes(whole.SerializeToString())


def decoded(one: Column, *records: bytes) -> Any:
    """Decode as tf.data does, in a graph."""
    return tf.function(lambda serialized: read(serialized, [one])[0])(tf.constant(records))


def array(dtype: str, values: Any) -> Any:
    return np.array(values).astype(tf.as_dtype(dtype).as_numpy_dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_bytes_of_every_type_are_read_as_decode_raw_reads_them(dtype: str) -> None:
    arrays = [array(dtype, [[1, 2, 3], [4, 5, 100]]), array(dtype, [[0, 0, 0], [9, 8, 7]])]
    found = decoded(column(dtype, (2, 3), "raw"), *(example(x=[each.tobytes()]) for each in arrays))
    assert found.dtype == tf.as_dtype(dtype)
    assert np.array_equal(found.numpy(), np.stack(arrays))


@pytest.mark.parametrize("dtype", [*DTYPES, "bool", "string"])
def test_serialized_tensors_of_every_type_are_read_as_parse_tensor_reads_them(dtype: str) -> None:
    values = [["a", "bc"], ["", "d"]] if dtype == "string" else [[1, 0], [0, 1]]
    contents = [tf.io.serialize_tensor(tf.constant(array(dtype, value))).numpy() for value in values]
    found = decoded(column(dtype, (2,), "tensor"), *(example(x=[content]) for content in contents))
    assert np.array_equal(found.numpy(), np.stack([tf.io.parse_tensor(each, dtype) for each in contents]))


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if "float" not in dtype])
def test_integers_of_every_type_keep_their_values(dtype: str) -> None:
    limits = np.iinfo(dtype)
    found = decoded(column(dtype, (2,)), example(x=[int(limits.min), int(limits.max)]))
    assert found.numpy().tolist() == [[limits.min, limits.max]]
    assert found.dtype == tf.as_dtype(dtype)


def test_an_integer_outside_of_its_type_is_an_error_and_not_another_number() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        decoded(column("uint8", (2,)), example(x=[1, 256]))


@pytest.mark.parametrize(("dtype", "rows"), [("int64", ROWS), ("float32", ([0.5], [], [1.5, 2.5]))])
def test_a_list_of_varying_length_is_what_ragged_feature_gives(dtype: str, rows: Any) -> None:
    records = [example(x=row) if len(row) else example(other=[1]) for row in rows]
    expected = tf.io.parse_example(records, {"x": tf.io.RaggedFeature(tf.as_dtype(dtype))})["x"]
    found = decoded(column(dtype, (None,)), *records)
    assert found.to_list() == expected.to_list() == [list(row) for row in rows]


def test_an_empty_list_that_tensorflow_wrote_is_empty() -> None:
    assert decoded(column("int64", (None,)), example(x=[]), example(x=[3])).to_list() == [[], [3]]


def test_texts_of_varying_number_stay_bytes() -> None:
    found = decoded(column("string", (None,)), example(x=[b"a", b"bc"]), example(x=[b"d"]))
    assert found.to_list() == [[b"a", b"bc"], [b"d"]]


def test_groups_of_varying_number_have_their_shape() -> None:
    found = decoded(column("float32", (None, 2)), example(x=[1.0, 2.0, 3.0, 4.0]), example(x=[5.0, 6.0]))
    assert found.to_list() == [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]
    assert found.shape[2:] == (2,)


@pytest.mark.parametrize("rows", [([1.0, 2.0, 3.0], [4.0]), ([1.0], [2.0]), ([1.0, 2.0, 3.0],)])
def test_incomplete_groups_are_an_error_although_their_sum_is_right(rows: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        decoded(column("float32", (None, 2)), *(example(x=row) for row in rows))


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "uint32", "int64"])
@pytest.mark.parametrize("decode", ["raw", "tensor"])
def test_encoded_tensors_may_vary_in_their_first_size(dtype: str, decode: str) -> None:
    arrays = [array(dtype, [[1, 2], [3, 4]]), array(dtype, np.zeros((0, 2))), array(dtype, [[5, 6]])]
    contents = [
        each.tobytes() if decode == "raw" else tf.io.serialize_tensor(tf.constant(each)).numpy() for each in arrays
    ]
    found = decoded(column(dtype, (None, 2), decode), *(example(x=[content]) for content in contents))
    assert [row.numpy().tolist() for row in found] == [each.tolist() for each in arrays]


@pytest.mark.parametrize("sizes", [(3,), (1, 3)])
def test_raw_bytes_that_are_no_whole_rows_are_an_error(sizes: tuple[int, ...]) -> None:
    records = [example(x=[np.zeros(size, np.float16).tobytes()]) for size in sizes]
    with pytest.raises(tf.errors.InvalidArgumentError):
        decoded(column("float16", (None, 2), "raw"), *records)


def test_a_serialized_tensor_of_another_type_or_shape_is_an_error() -> None:
    content = tf.io.serialize_tensor(tf.constant([1, 2], tf.int32)).numpy()
    for one in (column("int64", (2,), "tensor"), column("int32", (3,), "tensor")):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
            decoded(one, example(x=[content]))


PNG = tf.io.encode_png(np.full((2, 3, 1), 7, np.uint8)).numpy()
OTHER = tf.io.encode_png(np.full((4, 4, 1), 9, np.uint8)).numpy()


def test_a_list_of_images_has_its_number_and_one_size() -> None:
    one = column("uint8", (None, 2, 2, 1), "png", resize=(2, 2))
    found = decoded(one, example(x=[PNG, OTHER]), example(other=[1]), example(x=[OTHER]))
    assert found.row_lengths().numpy().tolist() == [2, 0, 1]
    assert found.flat_values[:, 0, 0, 0].numpy().tolist() == [7, 9, 9]
    assert found.shape[2:] == (2, 2, 1)


def test_a_fixed_number_of_images_is_one_tensor() -> None:
    found = decoded(column("uint8", (2, 2, 3, 1), "png"), example(x=[PNG, PNG]))
    assert found.shape == (1, 2, 2, 3, 1)
    assert (found.numpy() == 7).all()


DEFAULTS = [
    (column("int64", (2,), default=-1.0), [-1, -1]),
    (column("float32", (), default=0.5), 0.5),
    (column("string", (), default="none"), b"none"),
    (column("bool", (), default=1.0), True),
    (column("float16", (2,), "raw", default=2.0), [2, 2]),
    (column("bfloat16", (2,), "tensor", default=2.0), [2, 2]),
    (column("uint8", (1, 2, 1), "png", default=3.0), [[[3], [3]]]),
]


@pytest.mark.parametrize(("one", "expected"), DEFAULTS, ids=lambda value: getattr(value, "dtype", None))
def test_a_missing_feature_has_its_default(one: Column, expected: Any) -> None:
    found = decoded(one, example(other=[1])).numpy()[0]
    assert (found.tolist() if hasattr(found, "tolist") else found) == expected


def test_a_missing_feature_without_default_is_an_error() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="Feature: x"):
        decoded(column("int64", (2,)), example(other=[1]))


STEPS = [[[1, 2], [3, 4], [5, 6]], [], [[7, 8]]]


def test_feature_lists_are_what_parse_sequence_example_gives() -> None:
    records = [sequence({"id": [number]}, x=steps) for number, steps in enumerate(STEPS)]
    description = {"x": tf.io.FixedLenSequenceFeature([2], tf.int64)}
    _, expected, lengths = tf.io.parse_sequence_example(
        records, {"id": tf.io.FixedLenFeature([], tf.int64)}, description
    )
    found = decoded(column("int64", (None, 2), sequence=True), *records)
    assert found.row_lengths().numpy().tolist() == lengths["x"].numpy().tolist() == [3, 0, 1]
    assert np.array_equal(found.to_tensor().numpy(), expected["x"].numpy())


def test_context_and_feature_lists_are_read_from_one_record() -> None:
    both = [column("int64", (None,), sequence=True), Column("id", "int32", (), None, None)]
    steps, ids = read(tf.constant([sequence({"id": [5]}, x=[[1], [2]])]), [both[0], both[1]])
    assert (steps.to_list(), ids.numpy().tolist()) == ([[1, 2]], [5])


def test_steps_may_have_a_varying_number_of_values() -> None:
    found = decoded(column("int64", (None, None), sequence=True), sequence(x=[[1, 2], [3]]), sequence(x=[[4]]))
    assert found.to_list() == [[[1, 2], [3]], [[4]]]


def test_a_step_with_other_values_is_an_error_although_their_sum_is_right() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        decoded(column("int64", (None, 2), sequence=True), sequence(x=[[1, 2, 3], [4]]))


def test_frames_of_a_feature_list_are_images() -> None:
    one = column("uint8", (None, 2, 3, 1), "png", sequence=True)
    found = decoded(one, sequence(x=[[PNG], [PNG]]), sequence(x=[[PNG]]))
    assert found.row_lengths().numpy().tolist() == [2, 1]
    assert (found.flat_values.numpy() == 7).all()


@pytest.mark.parametrize("decode", ["raw", "tensor"])
def test_steps_may_be_encoded_tensors(decode: str) -> None:
    def content(values: list[int]) -> bytes:
        numbers = np.array(values, np.float16)
        return numbers.tobytes() if decode == "raw" else bytes(tf.io.serialize_tensor(numbers).numpy())

    found = decoded(
        column("float16", (None, 2), decode, sequence=True), sequence(x=[[content([1, 2])], [content([3, 4])]])
    )
    assert found.to_list() == [[[1, 2], [3, 4]]]
