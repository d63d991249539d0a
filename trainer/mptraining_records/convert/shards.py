"""Cuts a stream of records into shards on the local disk, and gives them their final names there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

import google_crc32c

from mptraining_records.storage import local, storage
from mptraining_records.storage.storage import StoredObject
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.manifest import File


@dataclass
class Shard:
    """One shard of a split, the `number`-th: its size, CRC32C, payload lengths in bytes and stored checksums."""

    number: int
    path: Path
    bytes: int = 0
    crc32c: int = 0
    lengths: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)

    def entry(self, name: str) -> File:
        """The shard in a manifest, under its final name."""
        return File(name=name, records=len(self.lengths), bytes=self.bytes, crc32c=self.crc32c)


class ShardWriter:
    """Cuts a stream of records into files of about `shard_bytes` in a local folder.

    `finished` gets each shard once it is whole, and may then move or delete its file.
    """

    def __init__(self, folder: Path, name: str, shard_bytes: int, finished: Callable[[Shard], None]) -> None:
        self._folder = folder
        self._name = name
        self._shard_bytes = shard_bytes
        self._finished = finished
        self._file: BinaryIO | None = None
        self.shards: list[Shard] = []

    @property
    def records(self) -> int:
        return sum(len(shard.lengths) for shard in self.shards)

    def write(self, record: bytes) -> None:
        """Appends one record, to a new shard when the last one is full."""
        if self._file is not None and self.shards[-1].bytes >= self._shard_bytes:
            self.finish()
        if self._file is None:
            number = len(self.shards)
            path = self._folder / f"{self._name}-{number:05}.tfrecord{local.UNFINISHED}"
            self._file = path.open("wb")
            self.shards.append(Shard(number, path))
        shard, framed = self.shards[-1], framing.encode(record)
        self._file.write(framed)
        shard.bytes += len(framed)
        shard.crc32c = google_crc32c.extend(shard.crc32c, framed)
        shard.lengths.append(len(record))
        shard.checksums.append(framing.footer_format.unpack(framed[-framing.FOOTER :])[0])

    def finish(self) -> None:
        """The shard that is being written is whole."""
        if self._file is not None:
            self.close()
            self._finished(self.shards[-1])

    def close(self) -> None:
        """Closes the file that is being written; what was not published stays in the temporary folder."""
        if self._file is not None:
            self._file.close()
            self._file = None


def name_of(split: str, number: int, total: int) -> str:
    """`train-00000-of-00004.tfrecord`: a final name needs the number of all shards."""
    return f"{split}-{number:05}-of-{total:05}.tfrecord"


class ShardFolder:
    """Where the shards of one split go on a disk: they wait beside their final names until all are there."""

    def __init__(self, destination: str, split: str) -> None:
        self._destination = destination
        self._split = split

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send(self, shard: Shard) -> None:
        """It stays where it was written."""

    def wait(self) -> None:
        """Nothing is under way."""

    def publish(self, shards: Sequence[Shard]) -> tuple[File, ...]:
        """Moves whole shards to their final names, and takes away those that are not of this split."""
        names = [name_of(self._split, shard.number, len(shards)) for shard in shards]
        for shard, name in zip(shards, names, strict=True):
            storage.move(shard.path, storage.join(self._destination, name))
        for each in published(self._destination, self._split):
            if each.name not in names:
                storage.delete(each.uri)
        return tuple(shard.entry(name) for shard, name in zip(shards, names, strict=True))

    def done(self) -> None:
        """Nothing is left to take away."""


def published(destination: str, split: str) -> list[StoredObject]:
    """The shards of a split that have their final names, whatever their total."""
    return storage.matching(storage.join(destination, f"{split}-?????-of-?????.tfrecord"))
