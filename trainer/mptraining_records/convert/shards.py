"""Shards of a split: written locally from a stream of records, uploaded to a bucket, published under final names."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import google_crc32c
import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.index import shard_index, sidecar
from mptraining_records.storage import local, storage
from mptraining_records.storage.preconditions import StoredObject
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.manifest import File


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


class ShardWriter:
    """Writes a stream of records to files of about `shard_bytes` in a local folder.

    `on_finished` is called with each complete shard, and may move or delete its file.
    """

    def __init__(self, folder: Path, name: str, shard_bytes: int, on_finished: Callable[[Shard], None]) -> None:
        self._folder = folder
        self._name = name
        self._shard_bytes = shard_bytes
        self._on_finished = on_finished
        self._file: BinaryIO | None = None
        self.shards: list[Shard] = []

    @property
    def records(self) -> int:
        return sum(len(shard.lengths) for shard in self.shards)

    def write(self, record: bytes) -> None:
        """Append one record, to a new shard if the last one is full."""
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
        """Close the current shard and pass it to `on_finished`."""
        if self._file is not None:
            self.close()
            self._on_finished(self.shards[-1])

    def close(self) -> None:
        """Close the current file, which stays in the temporary folder."""
        if self._file is not None:
            self._file.close()
            self._file = None


def shard_file_name(split: str, number: int, total: int) -> str:
    """Return `train-00000-of-00004.tfrecord`; the final name contains the number of all shards."""
    return f"{split}-{number:05}-of-{total:05}.tfrecord"


class ShardFolder:
    """Destination of one split on a local disk; shards stay in the temporary folder until all are written."""

    def __init__(self, destination: str, split: str) -> None:
        self._destination = destination
        self._split = split

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send(self, shard: Shard) -> None:
        """Do nothing: the shard stays in the temporary folder until `publish`."""

    def wait(self) -> None:
        """Do nothing: there are no uploads."""

    def publish(self, shards: Sequence[Shard]) -> tuple[File, ...]:
        """Rename all shards to their final names, and delete the split's other shards."""
        names = [shard_file_name(self._split, shard.number, len(shards)) for shard in shards]
        for shard, name in zip(shards, names, strict=True):
            storage.move(shard.path, storage.join(self._destination, name))
        for each in list_published(self._destination, self._split):
            if each.name not in names:
                storage.delete(each.uri)
        return tuple(shard.entry(name) for shard, name in zip(shards, names, strict=True))

    def delete_marker(self) -> None:
        """Do nothing: there is no marker to delete."""


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


class ShardUpload:
    """Uploads one split's shards to `destination`; a context manager that stops its threads at the end.

    `arguments`, serializable as JSON, identify a conversion that may resume.
    """

    def __init__(self, destination: str, split: str, arguments: Mapping[str, object]) -> None:
        self._destination = destination
        self._split = split
        self._arguments = arguments
        self._slots = threading.Semaphore(MAX_PENDING_SHARDS)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="shards")
        self._uploads: list[Future[StoredObject]] = []
        self._existing: dict[int, list[StoredObject]] = defaultdict(list)

    def __enter__(self) -> Self:
        storage.write(_marker(self._destination, self._split), json.dumps(self._arguments).encode())
        for each in storage.list_objects(self._folder):
            self._existing[_shard_number(each.name.partition(".")[0])].append(each)
        for each in list_published(self._destination, self._split):
            self._existing[_shard_number(each.name.removeprefix(f"{self._split}-")[:5])].append(each)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def send(self, shard: Shard) -> None:
        """Start uploading a complete shard, whose file is then deleted.

        Blocks while `MAX_PENDING_SHARDS` shards are pending. Raises the error of an earlier upload.
        """
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
        """Copy all shards to their final names, write their sidecars, and delete the split's other shards."""
        self.wait()
        names = [shard_file_name(self._split, shard.number, len(shards)) for shard in shards]
        list(self._pool.map(self._publish, shards, names, [each.result() for each in self._uploads]))
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
