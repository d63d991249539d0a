"""Encoded images, and conversions with the records that they write."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from mptraining_records.convert.convert import convert
from mptraining_records.index import dataset_index
from mptraining_records.reading.reader import RecordReader
from mptraining_records.tfrecord import example
from mptraining_records.tfrecord.features import Feature
from mptraining_records.tfrecord.manifest import Manifest


def picture(kind: str, size: tuple[int, int] = (40, 50), seed: int = 0, mode: str = "RGB") -> bytes:
    """Return an encoded image of noise; `size` is (height, width)."""
    noise = np.random.default_rng(seed).integers(0, 255, (*size, 3), np.uint8)
    content = io.BytesIO()
    Image.fromarray(noise).convert(mode).save(content, kind)
    return content.getvalue()


def records(pattern: str) -> list[dict[str, Any]]:
    """Return the values of every record as lists."""
    dataset = dataset_index.build([pattern])
    with RecordReader(dataset) as reader:
        parsed = [example.parse(record or b"") for record in reader.read(np.arange(dataset.count))]
    return [{name: list(values) for name, (_, values) in row.items()} for row in parsed]


def images(*shape: int | None, decode: str = "jpeg", name: str = "image") -> Feature:
    return Feature.model_validate({"name": name, "dtype": "uint8", "shape": shape, "decode": decode})


class Conversion(NamedTuple):
    """The manifest of the first split and those of all, the notices, the lines of the preview, and the records."""

    made: Manifest
    splits: list[Manifest]
    notices: list[str]
    preview: list[str]
    rows: list[dict[str, Any]]


def conversion(source: Path | str | None, folder: Path | str, **options: Any) -> Conversion:
    """Convert with a preview, in the order of the source unless `keep_order` is False."""
    notices: list[str] = []
    preview: list[str] = []
    options.setdefault("keep_order", True)
    place = None if source is None else str(source)
    splits = convert(place, str(folder), notice=notices.append, preview=preview.append, **options)
    return Conversion(splits[0], splits, notices, preview, records(f"{folder}/*.tfrecord"))
