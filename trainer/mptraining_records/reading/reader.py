"""Reader of records by number, which fetches their ranges in threads and verifies their payloads.

The bytes of a range come from the disk cache, a local file or the bucket.

Read amplification: the bytes that all workers fetch from a bucket for each byte of records, in the default order of
1,280,000 records in 1,024 objects; of mixed records in brackets.

    record   1 worker   2           3           8
    1 kB     1.0 (1.0)  1.0 (1.0)   2.8 (3.0)   1.0 (1.0)
    4 kB     1.0 (1.0)  1.0 (1.0)   2.0 (2.9)   1.0 (1.0)
    16 kB    1.0 (1.0)  1.0 (1.0)   1.1 (2.0)   1.0 (1.0)
    110 kB   1.0 (1.0)  1.0 (1.0)   1.0 (1.0)   1.0 (1.0)

It is near 1 if the number of workers divides 64, since each worker then has its own streams. Otherwise every worker
needs records of every stream, and also fetches other workers' records in gaps of at most `gap` bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import NamedTuple, Protocol, Self

import google_crc32c
import numpy as np

from mptraining_records.index.bad_record_policy import BadRecords
from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.read_plan import Limits, RangeRead, range_reads
from mptraining_records.index.shard_index import Int64s, ShardIndex
from mptraining_records.tfrecord import framing
from mptraining_records.tfrecord.framing import BadRecord
from mptraining_storage import preconditions, storage
from mptraining_storage.ranges import MOST_STREAMS, RANGE, Figures, Traffic, fetch

# A request to a bucket takes as long as the transfer of a megabyte, but many requests run in parallel and share the
# machine's network: with gaps of 512 kB, a shuffled epoch of 100 kB records fetched 1.4 times its bytes, with 128 kB
# 1.07 times. Bytes of a local file cost only a copy.
_REMOTE = Limits(gap=64 << 10, length=RANGE)
_LOCAL = Limits(gap=16 << 10, length=1 << 20)


class Load(Protocol):
    """A range that was started: its records in the order of its rows, None for a damaged one."""

    def result(self) -> list[bytes | None]: ...

    def cancel(self) -> object: ...


class _LocalLoad(NamedTuple):
    """A range of this machine's disk, which is read by the thread that takes its records.

    The kernel reads ahead; with threads of their own, checksums and copies wait for the interpreter's lock.
    """

    load: Callable[[RangeRead], list[bytes | None]]
    read: RangeRead

    def result(self) -> list[bytes | None]:
        return self.load(self.read)

    def cancel(self) -> None:
        """Do nothing: no thread reads it."""


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
        # (shard, row) of records that were damaged again in a second fetch.
        self._confirmed: set[tuple[int, int]] = set()
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(max(1, streams), thread_name_prefix="records")

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
                for position, record in zip(read.places.tolist(), load.result(), strict=True):
                    results[position] = record
        finally:
            for _, load in loads:
                load.cancel()
        for position, record in enumerate(results):
            if record is None:
                self.report_damaged(int(numbers[position]))
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
        """Start reading one range."""
        if self._cache is not None and self._cache.has_range(read):
            return _LocalLoad(self._cached, read)
        if self._remote[read.shard]:
            return self._pool.submit(self._fetched, read)
        storage.read_ahead(self.dataset.shards[read.shard].readable.uri, read.start, read.length)
        return _LocalLoad(self._local, read)

    def close(self) -> None:
        """Stop the threads: wait for running reads and cancel those that have not started."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _local(self, read: RangeRead) -> list[bytes | None]:
        shard = self.dataset.shards[read.shard]
        content = storage.read_range(shard.readable.uri, read.start, read.length, version=shard.readable.version)
        return _records(content, shard, read)

    def _cached(self, read: RangeRead) -> list[bytes | None]:
        assert self._cache is not None
        records = _records(self._cache.read_range(read) or b"", self.dataset.shards[read.shard], read)
        # The disk may have damaged the bytes.
        return records if self._confirmed.issuperset(_damaged(read, records)) else self._fetched(read)

    def _fetched(self, read: RangeRead) -> list[bytes | None]:
        """Fetch a range, and once more if records are damaged that may have been damaged in the transfer."""
        if self._closed.is_set():
            raise CancelledError
        records = self._fetch(read)
        if not self._confirmed.issuperset(_damaged(read, records)):
            records = self._fetch(read)
            self._confirmed.update(_damaged(read, records))
        return records

    def _fetch(self, read: RangeRead) -> list[bytes | None]:
        shard = self.dataset.shards[read.shard]
        content_file = shard.readable
        content = fetch(content_file.uri, read.start, read.length, version=content_file.version, traffic=self._traffic)
        if self._cache is not None:
            self._cache.write_range(read, content)
        return _records(content, shard, read)

    def report_damaged(self, number: int, cause: str = framing.BAD_PAYLOAD) -> None:
        """Report record `number`, which was read, as damaged; raises InvalidData as described in the class."""
        shards, _ = self.dataset.locate(np.array([number]))
        readable = self.dataset.shards[int(shards[0])].readable
        # A file overwritten in place looks damaged; the error must name the real cause.
        if storage.stat(readable.uri).version != readable.version:
            raise preconditions.replaced_error(readable.uri)
        self.bad_records.add(self.dataset.bad_record(number, cause))


def _records(content: bytes | memoryview, shard: ShardIndex, read: RangeRead) -> list[bytes | None]:
    """Return a copy of each record of the range; None for one whose checksum is wrong.

    Shorter content is that of a file truncated after it was indexed.
    """
    if len(content) < read.length:
        return [None] * len(read.rows)
    begins = shard.offsets[read.rows] - read.start
    ends = begins + shard.lengths[read.rows]
    checksums = framing.unmask_footers(np.frombuffer(content, np.uint8), ends).tolist()
    records = [bytes(content[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    computed = map(google_crc32c.value, records)
    return [
        record if crc == checksum else None for record, crc, checksum in zip(records, computed, checksums, strict=True)
    ]


def _damaged(read: RangeRead, records: list[bytes | None]) -> set[tuple[int, int]]:
    """Return (shard, row) of the damaged records of a range."""
    return {(read.shard, row) for row, record in zip(read.rows.tolist(), records, strict=True) if record is None}
