"""Cuts a stream of records into shards on the local disk, and gives them their final names there."""

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


# Finished shards that may wait on the local disk, those being sent included.
WAITING = 4
_FOLDER = ".unfinished"
_THREADS = 8


def is_same(destination: str, split: str, arguments: Mapping[str, object]) -> bool:
    """Whether a conversion of this split with the same arguments was begun here and not finished."""
    try:
        return bool(json.loads(storage.read(_marker(destination, split))) == json.loads(json.dumps(arguments)))
    except (InvalidData, ValueError):
        return False


class ShardUpload:
    """Sends one split's shards to `destination`; a context, at whose end no thread of it is left.

    `arguments` are what makes another conversion the same one, as JSON can hold them.
    """

    def __init__(self, destination: str, split: str, arguments: Mapping[str, object]) -> None:
        self._destination = destination
        self._split = split
        self._arguments = arguments
        self._room = threading.Semaphore(WAITING)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="shards")
        self._sent: list[Future[StoredObject]] = []
        self._there: dict[int, list[StoredObject]] = defaultdict(list)

    def __enter__(self) -> Self:
        storage.write(_marker(self._destination, self._split), json.dumps(self._arguments).encode())
        for each in storage.list_objects(self._folder):
            self._there[_number(each.name.partition(".")[0])].append(each)
        for each in published(self._destination, self._split):
            self._there[_number(each.name.removeprefix(f"{self._split}-")[:5])].append(each)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def send(self, shard: Shard) -> None:
        """Takes a whole shard over, its file included; waits while too many are under way.

        Raises what an earlier one met.
        """
        self._room.acquire()
        for each in self._sent:
            if each.done():
                each.result()
        self._sent.append(self._pool.submit(self._send, shard))

    def wait(self) -> None:
        """Returns when all shards are in the bucket; raises what one of them met."""
        for each in self._sent:
            each.result()

    def publish(self, shards: Sequence[Shard]) -> tuple[File, ...]:
        """Gives all shards their final names, with their indexes, and takes away what is not of this split."""
        self.wait()
        names = [name_of(self._split, shard.number, len(shards)) for shard in shards]
        list(self._pool.map(self._name, shards, names, [each.result() for each in self._sent]))
        stale = [each.uri for each in published(self._destination, self._split) if each.name not in set(names)]
        list(self._pool.map(storage.delete, [*stale, *map(sidecar.uri_of, stale)]))
        storage.delete_prefix(self._folder)
        return tuple(shard.entry(name) for shard, name in zip(shards, names, strict=True))

    def done(self) -> None:
        """The manifest is there: nothing is unfinished any more."""
        storage.delete(_marker(self._destination, self._split))

    @property
    def _folder(self) -> str:
        return storage.join(self._destination, _FOLDER, self._split)

    def _send(self, shard: Shard) -> StoredObject:
        try:
            for each in self._there.get(shard.number, ()):
                if (each.size, each.crc32c) == (shard.bytes, shard.crc32c):
                    return each
            return storage.upload(shard.path, storage.join(self._folder, f"{shard.number:05}.tfrecord"))
        finally:
            local.delete(shard.path)
            self._room.release()

    def _name(self, shard: Shard, name: str, sent: StoredObject) -> None:
        uri = storage.join(self._destination, name)
        stored = sent if sent.uri == uri else storage.copy(sent, uri)
        lengths = np.array(shard.lengths, np.int64)
        checksum = shard_index.content_checksum(lengths, np.array(shard.checksums, np.uint32))
        sidecar.save(shard_index.from_lengths(stored, lengths, checksum))


def _marker(destination: str, split: str) -> str:
    return storage.join(destination, _FOLDER, f"{split}.json")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1
