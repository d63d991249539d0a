"""Publishes the indexes of remote shards, so that no job has to build them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from mptraining_records import compressed, framing, index, shard_scan, sidecar, storage
from mptraining_records.framing import BadRecord
from mptraining_records.shard_index import ShardIndex
from mptraining_records.storage import StoredObject

State = Literal["written", "kept", "local", "compressed"]


@dataclass(frozen=True)
class Indexed:
    """One shard, and its sidecar: `written` now, `kept` since it fits, or none since it is local or compressed."""

    shard: ShardIndex
    state: State


@dataclass(frozen=True)
class IndexReport:
    """Every shard that was asked for, in the order of the URIs."""

    shards: tuple[Indexed, ...]

    def count(self, state: State) -> int:
        """How many shards are in this state."""
        return sum(each.state == state for each in self.shards)

    @property
    def records(self) -> int:
        return sum(each.shard.count for each in self.shards)

    @property
    def bytes(self) -> int:
        """The size of the objects."""
        return sum(each.shard.object.size for each in self.shards)

    @property
    def damaged(self) -> tuple[BadRecord, ...]:
        """Frames that could not be followed; payloads were not read."""
        return tuple(bad for each in self.shards for bad in each.shard.damaged)


def publish(
    patterns: Sequence[str],
    *,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> IndexReport:
    """Writes the sidecar of every remote shard that matches and has none that fits, or of every one with `force`.

    `progress` gets the bytes done and their number. Raises InvalidData when a pattern matches nothing or a file is no
    TFRecord file, and for a bucket that may not be written to.
    """
    objects = index.find(patterns)
    meter = _Meter(sum(each.size for each in objects), progress)

    def indexed(object: StoredObject) -> Indexed:
        found = _indexed(object, force, lambda done: meter.at(object, done))
        meter.at(object, object.size)
        return found

    with ThreadPoolExecutor(min(index.THREADS, len(objects)), thread_name_prefix="index") as pool:
        return IndexReport(tuple(pool.map(indexed, objects)))


def _indexed(object: StoredObject, force: bool, progress: Callable[[int], None]) -> Indexed:
    remote = storage.is_remote(object.uri)
    if remote and not force and (kept := sidecar.load(object)):
        return Indexed(kept, "kept")
    try:
        shard = shard_scan.scan(object, progress=progress)
    except framing.CompressedFile:
        return Indexed(compressed.scan(object), "compressed")
    if not remote:
        return Indexed(shard, "local")
    sidecar.save(shard)
    return Indexed(shard, "written")


class _Meter:
    """Adds up what several threads have done."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._total = total
        self._progress = progress
        self._done: dict[str, int] = {}
        self._lock = threading.Lock()

    def at(self, object: StoredObject, done: int) -> None:
        with self._lock:
            self._done[object.uri] = done
            if self._progress:
                self._progress(sum(self._done.values()), self._total)
