"""The first records of a conversion as lines for people, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from mptraining_records.convert.permutation import permutation
from mptraining_records.convert.sources import Source
from mptraining_records.tfrecord import features
from mptraining_records.tfrecord.example import Encodable

ROWS = 3
_WIDTH = 60


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
    if isinstance(value, bytes):
        kind = features.image_kind(value)
        if kind:
            height, width, channels = features.image_shape(value)
            return f"{kind} {height}x{width}x{channels}"
    if isinstance(value, bytes | str):
        text: Any = value.decode(errors="replace") if isinstance(value, bytes) else value
        return repr(text[:_WIDTH]) + ("…" if len(text) > _WIDTH else "")
    if isinstance(value, list) and value and isinstance(value[0], bytes | str):
        return f"[{len(value)}] {_value(source, '', value[0])}{', …' if len(value) > 1 else ''}"
    array = np.asarray(value)
    if array.ndim:
        return f"{list(array.shape)} {array.ravel()[:4].tolist()}{'…' if array.size > 4 else ''}"
    if name == source.label and source.classes is not None:
        return f"{array.item()} ({source.classes[array.item()]})"
    return str(array.item())
