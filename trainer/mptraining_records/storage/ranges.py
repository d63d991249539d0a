"""Ranges of objects, fetched whole: what a connection lost is asked for again, and only that.

The data plane: obstore, a kept-alive connection for each thread that asks, no lock held while bytes arrive.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay

from mptraining_api.problems import StorageUnavailable
from mptraining_records.storage import gcs, gcs_clients
from mptraining_records.storage.retry import contact
from mptraining_records.storage.storage import StoredObject

if TYPE_CHECKING:
    from obstore.store import GCSStore


# One stream of Google Cloud Storage gives some 20 to 100 MB/s, whatever the machine: many short ranges at once, each
# long enough (2 MiB are 0.1 s at 20 MB/s) that the 30 to 50 ms before its first byte are not the most of it.
RANGE = 2 << 20
STREAMS = 32
# What a lost connection costs at most, and what each stream holds beside its range.
_CHUNK = 64 << 10
# Waits grow from 0.1 s to 3 s, drawn at random so that workers who failed together do not come back together:
# https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
# Not of the random module: the job's program may have seeded it, the same on every worker.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 3.0


@dataclass(frozen=True)
class Figures:
    """What was fetched so far: `bytes` that arrived, `requests` sent, `retries` among them."""

    bytes: int = 0
    requests: int = 0
    retries: int = 0


class Traffic:
    """Counts what all threads of one reader fetch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures = Figures()

    @property
    def figures(self) -> Figures:
        return self._figures

    def add(self, *, bytes: int = 0, requests: int = 0, retries: int = 0) -> None:
        with self._lock:
            had = self._figures
            self._figures = Figures(had.bytes + bytes, had.requests + requests, had.retries + retries)


def fetch(
    uri: str,
    start: int,
    length: int,
    *,
    version: str | None,
    traffic: Traffic,
    into: memoryview | None = None,
) -> memoryview:
    """Bytes start … start + length - 1 of a remote object, which must have that many; written to `into` if given.

    A range of several `RANGE`s is fetched in parts side by side. A failure is tried again for as long as
    MPTRAINING_STORAGE_RETRY_SECONDS says, counted anew whenever bytes arrived. Raises StorageUnavailable after that,
    and InvalidData at once when the object was replaced, is gone, or may not be read.
    """
    if into is None:
        into = np.empty(length, np.uint8).data
    parts = -(-length // RANGE)
    if parts <= 2:
        # Threads of its own would cost more than they bring.
        _fill(uri, start, into, version, traffic)
        return into
    size = -(-length // parts)
    with ThreadPoolExecutor(min(parts, STREAMS), thread_name_prefix="parts") as pool:
        fills = [
            pool.submit(_fill, uri, start + at, into[at : at + size], version, traffic) for at in range(0, length, size)
        ]
        wait(fills, return_when=FIRST_EXCEPTION)
        # After a failure the others would only fail too, each in its own time.
        pool.shutdown(cancel_futures=True)
    for each in fills:
        if not each.cancelled():
            each.result()
    return into


def fetch_whole(uri: str) -> bytes:
    """A small remote object over the connections that ranges will go by; its checksum is the caller's to look at.

    Tried again and raises as `fetch`.
    """
    content: bytes = _retrying(uri, Traffic())(_receive_whole, uri)
    return content


def _fill(
    uri: str,
    start: int,
    into: memoryview,
    version: str | None,
    traffic: Traffic,
) -> None:
    got = 0
    while got < len(into):
        # A new account of time for each stretch: a range that keeps moving is never given up.
        received = _retrying(uri, traffic)(_receive, uri, start + got, into[got:], version, traffic)
        got += received
        if got < len(into):
            traffic.add(retries=1)


def _retrying(uri: str, traffic: Traffic) -> Retrying:
    def failed(state: RetryCallState) -> None:
        traffic.add(retries=1)
        error = state.outcome.exception() if state.outcome else None
        contact.retrying(uri, error.found if isinstance(error, StorageUnavailable) else str(error))

    return Retrying(
        wait=_wait,
        stop=stop_after_delay(gcs_clients.settings().retry_seconds),
        retry=retry_if_exception_type(StorageUnavailable),
        before_sleep=failed,
        reraise=True,
    )


def _receive(uri: str, start: int, into: memoryview, version: str | None, traffic: Traffic) -> int:
    """Fills `into` from one request; the bytes that came, fewer when the connection was lost on the way."""
    import obstore

    traffic.add(requests=1)
    got = 0
    try:
        with gcs.explained(uri):
            result = obstore.get(_store(uri), gcs.split(uri)[1], options={"range": (start, start + len(into))})
            contact.answered = True
            gcs.check_version(uri, result.meta, version)
            for chunk in result.stream(min_chunk_size=_CHUNK):
                into[got : got + len(chunk)] = memoryview(chunk)
                got += len(chunk)
    except StorageUnavailable:
        if not got:
            raise
    finally:
        traffic.add(bytes=got)
    if not got:
        raise StorageUnavailable(uri, f"the bucket sent nothing for bytes from {start}")
    return got


def _receive_whole(uri: str) -> bytes:
    import obstore

    with gcs.explained(uri):
        content = obstore.get(_store(uri), gcs.split(uri)[1]).bytes().to_bytes()
        contact.answered = True
        return content


def _store(uri: str) -> GCSStore:
    # Without obstore's own retries, which nobody can count: its clock of 0 seconds is over at the first failure.
    return gcs_clients.store(gcs.split(uri)[0], gcs_clients.settings()._replace(retry_seconds=0.0), writing=False)


def _wait(state: RetryCallState) -> float:
    longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (state.attempt_number - 1))
    return longest * secrets.randbelow(1001) / 1000


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
