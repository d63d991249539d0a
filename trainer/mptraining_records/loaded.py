"""A range that was read: its records checked where they lie, and cut out one by one as they are handed on."""

from __future__ import annotations

import threading
from collections import defaultdict

import google_crc32c
import numpy as np

from mptraining_records import framing
from mptraining_records.read_plan import RangeRead
from mptraining_records.shard_index import ShardIndex

_SIZE = 256 << 10
# Longer ones are rare, each of another length: kept, they would pile up.
_LARGEST = 4 << 20


class Buffers:
    """Memory for ranges, used again and again. Safe to use from several threads.

    New memory has to be cleared by the kernel, page by page, and the allocator would keep some for each thread.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[bytearray]] = defaultdict(list)
        self._lock = threading.Lock()

    def take(self, length: int) -> bytearray:
        """At least `length` bytes."""
        size = -(-length // _SIZE) * _SIZE
        with self._lock:
            free = self._free[size]
            return free.pop() if free else bytearray(size)

    def give(self, buffer: bytearray) -> None:
        """Takes a buffer back."""
        if len(buffer) > _LARGEST:
            return
        with self._lock:
            self._free[len(buffer)].append(buffer)

    def forget(self) -> None:
        """Leaves all memory that is not in use to others."""
        with self._lock:
            self._free.clear()


class Loaded:
    """The records of one range, in the order of its rows."""

    def __init__(self, content: bytes | memoryview, shard: ShardIndex, read: RangeRead) -> None:
        """Checks every record's checksum; a file that ends early was cut off after it was indexed."""
        self._content = memoryview(content)
        begins = shard.offsets[read.rows] - read.start
        ends = begins + shard.lengths[read.rows]
        self._begins: list[int] = begins.tolist()
        self._ends: list[int] = ends.tolist()
        self.is_sound = [False] * len(self._begins)
        if len(self._content) < read.length:
            return
        array = np.frombuffer(self._content, np.uint8)
        crc = google_crc32c.value
        stored = framing.unmasked(array, ends).tolist()
        self.is_sound = [
            crc(array[begin:end]) == checksum
            for begin, end, checksum in zip(self._begins, self._ends, stored, strict=True)
        ]

    def payload(self, row: int) -> bytes | None:
        """The record at this place among the rows; None for a damaged one."""
        return bytes(self._content[self._begins[row] : self._ends[row]]) if self.is_sound[row] else None
