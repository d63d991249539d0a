"""Bytes of shards from the disk cache, a local file or the bucket, and their verification as records.

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

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_records.index.dataset_index import DatasetIndex
from mptraining_records.index.disk_cache import DiskCache
from mptraining_records.index.read_plan import Limits, RangeRead, range_reads
from mptraining_records.index.shard_index import Int64s, ShardIndex
from mptraining_records.storage import storage
from mptraining_records.storage.ranges import RANGE, Traffic, fetch
from mptraining_records.tfrecord import framing

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


# A request to a bucket takes as long as the transfer of a megabyte, but many requests run in parallel and share the
# machine's network: with gaps of 512 kB, a shuffled epoch of 100 kB records fetched 1.4 times its bytes, with 128 kB
# 1.07 times. Bytes of a local file cost only a copy.
REMOTE = Limits(gap=64 << 10, range=RANGE)
LOCAL = Limits(gap=16 << 10, range=1 << 20)


class ShardBytes:
    """The bytes of a data set's shards. Thread-safe."""

    def __init__(self, dataset: DatasetIndex, traffic: Traffic, cache: DiskCache | None = None) -> None:
        self.dataset = dataset
        self.cache = cache
        self.traffic = traffic
        self._remote = [storage.is_remote(shard.readable.uri) for shard in dataset.shards]

    @property
    def has_remote(self) -> bool:
        """Whether any shard is in a bucket."""
        return any(self._remote)

    def plan(self, numbers: Int64s, places: Int64s) -> list[RangeRead]:
        """Return the ranges that cover these records, used at these places (shape [n] each), by first use."""
        of, rows = self.dataset.locate(numbers)
        if not self.has_remote:
            return range_reads(self.dataset.shards, of, rows, places, LOCAL)
        if self.cache is None:
            return range_reads(self.dataset.shards, of, rows, places, REMOTE)
        cached = self.cache.has_records(numbers)
        reads = [
            *range_reads(self.dataset.shards, of[cached], rows[cached], places[cached], LOCAL),
            *range_reads(self.dataset.shards, of[~cached], rows[~cached], places[~cached], REMOTE),
        ]
        return sorted(reads, key=lambda read: int(read.places.min()))

    def is_remote(self, read: RangeRead) -> bool:
        """Return whether the shard is in a bucket, cached on this machine or not."""
        return self._remote[read.shard]

    def is_local(self, read: RangeRead) -> bool:
        """Return whether these bytes are on this machine."""
        return not self._remote[read.shard] or (self.cache is not None and self.cache.has_range(read))

    def get(self, read: RangeRead, into: Buffer | None, *, bypass_cache: bool = False) -> bytes | memoryview:
        """Read the bytes of one range, from the disk cache unless `bypass_cache`.

        Raises InvalidData and StorageUnavailable. Bytes from a bucket are written to `into`, if given.
        """
        object = self.dataset.shards[read.shard].readable
        if self.cache is not None and not bypass_cache:
            cached = self.cache.read_range(read)
            if cached is not None:
                return cached
        if not self._remote[read.shard]:
            return storage.read_range(object.uri, read.start, read.length, version=object.version)
        content = fetch(
            object.uri,
            read.start,
            read.length,
            version=object.version,
            traffic=self.traffic,
            into=None if into is None else into.data[: read.length],
        )
        if self.cache is not None:
            self.cache.write_range(read, content)
        return content
