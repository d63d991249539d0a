"""Whole remote objects, a window at a time and in order, fetched side by side ahead of whoever follows them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import google_crc32c

from mptraining_api.problems import StorageUnavailable
from mptraining_records.storage.ranges import RANGE, STREAMS, Traffic, fetch
from mptraining_records.storage.storage import StoredObject


def windows(
    objects: Sequence[StoredObject], traffic: Traffic, done_with: set[str] | None = None
) -> Iterator[tuple[StoredObject, int, bytes]]:
    """(object, first byte, content) for every window of every object, one object after the other.

    At most `STREAMS` windows of `RANGE` bytes are fetched or wait to be taken. Of an object whose URI is put into
    `done_with` no more is fetched. Raises InvalidData and StorageUnavailable as `fetch`, the latter also when a whole
    object differs from its CRC32C.
    """
    left = set() if done_with is None else done_with

    def todo() -> Iterator[tuple[StoredObject, int]]:
        for object in objects:
            for start in range(0, object.size, RANGE):
                if object.uri in left:
                    break
                yield object, start

    def begin(object: StoredObject, start: int) -> Future[memoryview]:
        length = min(RANGE, object.size - start)
        return pool.submit(fetch, object.uri, start, length, version=object.version, traffic=traffic)

    ahead: deque[tuple[StoredObject, int, Future[memoryview]]] = deque()
    wanted = todo()
    crc = 0
    with ThreadPoolExecutor(STREAMS, thread_name_prefix="windows") as pool:
        try:
            while True:
                while len(ahead) < STREAMS and (following := next(wanted, None)):
                    ahead.append((*following, begin(*following)))
                if not ahead:
                    return
                object, start, load = ahead.popleft()
                content = bytes(load.result())
                crc = google_crc32c.extend(crc if start else 0, content)
                if start + len(content) == object.size and object.crc32c not in (None, crc):
                    raise StorageUnavailable(object.uri, "what arrived differs from the object's CRC32C")
                if object.uri not in left:
                    yield object, start, content
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
