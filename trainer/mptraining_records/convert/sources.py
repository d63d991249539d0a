"""What can be converted: each kind of source gives rows of named values, and says what they hold.

`images` reads a folder of pictures, `tables` CSV and Parquet, `arrays` NumPy's .npz.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from mptraining_api.problems import InvalidData
from mptraining_records.convert import arrays, images, tables
from mptraining_records.storage import storage
from mptraining_records.tfrecord.example import Encodable
from mptraining_records.tfrecord.features import Feature

_KINDS = "a folder of images, .csv, .parquet or .npz"


class Source(Protocol):
    """`features` is complete once all rows were read; `notices` are said to the user before that."""

    @property
    def count(self) -> int: ...
    @property
    def label(self) -> str | None: ...
    @property
    def classes(self) -> tuple[str, ...] | None: ...
    @property
    def notices(self) -> tuple[str, ...]: ...
    def rows(self) -> Iterator[Mapping[str, Encodable]]: ...
    def features(self) -> tuple[Feature, ...]: ...


@contextmanager
def opened(uri: str, *, label: str | None, image_size: tuple[int, int] | None) -> Iterator[Source]:
    """The source at `uri`, local or remote; `image_size` is (height, width).

    Raises InvalidData when there is nothing, or nothing of a known kind.
    """
    suffix = Path(uri).suffix.lower()
    if suffix not in (".csv", ".parquet", ".npz"):
        if not storage.is_remote(uri) and storage.exists(uri):
            raise InvalidData(uri, f"unknown kind of source {suffix or 'without a suffix'!r}", expected=_KINDS)
        if not storage.is_remote(uri) and not storage.local_path(uri).exists():
            raise InvalidData(uri, "no such file or folder", expected=_KINDS)
        yield images.Folder(uri, label=label, size=image_size)
        return
    with storage.at_hand(uri) as path:
        if suffix == ".npz":
            yield arrays.Arrays(uri, path, label=label)
        else:
            yield tables.Table(uri, path, label=label)
