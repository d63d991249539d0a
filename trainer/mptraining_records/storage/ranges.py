"""Byte ranges of remote objects, read in parallel; after a lost connection only the missing bytes are requested again.

This is the data plane: obstore, one kept-alive connection per requesting thread, no lock held while bytes arrive.
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
from mptraining_records.storage.storage import StoredObject

if TYPE_CHECKING:
    from obstore.store import GCSStore


# A single stream of Google Cloud Storage delivers 20 to 100 MB/s on any machine. Many ranges are therefore read in
# parallel, each long enough (2 MiB take 0.1 s at 20 MB/s) to outweigh the 30 to 50 ms before its first byte.
RANGE = 2 << 20
STREAMS = 32
# The most bytes that a lost connection discards, and the memory of a stream in addition to its range.
_CHUNK = 64 << 10
# Waits grow from 0.1 s to 3 s with random jitter, so that workers that fail together do not retry together:
# https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
# The job's program may have seeded `random` identically on every worker, so that `secrets` draws the jitter.
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 3.0


@dataclass(frozen=True)
class Figures:
    """Totals of the fetches so far: `bytes` received, `requests` sent, and the `retries` among them."""

    bytes: int = 0
    requests: int = 0
    retries: int = 0


class Traffic:
    """Counts the fetches of all threads of one reader."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._figures = Figures()

    @property
    def figures(self) -> Figures:
        return self._figures

    def add(self, *, bytes: int = 0, requests: int = 0, retries: int = 0) -> None:
        with self._lock:
            last = self._figures
            self._figures = Figures(last.bytes + bytes, last.requests + requests, last.retries + retries)


def fetch(
    uri: str,
    start: int,
    length: int,
    *,
    version: str | None,
    traffic: Traffic,
    into: memoryview | None = None,
) -> memoryview:
    """Read bytes start … start + length - 1 of a remote object, which must have that many, into `into` if given.

    A range longer than two `RANGE`s is read in parallel parts. A failed request is retried for
    MPTRAINING_STORAGE_RETRY_SECONDS, counted again from each arrival of bytes. Raises StorageUnavailable after that,
    and InvalidData at once if the object was replaced, does not exist or may not be read.
    """
    if into is None:
        into = np.empty(length, np.uint8).data
    parts = -(-length // RANGE)
    if parts <= 2:
        # Starting threads would take more time than it saves.
        _fill(uri, start, into, version, traffic)
        return into
    size = -(-length // parts)
    with ThreadPoolExecutor(min(parts, STREAMS), thread_name_prefix="parts") as pool:
        fills = [
            pool.submit(_fill, uri, start + at, into[at : at + size], version, traffic) for at in range(0, length, size)
        ]
        wait(fills, return_when=FIRST_EXCEPTION)
        # After one failure the other parts would fail too, each only after its own retries.
        pool.shutdown(cancel_futures=True)
    for each in fills:
        if not each.cancelled():
            each.result()
    return into


def fetch_whole(uri: str) -> bytes:
    """Read a small remote object over the connections of the data plane; the caller verifies its checksum.

    Retries and raises as `fetch`.
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
        # Each call gets the whole retry time, so that a range that makes progress never fails.
        received = _retrying(uri, traffic)(_receive, uri, start + got, into[got:], version, traffic)
        got += received
        if got < len(into):
            traffic.add(retries=1)


def _retrying(uri: str, traffic: Traffic) -> Retrying:
    def failed(state: RetryCallState) -> None:
        traffic.add(retries=1)
        error = state.outcome.exception() if state.outcome else None
        gcs_clients.endpoint().report_retry(uri, error.found if isinstance(error, StorageUnavailable) else str(error))

    return Retrying(
        wait=_wait,
        stop=stop_after_delay(gcs_clients.endpoint().settings.retry_seconds),
        retry=retry_if_exception_type(StorageUnavailable),
        before_sleep=failed,
        reraise=True,
    )


def _receive(uri: str, start: int, into: memoryview, version: str | None, traffic: Traffic) -> int:
    """Fill `into` from one request; returns the number of bytes received, fewer if the connection was lost."""
    import obstore

    traffic.add(requests=1)
    got = 0
    try:
        with gcs.translate_errors(uri):
            result = obstore.get(_store(uri), gcs.split(uri)[1], options={"range": (start, start + len(into))})
            gcs_clients.endpoint().has_responded = True
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

    with gcs.translate_errors(uri):
        content = obstore.get(_store(uri), gcs.split(uri)[1]).bytes().to_bytes()
        gcs_clients.endpoint().has_responded = True
        return content


def _store(uri: str) -> GCSStore:
    # obstore's own retries cannot be counted.
    return gcs_clients.endpoint().store(gcs.split(uri)[0], retries=False)


def _wait(state: RetryCallState) -> float:
    longest = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (state.attempt_number - 1))
    return longest * secrets.randbelow(1001) / 1000


def windows(
    objects: Sequence[StoredObject], traffic: Traffic, skip_uris: set[str] | None = None
) -> Iterator[tuple[StoredObject, int, bytes]]:
    """Yield (object, first byte, content) for every window of every object, one object after the other.

    At most `STREAMS` windows of `RANGE` bytes are fetched ahead. The caller skips the rest of an object by adding its
    URI to `skip_uris`. Raises InvalidData and StorageUnavailable as `fetch`, the latter also if a whole object differs
    from its CRC32C.
    """
    skipped = set() if skip_uris is None else skip_uris

    def remaining() -> Iterator[tuple[StoredObject, int]]:
        for object in objects:
            for start in range(0, object.size, RANGE):
                if object.uri in skipped:
                    break
                yield object, start

    def begin(object: StoredObject, start: int) -> Future[memoryview]:
        length = min(RANGE, object.size - start)
        return pool.submit(fetch, object.uri, start, length, version=object.version, traffic=traffic)

    ahead: deque[tuple[StoredObject, int, Future[memoryview]]] = deque()
    wanted = remaining()
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
                if object.uri not in skipped:
                    yield object, start, content
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
