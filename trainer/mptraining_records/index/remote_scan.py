"""Index of remote objects: one pass at the full speed of the network, divided among the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_records.index import compressed, sidecar
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.scanner import FrameWalk
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.tfrecord import framing
from mptraining_storage import storage
from mptraining_storage.preconditions import StoredObject
from mptraining_storage.ranges import Traffic, windows

# Parallel requests for the first bytes of objects.
_HEAD_REQUESTS = 16
# Parallel writes of sidecars.
_WRITES = 16
# A worker waits for the next sidecar of its peers for `_TIMEOUT_SECONDS`, plus the scan of the largest missing object
# at this speed.
_MIN_BYTES_PER_SECOND = 50e6
_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 2.0


def scan(
    objects: Sequence[StoredObject],
    *,
    cache: DiskCache | None = None,
    traffic: Traffic | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[ShardIndex]:
    """Yield the index of each object, in their order, as soon as it is complete.

    The bytes read are written to `cache`, so that nothing is fetched twice; `progress` gets the bytes done and all
    bytes. Raises InvalidData if an object is not a TFRecord file or was replaced, StorageUnavailable.
    """
    done, total = 0, sum(object.size for object in objects)
    traffic = traffic or Traffic()
    abandoned: set[str] = set()
    coming = windows(objects, traffic, abandoned)
    for object in objects:
        walk = FrameWalk(object)
        is_cached = cache is not None
        found: ShardIndex | None = None
        fed = 0
        while fed < object.size and found is None:
            _, start, content = next(coming)
            fed = start + len(content)
            is_cached = is_cached and cache is not None and cache.write(object.uri, start, content)
            try:
                walk.feed(content)
            except framing.CompressedFile:
                abandoned.add(object.uri)
                found = compressed.scan(object, traffic=traffic)
            done += len(content)
            if progress:
                progress(done, total)
        if found is None:
            found = walk.finish()
            if is_cached and cache is not None:
                cache.mark_complete(object.uri)
        yield found


def scan_shared(
    objects: Sequence[StoredObject],
    missing: Set[str],
    *,
    worker: int,
    workers: int,
    cache: DiskCache | None = None,
    traffic: Traffic | None = None,
    progress: Callable[[int, int], None] | None = None,
    notice: Callable[[str], None] | None = None,
    timeout_seconds: float = _TIMEOUT_SECONDS,
) -> dict[str, ShardIndex]:
    """Return the index of every `missing` object by URI; scan and publish this worker's share, wait for the others'.

    Shares are cut from all `objects`, which every worker lists identically; `missing` changes while others publish.

    This worker also scans the objects that the others do not publish in time, or cannot publish, and the compressed
    ones, which every worker needs on its own disk. Raises as `scan`.
    """
    mine = [object for object in objects[worker::workers] if object.uri in missing]
    objects = [object for object in objects if object.uri in missing]
    readable = objects
    if workers > 1:
        with ThreadPoolExecutor(_HEAD_REQUESTS, thread_name_prefix="heads") as pool:
            uncompressed = list(pool.map(_is_uncompressed, objects))
        readable = [object for object, is_uncompressed in zip(objects, uncompressed, strict=True) if is_uncompressed]
    found: dict[str, ShardIndex] = {}
    plain_uris = {object.uri for object in readable}
    mine = [object for object in mine if object.uri in plain_uris]
    with Publisher() as publisher:
        for shard in scan(mine, cache=cache, traffic=traffic, progress=progress):
            found[shard.object.uri] = shard
            publisher.add(shard)
    if publisher.problem is None:
        found |= _wait_for([object for object in readable if object.uri not in found], timeout_seconds)
    elif notice:
        notice(_unpublished(publisher.problem))
    left = [object for object in objects if object.uri not in found]
    return found | {shard.object.uri: shard for shard in scan(left, cache=cache, traffic=traffic, progress=progress)}


class Publisher:
    """Writes sidecars in parallel; after the first `problem` it writes no more. The end of the block waits for all."""

    def __init__(self) -> None:
        self.problem: Problem | None = None
        self._pool = ThreadPoolExecutor(_WRITES, thread_name_prefix="sidecar")

    def add(self, shard: ShardIndex) -> None:
        """Write the sidecar of one shard; a compressed one has none."""
        if shard.expanded is None and self.problem is None:
            self._pool.submit(self._save, shard)

    def _save(self, shard: ShardIndex) -> None:
        if self.problem is not None:
            return
        try:
            sidecar.save(shard)
        except (InvalidData, StorageUnavailable) as problem:
            self.problem = problem

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._pool.shutdown(cancel_futures=error is not None)


def _unpublished(problem: Problem) -> str:
    step = "run `mptj records index` once with an account that may write there"
    if isinstance(problem, StorageUnavailable):
        step = "run `mptj records index` once when the bucket accepts writes"
    return (
        f"the index cannot be stored beside the records ({problem.found}), so that every attempt reads all of them: "
        f"{step}"
    )


def _wait_for(objects: Sequence[StoredObject], timeout_seconds: float) -> dict[str, ShardIndex]:
    """Wait for the sidecars of these objects; returns those that other workers write in time."""
    found: dict[str, ShardIndex] = {}
    pause, waited = threading.Event(), 0.0
    while left := [object for object in objects if object.uri not in found]:
        if loaded := sidecar.load_all(left):
            found |= loaded
            waited = 0.0
        elif waited > timeout_seconds + max(object.size for object in left) / _MIN_BYTES_PER_SECOND:
            break
        else:
            pause.wait(_POLL_SECONDS)
            waited += _POLL_SECONDS
    return found


def _is_uncompressed(object: StoredObject) -> bool:
    head = storage.read_range(object.uri, 0, framing.HEADER, version=object.version) if object.size else b""
    try:
        framing.refuse_known(object.uri, head)
    except framing.CompressedFile:
        return False
    return True
