"""The records of each model: noise, since time is measured and not accuracy.

`synthetic` are raw tensors, which the trainer keeps in memory after the first pass; `streamed` are read from the disk
in every pass, images as JPEG to decode.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from hardware.cells import SIZES, ModelName, Scale, Size, Source
from mptraining_records.convert.convert import convert

CLASSES = 10
# Noise of this many pixels is enlarged: a JPEG of it has a photograph's size, of single pixels ten times that.
_COARSE = 8
_JPEGS = 256
# No model has a smaller vocabulary.
_TOKENS = 64


def pattern(folder: Path, model: ModelName, scale: Scale, source: Source) -> str:
    """Write the records unless an earlier measurement did; return the pattern of the shards."""
    size = SIZES[scale][model]
    images = len(size.shape) == 3
    name = f"{'x'.join(map(str, size.shape))}-{'jpeg' if images and source == 'streamed' else 'raw'}"
    written = folder / "records" / name
    if not list(written.glob("*-manifest.json")):
        if name.endswith("jpeg"):
            _jpegs(folder / "jpeg", size)
            convert(str(folder / "jpeg"), str(written), overwrite=True)
        else:
            written.mkdir(parents=True, exist_ok=True)
            np.savez(folder / f"{name}.npz", allow_pickle=False, **_arrays(model, size))
            convert(str(folder / f"{name}.npz"), str(written), keep_order=True, overwrite=True)
            (folder / f"{name}.npz").unlink()
    return str(written / "train-*.tfrecord")


def _arrays(model: ModelName, size: Size) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(7)
    shape = (size.examples, *size.shape)
    labels = numbers.integers(0, CLASSES, size.examples)
    if len(size.shape) == 3:
        return {"image": numbers.integers(0, 256, shape, dtype=np.uint8), "label": labels}
    if model == "transformer":
        return {"tokens": numbers.integers(0, _TOKENS, shape), "label": labels}
    return {"vector": numbers.normal(size=shape).astype(np.float32), "label": labels}


def _jpegs(folder: Path, size: Size) -> None:
    numbers = np.random.default_rng(7)
    height, width = size.shape[:2]
    distinct = [
        numbers.integers(0, 256, (max(1, height // _COARSE), max(1, width // _COARSE), 3), dtype=np.uint8)
        for _ in range(min(_JPEGS, size.examples))
    ]
    for number in range(size.examples):
        file = folder / f"class-{number % CLASSES}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        large = Image.fromarray(distinct[number % len(distinct)]).resize((width, height), Image.Resampling.BICUBIC)
        large.save(file, quality=90)
