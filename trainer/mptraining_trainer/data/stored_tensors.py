"""The tensors of features as records store them: parsing of Examples and SequenceExamples, and of encoded values.

A feature of variable size is a RaggedTensor [batch, None, *shape], as from `tf.io.RaggedFeature`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_records.tfrecord import record_check
from mptraining_records.tfrecord.features import IMAGES
from mptraining_records.tfrecord.tensor_proto import item_bytes
from mptraining_trainer.data.schema import Column

# Images or serialized tensors of one example that are decoded in parallel; examples are decoded in parallel as well.
_DECODED_AT_ONCE = 8
# The divisors of a JPEG's sides for which libjpeg has a smaller transform.
_RATIOS = (2, 4, 8)
# Types with the values of 16 bits; floats get the range of 8, in which models expect images.
_KEEPS_16_BITS = frozenset({"uint16", "int32", "uint32", "int64"})


def read(serialized: Any, columns: Sequence[Column]) -> list[Any]:
    """Return the tensors of the columns in records of shape [batch], each with one row for each record.

    Raises InvalidArgumentError, or ValueError outside of a graph, for a record that does not have them.
    """
    single = {column.name: _parsed_as(column) for column in columns if not column.sequence}
    lists = {column.name: _parsed_as(column) for column in columns if column.sequence}
    if lists:
        stored, steps, _ = tf.io.parse_sequence_example(
            serialized, context_features=single or None, sequence_features=lists
        )
    else:
        stored, steps = tf.io.parse_example(serialized, single), {}
    tensors = []
    for column in columns:
        tensor = _steps(steps[column.name], column) if column.sequence else _tensor(stored[column.name], column)
        if not column.is_variable:
            # TensorFlow's optimizer removes a reshape that is none by the static shapes, and with it its error.
            tensor = tf.ensure_shape(tensor, [serialized.shape[0], *column.shape])
        if column.must_be_finite and tensor.dtype.is_floating:
            tensor = tf.ragged.map_flat_values(_finite, tensor)
        tensors.append(tensor)
    return tensors


def image(content: Any, column: Column) -> Any:
    """Decode one image, to the size of the column.

    A label has class numbers, which are neither scaled nor interpolated, unless it is a JPEG. Raises
    InvalidArgumentError for a number outside of the range of an integer column.
    """
    dtype, shape = tf.as_dtype(column.dtype), column.shape[-3:]
    is_label = column.is_label and column.decode != "jpeg"
    pixels = _pixels(content, column, keep_16_bits=is_label or column.dtype in _KEEPS_16_BITS)
    if column.resize and is_label:
        pixels = tf.image.resize(pixels, column.resize, tf.image.ResizeMethod.NEAREST_NEIGHBOR)
    elif column.resize:
        pixels = _resized(pixels, column.resize)
        if dtype.is_integer:
            pixels = tf.round(pixels)
    if dtype.is_integer and pixels.dtype.is_integer and dtype.max < pixels.dtype.max:
        return tf.ensure_shape(_cast(tf.cast(pixels, tf.int64), column), shape)
    return tf.ensure_shape(tf.cast(pixels, dtype), shape)


def _pixels(content: Any, column: Column, *, keep_16_bits: bool) -> Any:
    """Decode an image to uint8, for which TensorFlow scales 16 bits; or to int32 with the numbers of the file."""
    channels, dtype = column.shape[-1], tf.int32 if keep_16_bits else tf.uint8

    def decode() -> Any:
        return tf.cast(tf.io.decode_image(content, channels, expand_animations=False), dtype)

    def decode_16_bits() -> Any:
        return tf.cast(tf.io.decode_png(content, channels, tf.uint16), dtype)

    def decode_reduced(ratio: int) -> Any:
        return tf.cast(tf.io.decode_jpeg(content, channels, ratio), dtype)

    def decode_whole() -> Any:
        if not keep_16_bits:
            return decode()
        # The bits of a value follow the sizes in the header of a PNG.
        has_16_bits = (tf.strings.substr(content, 1, 3) == b"PNG") & (tf.strings.substr(content, 24, 1) == b"\x10")
        return tf.cond(has_16_bits, decode_16_bits, decode)

    if not column.is_reducible:
        return decode_whole()
    branches = [decode_whole, *(partial(decode_reduced, ratio) for ratio in _RATIOS)]
    return tf.switch_case(_reduction(content, column.resize), branches)


def _reduction(content: Any, size: tuple[int, int] | None) -> Any:
    """Return the number of `_RATIOS` by which both sides of a JPEG stay at least `size`; 0 for another format."""

    def of_jpeg() -> Any:
        times = tf.reduce_min(tf.io.extract_jpeg_shape(content)[:2] // size)
        return tf.math.count_nonzero(times >= _RATIOS, dtype=tf.int32)

    return tf.cond(tf.strings.substr(content, 0, 3) == b"\xff\xd8\xff", of_jpeg, lambda: 0)


def _resized(pixels: Any, size: tuple[int, int]) -> Any:
    """Return `tf.image.resize(pixels, size, antialias=True)`, bit for bit, faster.

    Its kernel resizes rows first, then columns. It adds whole rows several values at a time, but columns one by one: so
    columns become rows, and a row is one pixel with many channels.
    """
    for length in size:
        _, width, channels = tf.unstack(tf.shape(pixels))
        rows = tf.image.resize(tf.reshape(pixels, [-1, 1, width * channels]), [length, 1], antialias=True)
        pixels = tf.transpose(tf.reshape(rows, [length, width, channels]), [1, 0, 2])
    return pixels


def _parsed_as(column: Column) -> Any:
    """Return the description of a feature for TensorFlow's parsers."""
    dtype = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}[record_check.stored_as(column)]
    single = column.decode in ("raw", "tensor") or (column.decode in IMAGES and len(column.shape) == 3)
    if column.sequence or (column.is_variable and not single):
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    if single:
        return tf.io.FixedLenFeature([], dtype, _default_content(column))
    shape = column.shape[:1] if column.decode in IMAGES else column.shape
    if column.default is None:
        return tf.io.FixedLenFeature(shape, dtype)
    value: Any = column.default if column.decode is None else _encode_image(column, column.shape[1:])
    default = np.full([size or 0 for size in shape], value, dtype.as_numpy_dtype)
    return tf.io.FixedLenFeature(shape, dtype, default.tolist())


