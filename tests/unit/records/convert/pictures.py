"""Encoded images, and the records of a converted split."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from mptraining_records.index import dataset_index
from mptraining_records.reading.reader import RecordReader
from mptraining_records.tfrecord import example


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
