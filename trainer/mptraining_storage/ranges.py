"""Byte ranges of remote objects, read in parallel; after a lost connection only the missing bytes are requested again.

A range whose connection is far slower than the others is requested again as well, so that it does not delay the records
that all wait for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import google_crc32c
import numpy as np

from mptraining_api.problems import StorageUnavailable
from mptraining_storage import gcs, gcs_clients
from mptraining_storage.content import Received
from mptraining_storage.preconditions import StoredObject

# A single stream of Google Cloud Storage delivers 20 to 100 MB/s on any machine. Many ranges are therefore read in
# parallel, each long enough (1 MiB takes 0.05 s at 20 MB/s) to outweigh the 30 to 50 ms before its first byte.
RANGE = 1 << 20
STREAMS = 32
# Ranges of a shuffled epoch are short, so that more of them have to be requested at once.
MOST_STREAMS = 128


@dataclass(frozen=True)
class Figures:
    """Totals of the fetches so far: bytes `received`, `requests` sent, and the `retries` among them."""

    received: int = 0
    requests: int = 0
    retries: int = 0


class Traffic:
    """Counts the fetches of all threads of one reader."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.figures = Figures()

    def add(self, *, received: int = 0, requests: int = 0, retries: int = 0) -> None:
        with self._lock:
            last = self.figures
            self.figures = Figures(last.received + received, last.requests + requests, last.retries + retries)


def fetch(uri: str, start: int, length: int, *, version: str | None, traffic: Traffic) -> memoryview:
    """Return bytes start … start + length - 1 of a remote object, which must have that many.

    A range longer than two `RANGE`s is read in parallel parts. A failed request is retried for
    MPTRAINING_STORAGE_RETRY_SECONDS, counted again from each arrival of bytes. Raises StorageUnavailable after that,
    and InvalidData at once if the object was replaced, does not exist or may not be read.
    """
    into = np.empty(length, np.uint8).data
    parts = -(-length // RANGE)
    if parts <= 2:
        # Starting threads would take more time than it saves.
        _fill(uri, start, into, version, traffic)
        return into
    size = -(-length // parts)
    with ThreadPoolExecutor(min(parts, STREAMS), thread_name_prefix="parts") as pool:
        # After one failure the other parts would fail too, each only after its own retries: `map` cancels them.
        list(
            pool.map(lambda at: _fill(uri, start + at, into[at : at + size], version, traffic), range(0, length, size))
        )
    return into


def _fill(uri: str, start: int, into: memoryview, version: str | None, traffic: Traffic) -> None:
    got = requests = 0

    def receive() -> Received:
        nonlocal requests
        traffic.add(requests=1, retries=min(requests, 1))
        requests += 1
        received = gcs.receive(uri, start + got, into[got:], version)
        traffic.add(received=received.size)
        return received

    while got < len(into):
        # Each call gets the whole retry time, so that a range that makes progress never fails.
        received = gcs.retry(uri, receive)
        got += received.size
        if got < len(into):
            gcs_clients.endpoint().report_retry(uri, received.cause or "it sent a part of the range")


def windows(
    objects: Sequence[StoredObject], traffic: Traffic, skip_uris: set[str] | None = None
) -> Iterator[tuple[StoredObject, int, memoryview]]:
    """Yield (object, first byte, content) for every window of every object, one object after the other.

    A window has at most `RANGE` bytes, a short object is one. At most `MOST_STREAMS` windows are fetched ahead, and as
    many bytes as `STREAMS` long ones. The caller skips the rest of an object by adding its URI to `skip_uris`. Raises
    InvalidData and StorageUnavailable as `fetch`, the latter also if a whole object differs from its CRC32C.
    """
    skipped = set() if skip_uris is None else skip_uris
    remaining = (
        (stored, start) for stored in objects for start in range(0, stored.size, RANGE) if stored.uri not in skipped
    )
    ahead: deque[tuple[StoredObject, int, Future[memoryview]]] = deque()
    ahead_bytes = crc = 0
    with ThreadPoolExecutor(MOST_STREAMS, thread_name_prefix="windows") as pool:
        try:
            while True:
                while len(ahead) < MOST_STREAMS and ahead_bytes < STREAMS * RANGE and (window := next(remaining, None)):
                    stored, start = window
                    length = min(RANGE, stored.size - start)
                    load = pool.submit(fetch, stored.uri, start, length, version=stored.version, traffic=traffic)
                    ahead.append((stored, start, load))
                    ahead_bytes += length
                if not ahead:
                    return
                stored, start, load = ahead.popleft()
                content = load.result()
                ahead_bytes -= len(content)
                # The extension in C takes an array, and no memoryview.
                crc = google_crc32c.extend(crc if start else 0, np.asarray(content))
                if start + len(content) == stored.size and stored.crc32c not in (None, crc):
                    raise StorageUnavailable(stored.uri, "what arrived differs from the object's CRC32C")
                if stored.uri not in skipped:
                    yield stored, start, content
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