def _default_content(column: Column) -> bytes | None:
    """Return the bytes of the tensor or image that replaces a missing one."""
    if not column.is_optional:
        return None
    if column.decode in IMAGES:
        return _encode_image(column, column.shape)
    if column.decode == "raw" and column.is_variable:
        return b""
    shape = tuple(size or 0 for size in column.shape)
    dtype = tf.as_dtype(column.dtype)
    value = column.default if column.default is not None else "" if dtype == tf.string else 0
    tensor = np.full(shape, value, dtype.as_numpy_dtype)
    return tensor.tobytes() if column.decode == "raw" else bytes(tf.make_tensor_proto(tensor).SerializeToString())


def _encode_image(column: Column, shape: Sequence[int | None]) -> bytes:
    """Return a PNG image in which every value is the column's default."""
    with tf.init_scope():
        pixels = tf.fill([size or 1 for size in shape], tf.cast(column.default or 0, tf.uint8))
        return bytes(tf.io.encode_png(pixels).numpy())


def _tensor(stored: Any, column: Column) -> Any:
    if column.decode in IMAGES:
        return _of_contents(
            stored, lambda content: image(content, column), tf.TensorSpec(column.shape[-3:], column.dtype)
        )
    if column.decode == "raw":
        return _raw(stored, column, column.shape)
    if column.decode == "tensor":
        return _parse_tensors(stored, column, column.shape)
    tensor = _cast(stored, column)
    return _grouped(tensor, column.shape[1:]) if column.is_variable else tensor


def _steps(stored: Any, column: Column) -> Any:
    """Return the feature lists [batch, None, *shape] of the ragged values of each step."""
    shape = column.shape[1:]
    if column.decode is None:
        values = _cast(stored, column)
        if shape == (None,):
            return values
        # Each step needs the values of the shape; their sum alone could be right by chance.
        flat = _each_with(values, math.prod(size or 1 for size in shape))
        flat = tf.reshape(flat, [-1, *shape])
    else:
        contents = _each_with(stored, 1)
        if column.decode in IMAGES:
            flat = _map(contents, lambda content: image(content, column), tf.TensorSpec(shape, column.dtype))
        elif column.decode == "raw":
            flat = _raw(contents, column, shape)
        else:
            flat = _parse_tensors(contents, column, shape)
    return tf.RaggedTensor.from_row_splits(flat, stored.row_splits)


def _each_with(steps: Any, count: int) -> Any:
    """Return the values of ragged steps [batch, None, None], of which each must have `count`."""
    counts = steps.values.row_lengths()
    with tf.control_dependencies([tf.debugging.assert_equal(counts, tf.constant(count, tf.int64))]):
        return tf.identity(steps.flat_values)


