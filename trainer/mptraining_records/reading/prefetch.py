"""Prefetching of records in their order of use, within a limited number of bytes.

    window      the unit of planning: records that are read and used together, planned as ranges (`read_plan`)
    range       started in the order of its first use, as far as the bytes allow
    take        waits only for the ranges of the next records, returns the records, and starts as many more ranges as
                the freed bytes allow

The records of a range are kept from its first use until they are taken. All planning runs in the thread that calls
`take`. The order of the records therefore does not depend on the order in which ranges arrive.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from mptraining_records.index.read_plan import RangeRead
from mptraining_records.index.shard_index import Int64s
from mptraining_records.reading.reader import Load, RecordReader

# Twice what a fast network transfers while a request waits: 300 MB/s during 50 ms.
READ_AHEAD = 32 << 20
# Files on this machine are in the page cache, or read ahead by the kernel.
LOCAL_READ_AHEAD = 4 << 20
# A range counts as at least so many bytes, or thousands of those of a few short records would be started.
_LEAST_COST = 16 << 10


class Window(NamedTuple):
    """Records to plan together: their places in the stream and their numbers, shape [n] each.

    No place is below `begin`.
    """

    begin: int
    places: Int64s
    numbers: Int64s


class RecordStream:
    """Returns the records of `windows` in the order of their places, which are 0, 1, 2 … over all windows.

    The windows come by `begin`. Call `take` from one thread; `waited_seconds` is the time in seconds of the clock `now`
    that it waited for bytes.
    """

    def __init__(
        self,
        reader: RecordReader,
        windows: Iterable[Window],
        *,
        read_ahead: int | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._reader = reader
        self._windows = iter(windows)
        self._read_ahead = read_ahead or (READ_AHEAD if reader.is_remote else LOCAL_READ_AHEAD)
        self._upcoming: Window | None = None
        self._is_begun = False
        # A heap by the place of the first use; the number decides between equal ones.
        self._planned: list[tuple[int, int, RangeRead]] = []
        self._numbers = itertools.count()
        # The place after the last record of the windows that are planned.
        self._planned_end = 0
        # In the order of their first use, with the place of that.
        self._started: deque[tuple[int, RangeRead, Load]] = deque()
        # Records that arrived and are not taken, by place; the number of a damaged one.
        self._arrived: dict[int, bytes | int] = {}
        self._next = 0
        # The bytes of ranges that are started and not yet used.
        self.bytes_in_flight = 0
        self._now = now or (lambda: 0.0)
        self.waited_seconds = 0.0

    def take(self, count: int) -> list[bytes | None]:
        """Return the next `count` payloads, fewer at the end, None for skipped records. Raises as RecordReader.read."""
        if not count:
            return []
        end = self._next + count
        # All are started before the first is waited for, so that they arrive side by side.
        while (first := self._first_planned()) is not None and first < end:
            self._start()
        end = min(end, self._planned_end)
        began = self._now()
        while self._started and self._started[0][0] < end:
            _, read, load = self._started.popleft()
            records = load.result()
            self.bytes_in_flight -= _cost(read)
            self._arrived.update(zip(read.places.tolist(), records, strict=True))  # type: ignore[arg-type]
            if None in records:
                self._arrived.update(self._damaged(read, records))
        self.waited_seconds += self._now() - began
        taken = [self._arrived.pop(position) for position in range(self._next, end)]
        self._next = end
        while self._first_planned() is not None and (
            not self._started or self.bytes_in_flight + _cost(self._planned[0][2]) <= self._read_ahead
        ):
            self._start()
        return [self._sound(record) for record in taken]

    def close(self) -> None:
        """Start no more ranges, and cancel those that have not started."""
        for _, _, load in self._started:
            load.cancel()
        self._started.clear()
        self._arrived.clear()
        self._planned.clear()
        self._windows, self._upcoming = iter(()), None
        self._planned_end = self._next

    def _first_planned(self) -> int | None:
        """Plan all windows that may hold the first use of the next range; return that place, None at the end."""
        if not self._is_begun:
            self._is_begun, self._upcoming = True, next(self._windows, None)
        while (window := self._upcoming) is not None and (not self._planned or window.begin <= self._planned[0][0]):
            for read in self._reader.plan(window.numbers, window.places):
                heapq.heappush(self._planned, (int(read.places.min()), next(self._numbers), read))
            self._planned_end = max(self._planned_end, int(window.places.max()) + 1)
            self._upcoming = next(self._windows, None)
        return self._planned[0][0] if self._planned else None

    def _start(self) -> None:
        first, _, read = heapq.heappop(self._planned)
        self._started.append((first, read, self._reader.start_read(read)))
        self.bytes_in_flight += _cost(read)

    def _damaged(self, read: RangeRead, records: list[bytes | None]) -> dict[int, int]:
        base = int(self._reader.dataset.starts[read.shard])
        places = zip(read.places.tolist(), read.rows.tolist(), records, strict=True)
        return {position: base + row for position, row, record in places if record is None}

    def _sound(self, record: bytes | int) -> bytes | None:
        if isinstance(record, bytes):
            return record
        self._reader.report_damaged(record)
        return None


def _cost(read: RangeRead) -> int:
    return max(_LEAST_COST, read.length)
