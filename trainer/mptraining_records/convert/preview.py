"""The first records of a conversion as lines for people, before anything is written."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mptraining_records.convert.permutation import permutation
from mptraining_records.convert.sources import Source
from mptraining_records.tfrecord import features, tensor_proto
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Feature

ROWS = 3
_WIDTH = 60
# So many numbers are listed.
_FEW = 6


def preview(source: Source, seed: int | None) -> Iterator[str]:
    """Yield one line for each of the first rows; with random access these are the first records of the order."""
    yield f"{source.count:,} rows; label: {source.label or 'none'}{_classes(source)}; the first:"
    order = permutation(source.count, seed)[:ROWS] if seed is not None and source.random_access else None
    for number, row in islice(source.rows(order), ROWS):
        values = ", ".join(f"{name} {_value(source, name, value)}" for name, value in sorted(row.items()))
        yield f"  {source.origin(number)}: {values}"


def _classes(source: Source) -> str:
    if source.classes is None:
        return ""
    shown = ", ".join(source.classes[:10])
    more = f", … ({len(source.classes)} classes)" if len(source.classes) > 10 else ""
    return f" ({shown}{more})"


def _value(source: Source, name: str, value: Encodable) -> str:
    if isinstance(value, list) and len(value) == 1:
        # A record of TensorFlow Datasets has one value as a list.
        return _value(source, name, value[0])
    if isinstance(value, list) and value and isinstance(value[0], bytes | str):
        return f"[{len(value)}] {_value(source, '', value[0])}, …"
    if isinstance(value, bytes | str):
        feature = next((each for each in source.features() if each.name == name), None)
        return _bytes(value, feature) if isinstance(value, bytes) else _text(value)
    array = np.asarray(value)
    if array.ndim:
        return _array(array)
    if name == source.label and source.classes is not None:
        return f"{array.item()} ({source.classes[array.item()]})"
    scalar = array.item()
    return _value(source, name, scalar) if isinstance(scalar, bytes | str) else str(scalar)


def _bytes(value: bytes, feature: Feature | None) -> str:
    """Return what an image, a tensor, a text or other bytes are."""
    from PIL import Image

    image = features.stored_image(value)
    if image is not None:
        with Image.open(io.BytesIO(value)) as opened:
            # As TensorFlow decodes them.
            pixels = np.asarray(opened.convert({"1": "L", "P": "RGB", "CMYK": "RGB"}.get(opened.mode, opened.mode)))
        return f"{image.kind} {'x'.join(map(str, image.shape))} {pixels.dtype} {_range(pixels)}"
    if feature is not None and feature.decode == "raw":
        if feature.dtype == "bfloat16":
            # The upper half of a float32.
            numbers = (np.frombuffer(value, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            numbers = np.frombuffer(value, np.dtype(feature.dtype).newbyteorder("<"))
        return _array(numbers.reshape([-1 if size is None else size for size in feature.shape]), feature.dtype)
    tensor = tensor_proto.header(value)
    if tensor is not None and tensor.whole:
        return f"{tensor.dtype} {list(tensor.shape)} of tf.io.serialize_tensor"
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    return _text(text) if text.replace("\n", "").replace("\t", "").isprintable() else f"{len(value):,} bytes"


def _text(text: str) -> str:
    return repr(text[:_WIDTH]) + ("…" if len(text) > _WIDTH else "")


def _array(array: NDArray[Any], dtype: str = "") -> str:
    """Return type, shape, and the numbers if they are few, else their range."""
    values = str(array.tolist()) if array.size <= _FEW or array.dtype.kind in "SUO" else _range(array)
    return f"{dtype or array.dtype} {list(array.shape)} {values[:_WIDTH]}"


def _range(array: NDArray[Any]) -> str:
    """Return the numbers that occur if they are few, as in a mask of classes, else the smallest and the largest."""
    numbers = np.unique(array[np.isfinite(array)])
    infinite = " and not finite" if len(numbers) and not np.isfinite(array).all() else ""
    if len(numbers) <= _FEW:
        return "{" + ", ".join(f"{number:g}" for number in numbers) + "}" + infinite
    return f"{numbers[0]:g} to {numbers[-1]:g}{infinite}"
