"""Index of remote objects: one pass at the full speed of the network, divided among the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self

from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_records.index import compressed, sidecar
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.scanner import FrameWalk
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.index.sidecar import Sidecars
from mptraining_records.tfrecord import framing
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject
from mptraining_storage.ranges import Traffic, windows

# Parallel writes of sidecars.
_WRITES = 4
# A sidecar has so many shards, or the shards of so many bytes: what a worker scans in a few seconds, after which the
# others learn of it, and which an attempt that ends loses.
_MOST_SHARDS, _MOST_BYTES = 1000, 256 << 20
# A worker waits for the next sidecar of its peers for `_TIMEOUT_SECONDS`, plus the scan of the largest missing object
# at this speed.
_MIN_BYTES_PER_SECOND = 50e6
_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 2.0


def scan(
    objects: Sequence[StoredObject],
    *,
    packed: Set[str] = frozenset(),
    cache: DiskCache | None = None,
    traffic: Traffic | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[ShardIndex]:
    """Yield the index of each object, in their order, as soon as it is complete.

    The bytes read are written to `cache`, so that nothing is fetched twice; `progress` gets the bytes done and all
    bytes. The objects in `packed` are known to be compressed. Raises InvalidData if an object is not a TFRecord file or
    was replaced, StorageUnavailable.
    """
    done, total = 0, sum(stored.size for stored in objects)
    traffic = traffic or Traffic()
    skipped = set(packed)
    coming = windows(objects, traffic, skipped)
    for stored in objects:
        walk = FrameWalk(stored)
        is_cached = cache is not None
        fed = 0
        while fed < stored.size and stored.uri not in skipped:
            _, start, content = next(coming)
            fed = start + len(content)
            is_cached = is_cached and cache is not None and cache.write(stored.uri, start, content)
            try:
                walk.feed(content)
            except framing.CompressedFile:
                skipped.add(stored.uri)
            done += len(content)
            if progress:
                progress(done, total)
        if stored.uri in skipped:
            yield compressed.scan(stored, traffic=traffic)
        else:
            if is_cached and cache is not None:
                cache.mark_complete(stored.uri)
            yield walk.finish()


def scan_shared(
    objects: Sequence[StoredObject],
    *,
    worker: int,
    workers: int,
    cache: DiskCache | None = None,
    traffic: Traffic | None = None,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
    timeout_seconds: float = _TIMEOUT_SECONDS,
) -> dict[str, ShardIndex]:
    """Return the index of every object by URI, from its sidecar if there is one.

    Scan and publish this worker's share of the others, and wait for those of the other workers. All workers list the
    same objects, of which their shares are cut. This worker also scans the objects that the others do not publish in
    time, or cannot publish, and the compressed ones, which every worker needs on its own disk. Raises as `scan`.
    """
    sidecars = Sidecars(objects)
    sidecars.load()
    scanned: dict[str, ShardIndex] = {}
    with Publisher(sidecars) as publisher:
        for shard in scan(sidecars.missing(objects[worker::workers]), cache=cache, traffic=traffic, progress=progress):
            scanned[shard.object.uri] = shard
            publisher.add(shard)
    if publisher.problem is None:
        _wait_for([stored for stored in objects if stored.uri not in scanned], sidecars, timeout_seconds)
    elif notice:
        notice(_unpublished(publisher.problem))
    known = sidecars.shards | scanned
    left = [stored for stored in objects if stored.uri not in known]
    rest = scan(left, packed=sidecars.compressed, cache=cache, traffic=traffic, progress=progress)
    return known | {shard.object.uri: shard for shard in rest}


class Publisher:
    """Writes sidecars in the background; after the first `problem` it writes no more.

    The end of the block waits for all, and deletes the outdated sidecars.
    """

    def __init__(self, sidecars: Sidecars) -> None:
        self.problem: Problem | None = None
        self._sidecars = sidecars
        self._folder = ""
        self._waiting: list[ShardIndex] = []
        self._waiting_bytes = 0
        self._pool = ThreadPoolExecutor(_WRITES, thread_name_prefix="sidecar")

    def add(self, shard: ShardIndex) -> None:
        """Write the sidecar of this shard, together with those of the next ones of its folder."""
        if shard.object.uri.rpartition("/")[0] != self._folder:
            self._send()
            self._folder = shard.object.uri.rpartition("/")[0]
        self._waiting.append(shard)
        self._waiting_bytes += shard.object.size
        if len(self._waiting) == _MOST_SHARDS or self._waiting_bytes >= _MOST_BYTES:
            self._send()

    def _send(self) -> None:
        if self._waiting and self.problem is None:
            self._pool.submit(self._save, self._waiting)
        self._waiting, self._waiting_bytes = [], 0

    def _save(self, shards: list[ShardIndex]) -> None:
        try:
            if self.problem is None:
                sidecar.save(*shards)
        except (InvalidData, StorageUnavailable) as problem:
            self.problem = problem

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._send()
        self._pool.shutdown(cancel_futures=error is not None)
        if error is not None or self.problem is not None:
            return
        for file in self._sidecars.outdated:
            # Another worker may have replaced or deleted it, and it does no harm.
            with suppress(InvalidData, StorageUnavailable):
                storage.delete(file.uri, version=file.version)


def _unpublished(problem: Problem) -> str:
    step = "run `mptj records index` once with an account that may write there"
    if isinstance(problem, StorageUnavailable):
        step = "run `mptj records index` once when the bucket accepts writes"
    return (
        f"the index cannot be stored beside the records ({problem.found}), so that every attempt reads all of them: "
        f"{step}"
    )


def _wait_for(objects: Sequence[StoredObject], sidecars: Sidecars, timeout_seconds: float) -> None:
    """Load the sidecars of these objects as other workers write them, until all are there or none comes in time."""
    pause, waited = threading.Event(), 0.0
    while left := sidecars.missing(objects):
        if sidecars.load():
            waited = 0.0
        elif waited > timeout_seconds + max(stored.size for stored in left) / _MIN_BYTES_PER_SECOND:
            return
        else:
            pause.wait(_POLL_SECONDS)
            waited += _POLL_SECONDS
