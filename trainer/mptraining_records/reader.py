"""Records by number, their payloads verified: at random with `read`, ahead of their need with `stream`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import google_crc32c
import numpy as np

from mptraining_records import framing, storage
from mptraining_records.bad_records import BadRecords
from mptraining_records.disk_cache import DiskCache
from mptraining_records.fetch import STREAMS, Figures, Traffic
from mptraining_records.framing import BadRecord
from mptraining_records.index import DatasetIndex
from mptraining_records.read_plan import RangeRead
from mptraining_records.shard_bytes import ShardBytes
from mptraining_records.shard_index import Int64s, ShardIndex

# What is on this machine comes as fast as it can be checked, which more threads than processors only slow down.
_NEAR = 2


class RecordReader:
    """Reads records of a data set by their number. Safe to use from several threads; close it, or use `with`.

    `bad_records` decides about damaged payloads and keeps account of them; without it the first one raises InvalidData.
    A skipped one is None in its place. At most `streams` ranges of buckets are read at once.
    """

    def __init__(
        self,
        dataset: DatasetIndex,
        *,
        bad_records: BadRecords | None = None,
        streams: int = STREAMS,
        cache: DiskCache | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.dataset = dataset
        self._bytes = ShardBytes(dataset, traffic or Traffic(), cache)
        self.bad_records = bad_records or BadRecords()
        self._closed = threading.Event()
        self._far = ThreadPoolExecutor(max(1, streams), thread_name_prefix="records-far")
        self._near = ThreadPoolExecutor(_NEAR, thread_name_prefix="records-near")

    @property
    def skipped(self) -> tuple[BadRecord, ...]:
        """Every damaged record that the account knows, those of the index included."""
        return self.bad_records.skipped

    @property
    def figures(self) -> Figures:
        """What was fetched from buckets so far."""
        return self._bytes.traffic.figures

    def read(self, record_numbers: Int64s) -> list[bytes | None]:
        """The payloads, in the order asked for, repetitions allowed; None for each skipped one.

        Raises InvalidData for a damaged record (see the class) and for a shard that was replaced since it
        was indexed, StorageUnavailable for a bucket that does not answer.
        """
        numbers = np.asarray(record_numbers, np.int64)
        results: list[bytes | None] = [None] * len(numbers)
        reads = self.plan(numbers)
        loads = [(read, self.begin(read)) for read in reads]
        try:
            for read, load in loads:
                for place, payload in zip(read.places.tolist(), load.result(), strict=True):
                    results[place] = payload
        finally:
            for _, load in loads:
                load.cancel()
        for place, record in enumerate(results):
            if record is None:
                self.damaged(int(numbers[place]))
        return results

    def plan(self, numbers: Int64s) -> list[RangeRead]:
        """The ranges that bring these records (shape [n], -1 for none), in the order in which they are needed first."""
        return self._bytes.plan(numbers)

    def begin(self, read: RangeRead) -> Future[list[bytes | None]]:
        """Begins to read one range; the result has a payload for each of its rows, None for each `damaged` one."""
        pool = self._near if self._bytes.is_near(read) else self._far
        return pool.submit(self._load, read)

    def close(self) -> None:
        """Ends the threads; ranges that are on their way are waited for, those that are not yet begun are not."""
        self._closed.set()
        for pool in (self._near, self._far):
            pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self, read: RangeRead) -> list[bytes | None]:
        if self._closed.is_set():
            return []
        shard = self.dataset.shards[read.shard]
        payloads = list(_payloads(self._bytes.get(read), shard, read))
        if None in payloads and self._bytes.cache is not None:
            # The disk may be what is damaged.
            payloads = list(_payloads(self._bytes.get(read, anew=True), shard, read))
        return payloads

    def damaged(self, number: int) -> None:
        """Accounts for record `number`, which was read and is damaged; raises InvalidData as the class says."""
        of, rows = self.dataset.locate(np.array([number]))
        shard, row = self.dataset.shards[int(of[0])], int(rows[0])
        # Overwriting a file in place looks like damage; say what really happened.
        if storage.stat(shard.readable.uri).version != shard.readable.version:
            raise storage.replaced(shard.readable.uri)
        self.bad_records.met(shard.bad_record(row))


def _payloads(content: bytes | memoryview, shard: ShardIndex, read: RangeRead) -> Iterator[bytes | None]:
    """The payloads of a range, None for each whose checksum is another one."""
    begins = shard.offsets[read.rows] - read.start
    ends = begins + shard.lengths[read.rows]
    view = memoryview(content)
    if len(view) < read.length:
        # A file that ends early was cut off after it was indexed.
        yield from [None] * len(read.rows)
        return
    checksums = framing.unmasked(np.frombuffer(view, np.uint8), ends)
    crc = google_crc32c.value
    for begin, end, checksum in zip(begins.tolist(), ends.tolist(), checksums.tolist(), strict=True):
        payload = bytes(view[begin:end])
        yield payload if crc(payload) == checksum else None
