"""The records for the measurements: random, written once, as files of a folder that is a bucket too.

shards   100 kB a record      many     so many of 4 kB that no reader keeps them all in memory
images   JPEGs of 500 x 400   photos   JPEGs of 1000 x 800
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from mptraining_records.tfrecord import example, framing

BUCKET = "bench"
_MB = 1_000_000
_FILES = 16


@dataclass(frozen=True)
class Data:
    """One set of records: `size` is bytes of all payloads, `digest` is that of `digest_of`."""

    name: str
    count: int
    size: int
    digest: int
    folder: Path

    def patterns(self, where: str) -> list[str]:
        """Return its pattern in the "bucket" or on the "disk"."""
        return [f"gs://{BUCKET}/{self.name}/*.tfrecord" if where == "bucket" else f"{self.folder}/*.tfrecord"]


def digest_of(records: Sequence[bytes]) -> int:
    """Return a digest that is the same for any order and different for any record lost, doubled or changed."""
    return int(sum(map(google_crc32c.value, records))) % 2**61


def make(root: Path) -> dict[str, Data]:
    """Write all sets below `root`/bench; the same ones every time."""
    return {
        "shards": _write(root, "shards", list(_records(1, 768 * _MB, 100_000))),
        "many": _write(root, "many", list(_records(4, 1280 * _MB, 4_000))),
        "images": _write(root, "images", list(_images(5, 2_000, (500, 400)))),
        "photos": _write(root, "photos", list(_images(6, 1_000, (1000, 800)))),
    }


def _records(seed: int, total: int, mean: int) -> Iterator[bytes]:
    draw = random.Random(seed)
    while total > 0:
        record = draw.randbytes(draw.randint(mean * 4 // 5, mean * 6 // 5))
        total -= len(record)
        yield record


def _images(seed: int, count: int, size: tuple[int, int]) -> Iterator[bytes]:
    """Yield Examples of JPEGs of this width and height: parts of two photos."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    draw = random.Random(seed)
    for number in range(count):
        photo = photos[number % len(photos)]
        width = draw.randint(photo.width // 2, photo.width)
        height = min(photo.height, width * size[1] // size[0])
        left, top = draw.randint(0, photo.width - width), draw.randint(0, photo.height - height)
        content = io.BytesIO()
        part = photo.resize(size, Image.Resampling.BICUBIC, (left, top, left + width, top + height))
        part.save(content, "JPEG", quality=90)
        yield example.encode({"image": content.getvalue(), "label": number})


def _write(root: Path, name: str, records: Sequence[bytes]) -> Data:
    """Write the records to files of about the same number, in order."""
    folder = root / BUCKET / name
    folder.mkdir(parents=True)
    for number in range(_FILES):
        part = records[len(records) * number // _FILES : len(records) * (number + 1) // _FILES]
        content = b"".join(map(framing.encode, part))
        (folder / f"part-{number:05}-of-{_FILES:05}.tfrecord").write_bytes(content)
    return Data(name, len(records), sum(map(len, records)), digest_of(records), folder)
