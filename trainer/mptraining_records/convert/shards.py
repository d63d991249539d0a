"""Shards of a split: written locally from a stream of records, uploaded to a bucket, published under final names."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Self

import google_crc32c
import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.convert.request import Request
from mptraining_records.index import shard_index, sidecar
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.manifest import File
from mptraining_storage import local, storage
from mptraining_storage.preconditions import StoredObject

# The maximum number of complete shards on the local disk, including those being uploaded.
MAX_PENDING_SHARDS = 4
_FOLDER = ".unfinished"
_THREADS = 8


def list_published(destination: str, split: str) -> list[StoredObject]:
    """List the shards of a split with final names, for any total."""
    return storage.glob_or_empty(storage.join(destination, f"{split}-?????-of-?????.tfrecord"))


def is_resumable(request: Request, split: str) -> bool:
    """Return whether the destination has an unfinished conversion of this split with the same arguments."""
    try:
        return storage.read(_marker(request.destination, split)) == request.identity()
    except InvalidData:
        return False


@dataclass
class _Shard:
    """One shard: size in bytes, CRC32C, payload lengths in bytes and stored checksums."""

    path: Path
    file: BinaryIO
    size: int = 0
    crc32c: int = 0
    lengths: list[int] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)

    def write(self, record: bytes) -> None:
        framed = framing.encode(record)
        self.file.write(framed)
        self.size += len(framed)
        self.crc32c = google_crc32c.extend(self.crc32c, framed)
        self.lengths.append(len(record))
        self.checksums.append(framing.footer_format.unpack(framed[-framing.FOOTER :])[0])


class SplitWriter:
    """Writes the records of one split to shards of about `shard_bytes`; a context manager that stops its threads.

    Shards for a local folder stay in the temporary `folder` until all are written; those for a bucket are uploaded.
    """

    def __init__(self, folder: Path, request: Request, split: str) -> None:
        self.split = split
        self._folder, self._request, self._destination = folder, request, request.destination
        self._is_remote = storage.is_remote(self._destination)
        self._unfinished = storage.join(self._destination, _FOLDER, split)
        self._shards: list[_Shard] = []
        self._slots = threading.Semaphore(MAX_PENDING_SHARDS)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="shards")
        self._uploads: list[Future[StoredObject]] = []
        self._existing: dict[str, list[StoredObject]] = defaultdict(list)

    def __enter__(self) -> Self:
        if self._is_remote:
            storage.write(_marker(self._destination, self.split), self._request.identity())
            for stored in storage.list_objects(self._unfinished):
                self._existing[stored.name.partition(".")[0]].append(stored)
            for stored in list_published(self._destination, self.split):
                self._existing[stored.name.removeprefix(f"{self.split}-")[:5]].append(stored)
        return self

    def __exit__(self, *_: object) -> None:
        for shard in self._shards[-1:]:
            shard.file.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def write(self, record: bytes) -> None:
        """Append one record, to a new shard if the last one is full.

        Blocks while `MAX_PENDING_SHARDS` shards are pending. Raises the error of an earlier upload.
        """
        if not self._shards or self._shards[-1].size >= self._request.shard_bytes:
            self._send()
            path = self._folder / f"{self.split}-{len(self._shards):05}.tfrecord{local.UNFINISHED}"
            self._shards.append(_Shard(path, path.open("wb")))
        self._shards[-1].write(record)

    def finish(self) -> None:
        """Close the last shard, and wait until all are in the bucket; raises the first error of an upload."""
        self._send()
        for upload in self._uploads:
            upload.result()

    def publish(self) -> tuple[File, ...]:
        """Give all shards their final names, those in a bucket a sidecar, and delete the split's other shards."""
        names = [f"{self.split}-{number:05}-of-{len(self._shards):05}.tfrecord" for number in range(len(self._shards))]
        if self._is_remote:
            list(self._pool.map(self._publish, self._shards, names, [upload.result() for upload in self._uploads]))
        else:
            for shard, name in zip(self._shards, names, strict=True):
                storage.move(shard.path, storage.join(self._destination, name))
        published = list_published(self._destination, self.split)
        stale = [stored.uri for stored in published if stored.name not in set(names)]
        list(self._pool.map(storage.delete, [*stale, *map(sidecar.uri_of, stale)]))
        storage.delete_prefix(self._unfinished)
        return tuple(
            File(name=name, records=len(shard.lengths), bytes=shard.size, crc32c=shard.crc32c)
            for shard, name in zip(self._shards, names, strict=True)
        )

    def delete_marker(self) -> None:
        """Delete the marker of an unfinished conversion, after the manifest is written."""
        storage.delete(_marker(self._destination, self.split))

    def _send(self) -> None:
        """Close the last shard; start uploading one for a bucket, after which its file is deleted."""
        if not self._shards:
            return
        self._shards[-1].file.close()
        if self._is_remote:
            self._slots.acquire()
            for upload in self._uploads:
                if upload.done():
                    upload.result()
            self._uploads.append(self._pool.submit(self._upload, f"{len(self._uploads):05}", self._shards[-1]))

    def _upload(self, number: str, shard: _Shard) -> StoredObject:
        try:
            for stored in self._existing.get(number, ()):
                if (stored.size, stored.crc32c) == (shard.size, shard.crc32c):
                    return stored
            return storage.upload(shard.path, storage.join(self._unfinished, f"{number}.tfrecord"))
        finally:
            local.delete(shard.path)
            self._slots.release()

    def _publish(self, shard: _Shard, name: str, sent: StoredObject) -> None:
        uri = storage.join(self._destination, name)
        stored = sent if sent.uri == uri else storage.copy(sent, uri)
        lengths = np.array(shard.lengths, np.int64)
        checksum = shard_index.content_checksum(lengths, np.array(shard.checksums, np.uint32))
        sidecar.save(shard_index.from_lengths(stored, lengths, checksum))


def _marker(destination: str, split: str) -> str:
    return storage.join(destination, _FOLDER, f"{split}.json")
