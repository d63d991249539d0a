"""Index of a data set: the shard, offset and length of every record; publication of shard indexes as sidecars."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mptraining_api.problems import InvalidData
from mptraining_records.index import compressed, remote_scan, scanner, sidecar
from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.shard_index import Int64s, ShardIndex
from mptraining_records.index.sidecar import Sidecars
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import OVERHEAD, BadRecord
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject
from mptraining_storage.ranges import Traffic

_THREADS = 16


@dataclass(frozen=True, eq=False)
class DatasetIndex:
    """All shards in the order of their URIs; record numbers run through them from 0 to `count` - 1."""

    shards: tuple[ShardIndex, ...]

    @functools.cached_property
    def starts(self) -> Int64s:
        """The number of each shard's first record, then the number of all records; shape [shards + 1]."""
        return np.cumsum([0, *(shard.count for shard in self.shards)], dtype=np.int64)

    @property
    def count(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def mean_record_bytes(self) -> int:
        """The mean size of a record with its framing, uncompressed and rounded down; 0 without records."""
        payloads = sum(int(shard.lengths.sum()) for shard in self.shards)
        return payloads // self.count + OVERHEAD if self.count else 0

    @functools.cached_property
    def fingerprint(self) -> str:
        """64 hex digits that change if a shard is changed, added, removed or renamed.

        They do not depend on the data set's location: names are relative to the shards' common folder.
        """
        names = [shard.stored.uri.split("/") for shard in self.shards]
        # Of lists, it compares whole elements.
        common = len(os.path.commonprefix([name[:-1] for name in names]))  # noqa: RUF071
        digest = hashlib.sha256()
        for name, shard in zip(names, self.shards, strict=True):
            relative = "/".join(name[common:])
            digest.update(f"{relative}\0{shard.stored.size}\0{shard.count}\0{shard.checksum}\n".encode())
        return digest.hexdigest()

    def locate(self, record_numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return shard numbers and rows within the shard, shape [n] each, for record numbers of shape [n].

        Raises IndexError for a number outside 0 … count - 1.
        """
        numbers = np.asarray(record_numbers, np.int64)
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.count):
            raise IndexError(f"record numbers must be in 0 … {self.count - 1}")
        shards = np.searchsorted(self.starts, numbers, side="right") - 1
        return shards.astype(np.int64), numbers - self.starts[shards]

    def bad_record(self, number: int, cause: str) -> BadRecord:
        """Return record `number` as a BadRecord."""
        shards, rows = self.locate(np.array([number]))
        return self.shards[int(shards[0])].bad_record(int(rows[0]), cause)


def build(
    patterns: Sequence[str],
    *,
    objects: Sequence[StoredObject] | None = None,
    bad_records: BadRecords | None = None,
    worker: int = 0,
    workers: int = 1,
    cache: DiskCache | None = None,
    traffic: Traffic | None = None,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> DatasetIndex:
    """Build the index of every object that one of the patterns matches, each once, in the order of the URIs.

    `objects` is the result of `find`, if the caller has it already.

    A remote shard's sidecar is used if there is one. Each of the `workers` reads its share of the other remote shards
    and keeps their bytes in `cache`; `progress` gets the bytes read and all bytes. Compressed shards are expanded into
    local files, which `notice` reports in one line. `bad_records` receives damaged frames; without it the first one
    raises InvalidData. InvalidData is also raised if a pattern matches nothing, a file is not a TFRecord file, or there
    is no record at all.
    """
    objects = find(patterns) if objects is None else objects
    remote = [stored for stored in objects if storage.is_remote(stored.uri)]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="index") as pool:
        local = (stored for stored in objects if not storage.is_remote(stored.uri))
        known = {shard.stored.uri: shard for shard in pool.map(index_local_file, local)}
    known |= remote_scan.scan_shared(
        remote, worker=worker, workers=workers, cache=cache, traffic=traffic, progress=progress, notice=notice
    )
    shards = tuple(known[stored.uri] for stored in objects)
    policy = bad_records or BadRecords()
    for shard in shards:
        if shard.damage is not None:
            policy.add(shard.damage)
    if not any(shard.count for shard in shards):
        raise InvalidData(" ".join(patterns), f"no record in {len(shards)} files, they are empty or damaged")
    expanded = [shard.expanded for shard in shards if shard.expanded]
    if expanded and notice:
        size = sum(content.size for content in expanded) / 1e6
        notice(
            f"{len(expanded)} compressed files were expanded to {size:,.1f} MB on the local disk; "
            "uncompressed records need no such copy and are read at once"
        )
    dataset = DatasetIndex(shards)
    if cache is not None:
        cache.set_dataset(dataset)
    return dataset


def index_local_file(stored: StoredObject) -> ShardIndex:
    """Return the index of a local file."""
    try:
        return scanner.scan(stored)
    except framing.CompressedFile:
        return compressed.scan(stored)


def find(patterns: Sequence[str]) -> list[StoredObject]:
    """List the shards that the patterns match, each once, sorted by URI, without manifests. Raises InvalidData."""
    by_uri = {stored.uri: stored for pattern in patterns for stored in storage.glob(pattern)}
    objects = [by_uri[uri] for uri in sorted(by_uri) if not uri.endswith("manifest.json")]
    if not objects:
        raise InvalidData(" ".join(patterns), "no TFRecord file found")
    return objects


State = Literal["written", "kept", "local", "compressed"]


@dataclass(frozen=True)
class IndexedShard:
    """One shard and its sidecar: `written` now, `kept` since it matches, or none for a `local` or `compressed` one."""

    shard: ShardIndex
    state: State


@dataclass(frozen=True)
class IndexReport:
    """Every shard that the patterns match, in the order of the URIs."""

    shards: tuple[IndexedShard, ...]

    def count(self, state: State) -> int:
        """Return the number of shards in this state."""
        return sum(shard.state == state for shard in self.shards)

    @property
    def records(self) -> int:
        return sum(shard.shard.count for shard in self.shards)

    @property
    def bytes(self) -> int:
        """The size of all objects in bytes."""
        return sum(shard.shard.stored.size for shard in self.shards)

    @property
    def damaged(self) -> tuple[BadRecord, ...]:
        """Damaged ends of shards; payloads are not verified."""
        return tuple(shard.shard.damage for shard in self.shards if shard.shard.damage is not None)


def publish(
    patterns: Sequence[str], *, force: bool = False, progress: Callable[[int, int], None] | None = None
) -> IndexReport:
    """Write the sidecar of every matching remote shard without a valid one; with `force`, of every one.

    `progress` gets the bytes read and all bytes to read. Raises InvalidData if a pattern matches nothing, a file is not
    a TFRecord file, or the bucket may not be written to.
    """
    objects = find(patterns)
    remote = [stored for stored in objects if storage.is_remote(stored.uri)]
    sidecars = Sidecars(remote)
    if not force:
        sidecars.load()
    indexed = {uri: IndexedShard(shard, "kept") for uri, shard in sidecars.known.items() if shard}
    left = [stored for stored in remote if stored.uri not in indexed]
    for group in sidecar.groups(remote_scan.scan(left, packed=sidecars.known.keys(), progress=progress)):
        indexed |= {
            shard.stored.uri: IndexedShard(shard, "compressed" if shard.expanded else "written") for shard in group
        }
        if new := [shard for shard in group if shard.stored.uri not in sidecars.known]:
            sidecar.save(*new)
    for stored in objects:
        if stored.uri not in indexed:
            shard = index_local_file(stored)
            indexed[stored.uri] = IndexedShard(shard, "compressed" if shard.expanded else "local")
    return IndexReport(tuple(indexed[stored.uri] for stored in objects))
