"""Finds the records of remote objects in one pass at the full speed of the network, each worker its share of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import ThreadPoolExecutor

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from mptraining_api.problems import InvalidData
from mptraining_records.index import compressed, sidecar
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.scanner import FrameWalk
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.storage import storage
from mptraining_records.storage.ranges import Traffic, windows
from mptraining_records.storage.storage import StoredObject
from mptraining_records.tfrecord import framing

# Requests for first bytes at once.
_ASKING = 16
# A peer that indexes slower than this, or is silent for that long, is not waited for.
_SLOWEST = 50e6
_PATIENCE = 60.0
_ASK_EVERY = 2.0


def scan(
    objects: Sequence[StoredObject],
    *,
    cache: DiskCache | None = None,
    traffic: Traffic | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[ShardIndex]:
    """The index of each object, in their order, as soon as it is found.

    What is read goes into `cache`, so that nothing is fetched twice; `progress` gets the bytes done and all bytes.
    Raises InvalidData for what is no TFRecord file or was replaced, StorageUnavailable.
    """
    done, total = 0, sum(object.size for object in objects)
    traffic = traffic or Traffic()
    given_up: set[str] = set()
    coming = windows(objects, traffic, given_up)
    for object in objects:
        walk = FrameWalk(object)
        kept = cache is not None
        found: ShardIndex | None = None
        fed = 0
        while fed < object.size and found is None:
            _, start, content = next(coming)
            fed = start + len(content)
            kept = kept and cache is not None and cache.write(object.uri, start, content)
            try:
                walk.feed(content)
            except framing.CompressedFile:
                given_up.add(object.uri)
                found = compressed.scan(object, traffic=traffic)
            done += len(content)
            if progress:
                progress(done, total)
        if found is None:
            found = walk.finish()
            if kept and cache is not None:
                cache.has_whole(object.uri)
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
    patience: float = _PATIENCE,
) -> dict[str, ShardIndex]:
    """The index of every `missing` object by URI: this worker's share found here and published, the others' waited for.

    Shares are cut from all `objects`, whom every worker lists alike; what is missing changes while others publish.

    What the others do not publish in time, or cannot, is found here as well; so is what is compressed, which every
    worker needs on its own disk. Raises as `scan`.
    """
    mine = [object for object in objects[worker::workers] if object.uri in missing]
    objects = [object for object in objects if object.uri in missing]
    readable = objects
    if workers > 1:
        with ThreadPoolExecutor(_ASKING, thread_name_prefix="heads") as pool:
            plain = list(pool.map(_is_plain, objects))
        readable = [object for object, is_plain in zip(objects, plain, strict=True) if is_plain]
    found: dict[str, ShardIndex] = {}
    published = True
    plain_uris = {object.uri for object in readable}
    mine = [object for object in mine if object.uri in plain_uris]
    for shard in scan(mine, cache=cache, traffic=traffic, progress=progress):
        found[shard.object.uri] = shard
        if published and shard.expanded is None:
            published = _publish(shard, notice)
    left = [object for object in readable if object.uri not in found]
    if left and published:
        found |= _wait_for(left, patience)
    left = [object for object in objects if object.uri not in found]
    return found | {shard.object.uri: shard for shard in scan(left, cache=cache, traffic=traffic, progress=progress)}


def _publish(shard: ShardIndex, notice: Callable[[str], None] | None) -> bool:
    try:
        sidecar.save(shard)
    except InvalidData as problem:
        if notice:
            notice(
                f"the index cannot be kept beside the records ({problem.found}), so that every attempt reads them all "
                "to find it: let somebody who may write there run `mptj records index`"
            )
        return False
    return True


def _wait_for(objects: Sequence[StoredObject], patience: float) -> dict[str, ShardIndex]:
    """The sidecars of these objects, as far as other workers write them in time."""
    found: dict[str, ShardIndex] = {}

    def look() -> int:
        left = [object for object in objects if object.uri not in found]
        kept = sidecar.load_all(left)
        found.update(kept)
        return len(kept)

    def is_waited_for(new: int) -> bool:
        return not new and len(found) < len(objects)

    while len(found) < len(objects):
        largest = max(object.size for object in objects if object.uri not in found)
        looking = Retrying(
            wait=wait_fixed(_ASK_EVERY),
            stop=stop_after_delay(patience + largest / _SLOWEST),
            retry=retry_if_result(is_waited_for),
            retry_error_callback=lambda _: 0,
        )
        if not looking(look):
            break
    return found


def _is_plain(object: StoredObject) -> bool:
    head = storage.read_range(object.uri, 0, framing.HEADER, version=object.version) if object.size else b""
    try:
        framing.refuse_known(object.uri, head)
    except framing.CompressedFile:
        return False
    return True
