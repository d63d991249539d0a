"""Reader of records by number, which fetches their ranges in threads and verifies their payloads."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import NamedTuple, Self

import numpy as np

from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.read_plan import RangeRead
from mptraining_records.index.shard_index import Int64s
from mptraining_records.reading.byte_source import Buffer, BufferPool, LoadedRange, ShardBytes
from mptraining_records.storage import preconditions, storage
from mptraining_records.storage.ranges import MOST_STREAMS, Figures, Traffic
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord

# Local reads are limited by the checksums, which more threads than processors would only slow down.
_LOCAL_THREADS = 2


class Load(NamedTuple):
    """A range that is being read, and its buffer."""

    future: Future[LoadedRange]
    # None for a local range.
    buffer: Buffer | None

    def result(self) -> LoadedRange:
        return self.future.result()

    def cancel(self) -> None:
        self.future.cancel()


class RecordReader:
    """Reads records of a data set by their number. Thread-safe; close it, or use `with`.

    `bad_records` receives damaged payloads; without it the first one raises InvalidData. A skipped record is None in
    the result. At most `streams` ranges of buckets are read in parallel.
    """

    def __init__(
        self,
        dataset: DatasetIndex,
        *,
        bad_records: BadRecords | None = None,
        streams: int = MOST_STREAMS,
        cache: DiskCache | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.dataset = dataset
        self._bytes = ShardBytes(dataset, traffic or Traffic(), cache)
        self.bad_records = bad_records or BadRecords()
        self._buffers = BufferPool()
        # (shard, row) of records that were damaged again in a second fetch.
        self._confirmed: set[tuple[int, int]] = set()
        self._closed = threading.Event()
        self._remote_pool = ThreadPoolExecutor(max(1, streams), thread_name_prefix="records-far")
        self._local_pool = ThreadPoolExecutor(_LOCAL_THREADS, thread_name_prefix="records-near")

    @property
    def skipped(self) -> tuple[BadRecord, ...]:
        """Every damaged record found so far, including those of the index."""
        return self.bad_records.skipped

    @property
    def figures(self) -> Figures:
        """Totals of the fetches from buckets so far."""
        return self._bytes.traffic.figures

    def read(self, record_numbers: Int64s) -> list[bytes | None]:
        """Return the payloads in the order of the numbers, which may repeat; None for each skipped record.

        Raises InvalidData for a damaged record (see the class) and for a shard that was replaced after it was indexed,
        StorageUnavailable if a bucket does not answer.
        """
        numbers = np.asarray(record_numbers, np.int64)
        results: list[bytes | None] = [None] * len(numbers)
        loads = [(read, self.start_read(read)) for read in self.plan(numbers, np.arange(len(numbers)))]
        try:
            for read, load in loads:
                for place, record in zip(read.places.tolist(), load.result().payloads(), strict=True):
                    results[place] = record
                self.release(load)
        finally:
            for _, load in loads:
                load.cancel()
        for place, record in enumerate(results):
            if record is None:
                self.report_damaged(int(numbers[place]))
        return results

    @property
    def is_remote(self) -> bool:
        """Whether any shard is in a bucket."""
        return self._bytes.has_remote

    def plan(self, numbers: Int64s, places: Int64s) -> list[RangeRead]:
        """Return the ranges that cover these records, used at these places (shape [n] each), by first use."""
        return self._bytes.plan(numbers, places)

    def start_read(self, read: RangeRead) -> Load:
        """Start reading one range; call `release` after the last use of its records."""
        is_local = self._bytes.is_local(read)
        buffer = None if is_local else self._buffers.acquire(read.length)
        pool = self._local_pool if is_local else self._remote_pool
        return Load(pool.submit(self._load, read, buffer), buffer)

    def release(self, load: Load) -> None:
        """Release the buffer of a range, whose records are no longer used."""
        if load.buffer is not None:
            self._buffers.release(load.buffer)

    def close(self) -> None:
        """Stop the threads: wait for running reads and cancel those that have not started."""
        self._closed.set()
        for pool in (self._local_pool, self._remote_pool):
            pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self, read: RangeRead, buffer: Buffer | None) -> LoadedRange:
        if self._closed.is_set():
            raise CancelledError
        shard = self.dataset.shards[read.shard]
        loaded = LoadedRange(self._bytes.get(read, buffer), shard, read)
        if self._bytes.is_remote(read) and not self._confirmed.issuperset(_damaged(read, loaded)):
            # The damage may be in the transfer or in the disk cache, so that the range is fetched again.
            loaded = LoadedRange(self._bytes.get(read, None, bypass_cache=True), shard, read)
            self._confirmed.update(_damaged(read, loaded))
        return loaded

    def report_damaged(self, number: int, cause: str = framing.BAD_PAYLOAD) -> None:
        """Report record `number`, which was read, as damaged; raises InvalidData as described in the class."""
        shards, _ = self.dataset.locate(np.array([number]))
        readable = self.dataset.shards[int(shards[0])].readable
        # A file overwritten in place looks damaged; the error must name the real cause.
        if storage.stat(readable.uri).version != readable.version:
            raise preconditions.replaced_error(readable.uri)
        self.bad_records.add(self.dataset.bad_record(number, cause))


def _damaged(read: RangeRead, loaded: LoadedRange) -> set[tuple[int, int]]:
    """Return (shard, row) of the damaged records of a range."""
    return {(read.shard, row) for row, sound in zip(read.rows.tolist(), loaded.is_sound, strict=True) if not sound}
