"""Index of remote objects: one pass at the full speed of the network, divided among the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence, Set

from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_records.index import compressed, sidecar
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.scanner import FrameWalk
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.index.sidecar import Sidecars
from mptraining_records.tfrecord import framing
from mptraining_storage.preconditions import StoredObject
from mptraining_storage.ranges import Traffic, windows

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
        cached, fed = cache, 0
        while fed < stored.size and stored.uri not in skipped:
            _, start, content = next(coming)
            fed = start + len(content)
            if cached and not cached.write(stored.uri, start, content):
                cached = None
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
            if cached:
                cached.mark_complete(stored.uri)
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
    problem: Problem | None = None
    mine = scan(sidecars.missing(objects[worker::workers]), cache=cache, traffic=traffic, progress=progress)
    for group in sidecar.groups(mine):
        scanned |= {shard.stored.uri: shard for shard in group}
        if problem is None:
            try:
                sidecar.save(*group)
            except (InvalidData, StorageUnavailable) as error:
                problem = error
    if problem is None:
        _wait_for([stored for stored in objects if stored.uri not in scanned], sidecars, timeout_seconds)
    elif notice:
        notice(_unpublished(problem))
    scanned |= {uri: shard for uri, shard in sidecars.known.items() if shard is not None}
    left = [stored for stored in objects if stored.uri not in scanned]
    rest = scan(left, packed=sidecars.known.keys(), cache=cache, traffic=traffic, progress=progress)
    return scanned | {shard.stored.uri: shard for shard in rest}


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
