"""Shards of a split: written locally from a stream of records, uploaded to a bucket, published under final names."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

import google_crc32c
import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.index import shard_index, sidecar
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.manifest import File
from mptraining_storage import local, storage
from mptraining_storage.preconditions import StoredObject


@dataclass
class Shard:
    """Shard number `number` of a split: its size in bytes, CRC32C, payload lengths in bytes and stored checksums."""

    number: int
    path: Path
    bytes: int = 0
    crc32c: int = 0
    lengths: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)

    def entry(self, name: str) -> File:
        """Return the shard's entry in a manifest, with its final name."""
        return File(name=name, records=len(self.lengths), bytes=self.bytes, crc32c=self.crc32c)


@dataclass
class ShardWriter:
    """Writes a stream of records to files of about `shard_bytes` in a local folder.

    `on_finished` is called with each complete shard, and may move or delete its file.
    """

    folder: Path
    name: str
    shard_bytes: int
    on_finished: Callable[[Shard], None]
    shards: list[Shard] = field(default_factory=list)
    _file: BinaryIO | None = None

    @property
    def records(self) -> int:
        return sum(len(shard.lengths) for shard in self.shards)

    def write(self, record: bytes) -> None:
        """Append one record, to a new shard if the last one is full."""
        if self._file is not None and self.shards[-1].bytes >= self.shard_bytes:
            self.finish()
        if self._file is None:
            number = len(self.shards)
            path = self.folder / f"{self.name}-{number:05}.tfrecord{local.UNFINISHED}"
            self._file = path.open("wb")
            self.shards.append(Shard(number, path))
        shard, framed = self.shards[-1], framing.encode(record)
        self._file.write(framed)
        shard.bytes += len(framed)
        shard.crc32c = google_crc32c.extend(shard.crc32c, framed)
        shard.lengths.append(len(record))
        shard.checksums.append(framing.footer_format.unpack(framed[-framing.FOOTER :])[0])

    def finish(self) -> None:
        """Close the current shard and pass it to `on_finished`."""
        if self._file is not None:
            self.close()
            self.on_finished(self.shards[-1])

    def close(self) -> None:
        """Close the current file, which stays in the temporary folder."""
        if self._file is not None:
            self._file.close()
            self._file = None


def list_published(destination: str, split: str) -> list[StoredObject]:
    """List the shards of a split with final names, for any total."""
    return storage.glob_or_empty(storage.join(destination, f"{split}-?????-of-?????.tfrecord"))


# The maximum number of complete shards on the local disk, including those being uploaded.
MAX_PENDING_SHARDS = 4
_FOLDER = ".unfinished"
_THREADS = 8


def is_resumable(destination: str, split: str, arguments: Mapping[str, object]) -> bool:
    """Return whether `destination` has an unfinished conversion of this split with the same arguments."""
    try:
        return bool(json.loads(storage.read(_marker(destination, split))) == json.loads(json.dumps(arguments)))
    except (InvalidData, ValueError):
        return False


class ShardOutput:
    """Stores one split's shards at `destination`; a context manager that stops its threads at the end.

    Shards for a local folder stay in the temporary folder until all are written; those for a bucket are uploaded.
    `arguments`, serializable as JSON, identify a conversion to a bucket that may resume.
    """

    def __init__(self, destination: str, split: str, arguments: Mapping[str, object]) -> None:
        self._destination = destination
        self._split = split
        self._is_remote = storage.is_remote(destination)
        self._arguments = arguments
        self._slots = threading.Semaphore(MAX_PENDING_SHARDS)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="shards")
        self._uploads: list[Future[StoredObject]] = []
        self._existing: dict[int, list[StoredObject]] = defaultdict(list)

    def __enter__(self) -> Self:
        if not self._is_remote:
            return self
        storage.write(_marker(self._destination, self._split), json.dumps(self._arguments).encode())
        for each in storage.list_objects(self._folder):
            self._existing[_shard_number(each.name.partition(".")[0])].append(each)
        for each in list_published(self._destination, self._split):
            self._existing[_shard_number(each.name.removeprefix(f"{self._split}-")[:5])].append(each)
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def send(self, shard: Shard) -> None:
        """Start uploading a complete shard to a bucket, after which its file is deleted.

        Blocks while `MAX_PENDING_SHARDS` shards are pending. Raises the error of an earlier upload.
        """
        if not self._is_remote:
            return
        self._slots.acquire()
        for each in self._uploads:
            if each.done():
                each.result()
        self._uploads.append(self._pool.submit(self._send, shard))

    def wait(self) -> None:
        """Wait until all shards are in the bucket; raises the first error of an upload."""
        for each in self._uploads:
            each.result()

    def publish(self, shards: Sequence[Shard]) -> tuple[File, ...]:
        """Give all shards their final names, those in a bucket a sidecar, and delete the split's other shards."""
        self.wait()
        names = [f"{self._split}-{shard.number:05}-of-{len(shards):05}.tfrecord" for shard in shards]
        if self._is_remote:
            list(self._pool.map(self._publish, shards, names, [each.result() for each in self._uploads]))
        else:
            for shard, name in zip(shards, names, strict=True):
                storage.move(shard.path, storage.join(self._destination, name))
        stale = [each.uri for each in list_published(self._destination, self._split) if each.name not in set(names)]
        list(self._pool.map(storage.delete, [*stale, *map(sidecar.uri_of, stale)]))
        storage.delete_prefix(self._folder)
        return tuple(shard.entry(name) for shard, name in zip(shards, names, strict=True))

    def delete_marker(self) -> None:
        """Delete the marker of an unfinished conversion, after the manifest is written."""
        storage.delete(_marker(self._destination, self._split))

    @property
    def _folder(self) -> str:
        return storage.join(self._destination, _FOLDER, self._split)

    def _send(self, shard: Shard) -> StoredObject:
        try:
            for each in self._existing.get(shard.number, ()):
                if (each.size, each.crc32c) == (shard.bytes, shard.crc32c):
                    return each
            return storage.upload(shard.path, storage.join(self._folder, f"{shard.number:05}.tfrecord"))
        finally:
            local.delete(shard.path)
            self._slots.release()

    def _publish(self, shard: Shard, name: str, sent: StoredObject) -> None:
        uri = storage.join(self._destination, name)
        stored = sent if sent.uri == uri else storage.copy(sent, uri)
        lengths = np.array(shard.lengths, np.int64)
        checksum = shard_index.content_checksum(lengths, np.array(shard.checksums, np.uint32))
        sidecar.save(shard_index.from_lengths(stored, lengths, checksum))


def _marker(destination: str, split: str) -> str:
    return storage.join(destination, _FOLDER, f"{split}.json")


def _shard_number(text: str) -> int:
    return int(text) if text.isdecimal() else -1
