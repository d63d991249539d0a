"""A range that was read: its records checked where they lie, and cut out one by one as they are handed on."""

from __future__ import annotations

import threading
from collections import defaultdict

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from mptraining_records.index.read_plan import RangeRead
from mptraining_records.index.shard_index import ShardIndex
from mptraining_records.storage.ranges import RANGE
from mptraining_records.tfrecord import framing

Buffer = NDArray[np.uint8]

_SMALLEST = 64 << 10
# Longer ranges, single long records, are rare and of many sizes; more free memory than this is given back.
_LONGEST = 2 * RANGE
_MOST_FREE = 4 << 20


class Buffers:
    """Memory for ranges, used again and again. Safe to use from several threads.

    New memory has to be cleared by the kernel, page by page, and the allocator would keep some for each thread.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._lock = threading.Lock()
        self.free_bytes = 0

    def take(self, length: int) -> Buffer:
        """At least `length` bytes."""
        # Powers of two, so that ranges of nearly one length share their buffers.
        size = max(_SMALLEST, 1 << (length - 1).bit_length())
        with self._lock:
            free = self._free[size]
            if free:
                self.free_bytes -= size
                return free.pop()
        # Not cleared: pages that nothing is written to take no memory.
        return np.empty(size, np.uint8)

    def give(self, buffer: Buffer) -> None:
        """Takes a buffer back."""
        with self._lock:
            if len(buffer) <= _LONGEST and self.free_bytes + len(buffer) <= _MOST_FREE:
                self.free_bytes += len(buffer)
                self._free[len(buffer)].append(buffer)


class Loaded:
    """The records of one range, in the order of its rows."""

    def __init__(self, content: bytes | memoryview, shard: ShardIndex, read: RangeRead) -> None:
        """Checks every record's checksum; a file that ends early was cut off after it was indexed."""
        self._content = content
        begins = shard.offsets[read.rows] - read.start
        ends = begins + shard.lengths[read.rows]
        self._places = list(map(slice, begins.tolist(), ends.tolist()))
        self.is_sound = [False] * len(self._places)
        if len(content) < read.length:
            return
        array = np.frombuffer(content, np.uint8)
        crc = google_crc32c.value
        stored = framing.unmasked(array, ends).tolist()
        self.is_sound = [crc(array[place]) == checksum for place, checksum in zip(self._places, stored, strict=True)]

    def payload(self, row: int) -> bytes | None:
        """The record at this place among the rows; None for a damaged one."""
        return bytes(self._content[self._places[row]]) if self.is_sound[row] else None
