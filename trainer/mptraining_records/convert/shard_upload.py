"""The shards of one split on their way to a bucket: sent while later ones are written, named when all are there.

    folder/.unfinished/train.json             what is being converted, as long as it is not done
    folder/.unfinished/train/00000.tfrecord   a shard that is whole, under a name that needs no total

A final name holds the number of shards, which is known at the end only. Counting ahead would mean to encode
everything twice; a copy within a bucket moves no bytes. Sent shards stay when the conversion dies, so that the same
one, started again, sends only what is missing.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.convert.shards import Shard, name_of, published
from mptraining_records.index import shard_index, sidecar
from mptraining_records.storage import local, storage
from mptraining_records.storage.storage import StoredObject
from mptraining_records.tfrecord.manifest import File

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
