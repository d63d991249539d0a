"""Prefetching of records in their order of use, within a limited number of bytes.

    numbers     come in units, which are planned one after the other; the first records are a unit of their own, so that
                they arrive early (`lookahead`)
    unit        is planned as ranges (`read_plan`), which are started in the order of their first use
    take        waits only for the ranges of the next records, returns the records, and starts as many more ranges as
                the freed bytes allow

The first use of a range copies its records and releases its buffer; records for later units are kept until they are
taken. All planning runs in the thread that calls `take`; the reader's threads only read. The order of the records
therefore does not depend on the order in which ranges arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from mptraining_records.index.read_plan import RangeRead, split_by_bytes
from mptraining_records.index.shard_index import Int64s
from mptraining_records.reading.lookahead import NO_RANGE, Lookahead
from mptraining_records.reading.order import Together
from mptraining_records.reading.reader import Load, RecordReader
from mptraining_records.tfrecord.framing import OVERHEAD

# Twice what a fast network transfers while a request waits: 300 MB/s during 50 ms.
READ_AHEAD = 32 << 20
# Files on this machine are in the page cache, or read ahead by the kernel.
LOCAL_READ_AHEAD = 4 << 20
# The limit in bytes alone would prefetch thousands of epochs of a few short records that repeat for ever. A second
# unit is started in any case, because a shuffled one can have thousands of ranges that are in use to its end.
_MOST_RANGES = 256


class RecordStream:
    """Returns the records of `units` one after the other; a number of -1 gives None.

    Without blocks in `together`, a unit (record numbers of shape [n]) is planned as a whole if its bytes fit into half
    of `read_ahead` bytes; choose units whose records are in few ranges. The first `first` records are a unit of their
    own. Call `take` from one thread; `waited_seconds` is the time in seconds of the clock `now` that it waited for
    bytes.
    """

    def __init__(
        self,
        reader: RecordReader,
        units: Iterable[Int64s],
        *,
        together: Together | None = None,
        read_ahead: int | None = None,
        first: int = 64,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._reader = reader
        self._read_ahead = read_ahead or (READ_AHEAD if reader.is_remote else LOCAL_READ_AHEAD)
        self._lengths = np.concatenate([np.zeros(0, np.int64), *(shard.lengths for shard in reader.dataset.shards)])
        has_blocks = together is not None and together.block_size > 0
        self._ahead = Lookahead(self._cut(iter(units), first, whole=has_blocks), together, len(self._lengths))
        # Ranges are numbered in their order: those below `_begun` are started, and in `_loads` until they are used.
        self._planned: deque[RangeRead] = deque()
        self._begun = 0
        self._loads: dict[int, tuple[RangeRead, Load]] = {}
        # Records that arrived, by place.
        self._arrived: dict[int, bytes | None] = {}
        # The ends of units that are planned and not wholly taken.
        self._unit_ends: deque[int] = deque()
        self._next = 0
        # The bytes of ranges that are being read, or are read and not yet used.
        self.bytes_in_flight = 0
        self._now = now or (lambda: 0.0)
        self.waited_seconds = 0.0

    def take(self, count: int) -> list[bytes | None]:
        """Return the next `count` payloads, fewer at the end, None for skipped records. Raises as RecordReader.read."""
        taken: list[bytes | None] = []
        while len(taken) < count:
            self._start_ranges()
            end = min(self._ahead.chosen_end, self._next + count - len(taken))
            if end == self._next:
                break
            taken += self._take_until(end)
        self._start_ranges()
        return taken

    def close(self) -> None:
        """Start no more ranges, and cancel those that have not started."""
        for _, load in self._loads.values():
            load.cancel()
        self._loads.clear()
        self._arrived.clear()
        self._planned.clear()
        self._next = self._ahead.chosen_end
        self._ahead = Lookahead(iter(()), None, 0)
        self._ahead.chosen_end = self._next

    def _start_ranges(self) -> None:
        """Start ranges while their bytes fit into the read-ahead; without bytes in use, one range always."""
        while True:
            while not self._planned:
                while self._unit_ends and self._unit_ends[0] <= self._next:
                    self._unit_ends.popleft()
                if len(self._unit_ends) > 1 and len(self._loads) >= _MOST_RANGES:
                    return
                self._ahead.drop(self._next)
                if not self._plan():
                    return
            if self.bytes_in_flight and self.bytes_in_flight + self._planned[0].length > self._read_ahead:
                return
            self._start()

    def _plan(self) -> bool:
        """Plan the next unit that has records; return whether there is one."""
        chosen = self._ahead.choose()
        if chosen is None:
            return False
        self._unit_ends.append(self._ahead.chosen_end)
        reads = self._reader.plan(chosen.numbers, chosen.places)
        if reads:
            numbers = np.repeat(np.arange(self._begun, self._begun + len(reads)), [len(read.places) for read in reads])
            self._ahead.set_ranges(np.concatenate([read.places for read in reads]), numbers)
            self._planned.extend(reads)
        # A unit may have only numbers of -1, of which there may be infinitely many.
        return bool((chosen.unit >= 0).any())

    def _start(self) -> None:
        read = self._planned.popleft()
        self._loads[self._begun] = read, self._reader.start_read(read)
        self._begun += 1
        self.bytes_in_flight += read.length

    def _take_until(self, end: int) -> list[bytes | None]:
        places = range(self._next, end)
        ranges = self._ahead.ranges(self._next, end)
        needed = sorted({number for number in ranges if number >= self._begun or number in self._loads})
        began = self._now()
        # All are started before the first is waited for, so that they arrive side by side.
        while needed and self._begun <= needed[-1]:
            self._start()
        for number in needed:
            read, load = self._loads[number]
            loaded = load.result()
            self._arrived.update(zip(read.places.tolist(), loaded.payloads(), strict=True))
            self._reader.release(load)
            self.bytes_in_flight -= read.length
            del self._loads[number]
        self.waited_seconds += self._now() - began
        records = [self._arrived.pop(place, None) for place in places]
        if None in records:
            for number, of, record in zip(self._ahead.numbers(self._next, end), ranges, records, strict=True):
                if record is None and of != NO_RANGE:
                    self._reader.report_damaged(number)
        self._next = end
        return records

    def _cut(self, units: Iterator[Int64s], first: int, *, whole: bool) -> Iterator[Int64s]:
        most, separate = self._read_ahead // 2, first
        for unit in units:
            # The records after the first ones are cut as a unit without them.
            head, rest = unit[:separate], unit[separate:]
            separate -= len(head)
            if len(head):
                yield head
            sizes = np.where(rest >= 0, self._lengths[np.maximum(rest, 0)] + OVERHEAD, 0)
            for begin, end in [(0, len(rest))] if whole else split_by_bytes(sizes, most):
                if begin < end or not len(unit):
                    yield rest[begin:end]