def _cast(stored: Any, column: Column) -> Any:
    """Return numbers in the column's type. Raises InvalidArgumentError for an integer outside of its range."""
    dtype = tf.as_dtype(column.dtype)
    if stored.dtype == dtype:
        return stored
    cast = tf.cast(stored, dtype)
    if dtype == tf.bool or not dtype.is_integer:
        return cast
    numbers, whole = (part.flat_values if isinstance(part, tf.RaggedTensor) else part for part in (cast, stored))
    outside = f"a number that is no {column.dtype}"
    with tf.control_dependencies([tf.debugging.assert_equal(tf.cast(numbers, tf.int64), whole, outside)]):
        numbers = tf.identity(numbers)
    return cast.with_flat_values(numbers) if isinstance(cast, tf.RaggedTensor) else numbers


def _finite(numbers: Any) -> Any:
    """Return the numbers. Raises InvalidArgumentError if one is infinite or NaN."""
    are_finite = tf.reduce_all(tf.math.is_finite(numbers))
    text = "a value that is infinite or NaN, which a function in data.preprocess may replace"
    with tf.control_dependencies([tf.debugging.assert_equal(are_finite, True, text)]):
        return tf.identity(numbers)


def _grouped(values: Any, shape: Sequence[int | None]) -> Any:
    """Return the values of each row [batch, None] in groups [batch, None, *shape]."""
    if not shape:
        return values
    group = math.prod(size or 1 for size in shape)
    # The lengths add up to the number of groups only if each is a multiple, which TensorFlow verifies.
    return tf.RaggedTensor.from_row_lengths(tf.reshape(values.flat_values, [-1, *shape]), values.row_lengths() // group)


def _raw(stored: Any, column: Column, shape: Sequence[int | None]) -> Any:
    """Return the tensors of bytes [batch]: [batch, *shape], ragged if the first size is None."""
    if shape and shape[0] is None:
        step_bytes = item_bytes(column.dtype) * math.prod(size or 1 for size in shape[1:])
        lengths = tf.cast(tf.strings.length(stored), tf.int64) // step_bytes
        joined = tf.strings.reduce_join(stored)
        return tf.RaggedTensor.from_row_lengths(tf.reshape(_numbers(joined, column.dtype), [-1, *shape[1:]]), lengths)
    # The number of rows comes from the records, so that bytes of another shape are an error and no further rows.
    return tf.reshape(_numbers(stored, column.dtype), [tf.shape(stored)[0], *shape])


def _numbers(content: Any, dtype: str) -> Any:
    if dtype == "uint32":
        # decode_raw has no kernel for it.
        return tf.bitcast(tf.io.decode_raw(content, tf.int32), tf.uint32)
    return tf.io.decode_raw(content, tf.as_dtype(dtype))


def _parse_tensors(stored: Any, column: Column, shape: Sequence[int | None]) -> Any:
    """Return the tensors of serialized ones [batch]: [batch, *shape], ragged if the first size is None."""

    def parse(content: Any) -> Any:
        return tf.ensure_shape(tf.io.parse_tensor(content, column.dtype), shape)

    if shape and shape[0] is None:
        return _map(stored, parse, tf.RaggedTensorSpec(shape, column.dtype, ragged_rank=0))
    return _map(stored, parse, tf.TensorSpec(shape, column.dtype))


def _of_contents(stored: Any, decode: Any, signature: Any) -> Any:
    """Decode contents [batch] or [batch, n], dense or ragged, to the same with the shape of `signature` appended."""
    if isinstance(stored, tf.RaggedTensor):
        return stored.with_flat_values(_map(stored.flat_values, decode, signature))
    decoded = _map(tf.reshape(stored, [-1]), decode, signature)
    return tf.reshape(decoded, [tf.shape(stored)[0], *stored.shape[1:], *signature.shape])


def _map(contents: Any, decode: Any, signature: Any) -> Any:
    if contents.shape == (1,):
        # A loop takes longer than the decoding of a small image.
        decoded = decode(contents[0])[None]
        is_ragged = isinstance(signature, tf.RaggedTensorSpec)
        return tf.RaggedTensor.from_tensor(decoded, ragged_rank=1) if is_ragged else decoded
    return tf.map_fn(decode, contents, fn_output_signature=signature, parallel_iterations=_DECODED_AT_ONCE)
