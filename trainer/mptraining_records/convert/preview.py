"""The first records of a conversion as lines for people, before anything is written."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mptraining_records.convert.permutation import permutation
from mptraining_records.convert.table import Table
from mptraining_records.tfrecord import example, features, tensor_proto
from mptraining_records.tfrecord.example import Values
from mptraining_records.tfrecord.features import Feature

ROWS = 3
_WIDTH = 60
# So many numbers are listed.
_FEW = 6


def preview(source: Table, seed: int | None) -> Iterator[str]:
    """Yield one line for each of the first rows; with random access these are the first records of the order."""
    yield f"{source.count:,} rows; label: {source.label or 'none'}{_classes(source)}; the first:"
    order = permutation(source.count, seed)[:ROWS] if seed is not None and source.random_access else None
    for number, record in islice(source.records(order), ROWS):
        described = {feature.name: feature for feature in source.features()}
        row = sorted(example.parse(record).items())
        values = ", ".join(f"{name} {_value(source, described[name], value)}" for name, (_, value) in row)
        yield f"  {source.origin(number)}: {values}"


def _classes(source: Table) -> str:
    if source.classes is None:
        return ""
    shown = ", ".join(source.classes[:10])
    more = f", … ({len(source.classes)} classes)" if len(source.classes) > 10 else ""
    return f" ({shown}{more})"


def _value(source: Table, feature: Feature, values: Values) -> str:
    """Return the values of a feature: images and texts one by one, numbers with their type and shape."""
    if isinstance(values, list):
        first = _bytes(values[0], feature) if values else "[0] []"
        return f"[{len(values)}] {first}, …" if len(values) > 1 else first
    values = values.astype(bool) if feature.dtype == "bool" else values
    if feature.shape:
        return _array(values, feature)
    if feature.name == source.label and source.classes is not None:
        return f"{values[0]} ({source.classes[values[0]]})"
    return str(values[0])


def _bytes(value: bytes, feature: Feature) -> str:
    """Return what an image, a tensor, a text or other bytes are."""
    from PIL import Image

    image = features.stored_image(value)
    if image is not None:
        with Image.open(io.BytesIO(value)) as opened:
            # As TensorFlow decodes them.
            pixels = np.asarray(opened.convert({"1": "L", "P": "RGB", "CMYK": "RGB"}.get(opened.mode, opened.mode)))
        return f"{image.kind} {'x'.join(map(str, image.shape))} {pixels.dtype} {_range(pixels)}"
    if feature.decode == "raw":
        if feature.dtype == "bfloat16":
            # The upper half of a float32.
            numbers = (np.frombuffer(value, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            numbers = np.frombuffer(value, np.dtype(feature.dtype).newbyteorder("<"))
        return _array(numbers, feature)
    tensor = tensor_proto.header(value)
    if tensor is not None and tensor.whole:
        return f"{tensor.dtype} {list(tensor.shape)} of tf.io.serialize_tensor"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not text.replace("\n", "").replace("\t", "").isprintable():
        return f"{len(value):,} bytes"
    return repr(text[:_WIDTH]) + ("…" if len(text) > _WIDTH else "")


def _array(values: NDArray[Any], feature: Feature) -> str:
    """Return type, shape, and the numbers if they are few, else their range."""
    array = values.reshape([-1 if size is None else size for size in feature.shape])
    shown = str(array.tolist()) if array.size <= _FEW else _range(array)
    return f"{feature.dtype} {list(array.shape)} {shown[:_WIDTH]}"


def _range(array: NDArray[Any]) -> str:
    """Return the numbers that occur if they are few, as in a mask of classes, else the smallest and the largest."""
    numbers = np.unique(array[np.isfinite(array)])
    infinite = " and not finite" if len(numbers) and not np.isfinite(array).all() else ""
    if len(numbers) <= _FEW:
        return "{" + ", ".join(f"{number:g}" for number in numbers) + "}" + infinite
    return f"{numbers[0]:g} to {numbers[-1]:g}{infinite}"
