"""Reader of records by number, which fetches their ranges in threads and verifies their payloads.

The bytes of a range come from the disk cache, a local file or the bucket.

Read amplification: the bytes that all workers fetch from a bucket for each byte of records, in the default order of
1,280,000 records in 1,024 objects.

    record   1 worker   2      3      8
    1 kB     1.0        1.0    2.9    1.0
    4 kB     1.0        1.0    2.1    1.0
    16 kB    1.0        1.0    1.1    1.0
    110 kB   1.0        1.0    1.0    1.0

It is near 1 if the number of workers divides 64, since each worker then has its own streams. Otherwise every worker
needs records of every stream, and also fetches other workers' records in gaps of at most `gap` bytes.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import NamedTuple, Self

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.read_plan import Limits, RangeRead, range_reads
from mptraining_records.index.shard_index import Int64s, ShardIndex
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage import preconditions, storage
from mptraining_storage.ranges import MOST_STREAMS, RANGE, Figures, Traffic, fetch

# Local reads are limited by the checksums, which more threads than processors would only slow down.
_LOCAL_THREADS = 2
# A request to a bucket takes as long as the transfer of a megabyte, but many requests run in parallel and share the
# machine's network: with gaps of 512 kB, a shuffled epoch of 100 kB records fetched 1.4 times its bytes, with 128 kB
# 1.07 times. Bytes of a local file cost only a copy.
_REMOTE = Limits(gap=64 << 10, range=RANGE)
_LOCAL = Limits(gap=16 << 10, range=1 << 20)


Buffer = NDArray[np.uint8]

_MIN_BUFFER = 64 << 10
# Longer buffers, for single long records, are rare and differ in size, so that the pool does not retain them. It
# retains at most `_MAX_FREE` bytes.
_MAX_BUFFER = 2 * RANGE
_MAX_FREE = 4 << 20


class BufferPool:
    """Pool of reusable buffers for ranges. Thread-safe.

    The kernel clears new memory page by page, and the allocator would retain some for each thread.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._lock = threading.Lock()
        self.free_bytes = 0

    def acquire(self, length: int) -> Buffer:
        """Return a buffer of at least `length` bytes."""
        # Sizes are powers of two, so that ranges of similar length share buffers.
        size = max(_MIN_BUFFER, 1 << (length - 1).bit_length())
        with self._lock:
            free = self._free[size]
            if free:
                self.free_bytes -= size
                return free.pop()
        # The buffer is not cleared, since pages without a write take no memory.
        return np.empty(size, np.uint8)

    def release(self, buffer: Buffer) -> None:
        """Return a buffer to the pool."""
        with self._lock:
            if len(buffer) <= _MAX_BUFFER and self.free_bytes + len(buffer) <= _MAX_FREE:
                self.free_bytes += len(buffer)
                self._free[len(buffer)].append(buffer)


class LoadedRange:
    """The records of one range, in the order of its rows."""

    def __init__(self, content: bytes | memoryview, shard: ShardIndex, read: RangeRead) -> None:
        """Verify every record's checksum; shorter content is that of a file truncated after it was indexed."""
        self._content = content
        begins = shard.offsets[read.rows] - read.start
        ends = begins + shard.lengths[read.rows]
        self._slices = list(map(slice, begins.tolist(), ends.tolist()))
        self.is_sound = [False] * len(self._slices)
        if len(content) < read.length:
            return
        array = np.frombuffer(content, np.uint8)
        crc = google_crc32c.value
        stored = framing.unmask_footers(array, ends).tolist()
        self.is_sound = [crc(array[place]) == checksum for place, checksum in zip(self._slices, stored, strict=True)]

    def payloads(self) -> list[bytes | None]:
        """Return a copy of each record; None for a damaged one."""
        content = self._content
        return [
            bytes(content[place]) if sound else None for place, sound in zip(self._slices, self.is_sound, strict=True)
        ]


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
        self._traffic = traffic or Traffic()
        self._cache = cache
        self._remote = [storage.is_remote(shard.readable.uri) for shard in dataset.shards]
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
        return self._traffic.figures

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
        return any(self._remote)

    def plan(self, numbers: Int64s, places: Int64s) -> list[RangeRead]:
        """Return the ranges that cover these records, used at these places (shape [n] each), by first use."""
        of, rows = self.dataset.locate(numbers)
        if not self.is_remote:
            return range_reads(self.dataset.shards, of, rows, places, _LOCAL)
        if self._cache is None:
            return range_reads(self.dataset.shards, of, rows, places, _REMOTE)
        cached = self._cache.has_records(numbers)
        reads = [
            *range_reads(self.dataset.shards, of[cached], rows[cached], places[cached], _LOCAL),
            *range_reads(self.dataset.shards, of[~cached], rows[~cached], places[~cached], _REMOTE),
        ]
        return sorted(reads, key=lambda read: int(read.places.min()))

    def start_read(self, read: RangeRead) -> Load:
        """Start reading one range; call `release` after the last use of its records."""
        is_local = not self._remote[read.shard] or (self._cache is not None and self._cache.has_range(read))
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
        loaded = LoadedRange(self._bytes_of(read, buffer), shard, read)
        if self._remote[read.shard] and not self._confirmed.issuperset(_damaged(read, loaded)):
            # The damage may be in the transfer or in the disk cache, so that the range is fetched again.
            loaded = LoadedRange(self._bytes_of(read, None, bypass_cache=True), shard, read)
            self._confirmed.update(_damaged(read, loaded))
        return loaded

    def _bytes_of(self, read: RangeRead, into: Buffer | None, *, bypass_cache: bool = False) -> bytes | memoryview:
        """Read the bytes of one range, from the disk cache unless `bypass_cache`; those of a bucket into `into`."""
        object = self.dataset.shards[read.shard].readable
        if self._cache is not None and not bypass_cache:
            cached = self._cache.read_range(read)
            if cached is not None:
                return cached
        if not self._remote[read.shard]:
            return storage.read_range(object.uri, read.start, read.length, version=object.version)
        content = fetch(
            object.uri,
            read.start,
            read.length,
            version=object.version,
            traffic=self._traffic,
            into=None if into is None else into.data[: read.length],
        )
        if self._cache is not None:
            self._cache.write_range(read, content)
        return content

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
