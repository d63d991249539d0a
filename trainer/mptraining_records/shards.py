"""Writes the shards of one split: under temporary names first, all of them published at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np

from mptraining_records import files, framing, shard_index, sidecar, storage
from mptraining_records.manifest import File


@dataclass
class _Shard:
    path: Path
    file: BinaryIO
    bytes: int = 0
    crc: int = 0
    lengths: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)


class ShardWriter:
    """Cuts a stream of records into files of about `shard_bytes` in a local folder.

    A shard's final name, `name-00000-of-00004.tfrecord`, needs their number, so `publish` gives it.
    """

    def __init__(self, folder: Path, name: str, shard_bytes: int) -> None:
        self._folder = folder
        self._name = name
        self._shard_bytes = shard_bytes
        self._shards: list[_Shard] = []

    @property
    def records(self) -> int:
        return sum(len(shard.lengths) for shard in self._shards)

    def write(self, record: bytes) -> None:
        """Appends one record, to a new shard when the last one is full."""
        if not self._shards or self._shards[-1].bytes >= self._shard_bytes:
            self._close_last()
            path = self._folder / f"{self._name}-{len(self._shards):05}.tfrecord{files.UNFINISHED}"
            self._shards.append(_Shard(path, path.open("wb")))
        shard, framed = self._shards[-1], framing.encode(record)
        shard.file.write(framed)
        shard.bytes += len(framed)
        shard.crc = google_crc32c.extend(shard.crc, framed)
        shard.lengths.append(len(record))
        shard.checksums.append(framing.footer_format.unpack(framed[-framing.FOOTER :])[0])

    def publish(self, destination: str) -> tuple[File, ...]:
        """Moves the shards to `destination` under their final names, remote ones with their index."""
        self._close_last()
        published = []
        for number, shard in enumerate(self._shards):
            name = f"{self._name}-{number:05}-of-{len(self._shards):05}.tfrecord"
            uri = storage.join(destination, name)
            storage.move(shard.path, uri)
            if storage.is_remote(uri):
                lengths = np.array(shard.lengths, np.int64)
                checksum = shard_index.content_checksum(lengths, np.array(shard.checksums, np.uint32))
                sidecar.save(shard_index.from_lengths(storage.stat(uri), lengths, checksum))
            published.append(File(name=name, records=len(shard.lengths), bytes=shard.bytes, crc32c=shard.crc))
        return tuple(published)

    def close(self) -> None:
        """Closes the file that is being written; what was not published stays in the temporary folder."""
        self._close_last()

    def _close_last(self) -> None:
        if self._shards:
            self._shards[-1].file.close()
