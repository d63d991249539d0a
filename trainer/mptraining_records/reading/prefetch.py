"""Prefetching of records in their order of use, within a limited number of bytes.

    numbers     are cut into chunks of at most half the read-ahead; the first records are a chunk of their own, so that
                they arrive early
    chunk       is planned as ranges (`read_plan`), which are started in the order of their first use
    take        waits only for the ranges of the next records, returns the records, and starts as many more ranges as
                the freed bytes allow

All planning runs in the thread that calls `take`; the reader's threads only read. The order of the records therefore
does not depend on the order in which ranges arrive.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from mptraining_records.index.read_plan import RangeRead, split_by_bytes
from mptraining_records.index.shard_index import Int64s
from mptraining_records.reading.byte_source import LoadedRange
from mptraining_records.reading.reader import Load, RecordReader
from mptraining_records.storage.ranges import STREAMS
from mptraining_records.tfrecord.framing import OVERHEAD

READ_AHEAD = 64 << 20
# The limit in bytes alone would prefetch thousands of epochs of a few short records that repeat for ever. A second
# chunk is started in any case, because a shuffled one can have thousands of ranges that are in use to its end.
_MOST_RANGES = 8 * STREAMS


class RecordStream:
    """Returns the records of `units` one after the other; a number of -1 gives None.

    A unit (record numbers of shape [n]) is read as one chunk if its bytes fit into half of `read_ahead` bytes; choose
    units whose records are in few ranges. The first `first` records are a chunk of their own. Call `take` from one
    thread; `waited_seconds` is the time in seconds of the clock `now` that it waited for bytes.
    """

    def __init__(
        self,
        reader: RecordReader,
        units: Iterable[Int64s],
        *,
        read_ahead: int = READ_AHEAD,
        first: int = 64,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._reader = reader
        self._read_ahead = read_ahead
        self._chunks = self._cut(iter(units), first)
        self._started: deque[_Chunk] = deque()
        self._in_use = 0
        self._now = now or (lambda: 0.0)
        self._lengths = np.concatenate([np.zeros(0, np.int64), *(shard.lengths for shard in reader.dataset.shards)])
        self.waited_seconds = 0.0

    @property
    def bytes_in_flight(self) -> int:
        """The bytes of ranges that are being read, or are read and not yet taken."""
        return self._in_use

    def take(self, count: int) -> list[bytes | None]:
        """Return the next `count` payloads, fewer at the end, None for skipped records. Raises as RecordReader.read."""
        taken: list[bytes | None] = []
        while len(taken) < count:
            self._start_ranges()
            if not self._started:
                break
            chunk = self._started[0]
            records, freed = self._take_from(chunk, count - len(taken))
            taken += records
            self._in_use -= freed
            if chunk.done:
                self._started.popleft()
        self._start_ranges()
        return taken

    def close(self) -> None:
        """Start no more ranges, and cancel those that have not started."""
        for chunk in self._started:
            chunk.cancel()
        self._started.clear()
        self._chunks = iter(())

    def _start_ranges(self) -> None:
        """Start ranges while their bytes fit into the read-ahead; without bytes in use, one range always."""
        while True:
            chunk = self._started[-1] if self._started else None
            if chunk is None or chunk.all_started:
                in_use = sum(each.ranges_in_use for each in self._started)
                if len(self._started) > 1 and in_use >= _MOST_RANGES:
                    return
                chunk = next(self._chunks, None)
                if chunk is None:
                    return
                self._started.append(chunk)
                if chunk.all_started:
                    # The chunk has no ranges, only numbers of -1, of which there may be infinitely many.
                    return
            if self._in_use and self._in_use + chunk.next_length > self._read_ahead:
                return
            self._in_use += chunk.start(self._reader)

    def _take_from(self, chunk: _Chunk, most: int) -> tuple[list[bytes | None], int]:
        began = self._now()
        needed = chunk.needed(most)
        # All are started before the first is waited for, so that they arrive side by side.
        while needed and not chunk.has_started(needed[-1]):
            self._in_use += chunk.start(self._reader)
        for number in needed:
            chunk.wait_for(number)
        self.waited_seconds += self._now() - began
        records, damaged, freed = chunk.take(self._reader, most)
        for number in damaged:
            self._reader.report_damaged(number)
        return records, freed

    def _cut(self, units: Iterator[Int64s], first: int) -> Iterator[_Chunk]:
        most, separate = self._read_ahead // 2, first
        for unit in units:
            sizes = np.where(unit >= 0, self._lengths[np.maximum(unit, 0)] + OVERHEAD, 0)
            # The records after the first ones are cut as a unit without them.
            pieces = [(0, min(separate, len(unit)))] if separate else []
            rest = pieces[0][1] if pieces else 0
            separate -= rest
            pieces += [(rest + begin, rest + end) for begin, end in split_by_bytes(sizes[rest:], most)]
            for begin, end in pieces:
                if begin < end:
                    yield _Chunk(unit[begin:end], self._reader.plan(unit[begin:end]))


class _Chunk:
    """Records that were planned together: their ranges, started reads and loaded ranges."""

    def __init__(self, numbers: Int64s, reads: list[RangeRead]) -> None:
        self._numbers = numbers
        self._reads = reads
        self._loads: list[Load] = []
        self._arrived: dict[int, LoadedRange] = {}
        self._remaining = [len(read.rows) for read in reads]
        self._next = 0
        self._ended = 0
        # The range of each record, -1 for none, and the record's row in that range.
        self._range_of = np.full(len(numbers), -1, np.int64)
        self._row_of = np.zeros(len(numbers), np.int64)
        for number, read in enumerate(reads):
            self._range_of[read.places] = number
            self._row_of[read.places] = np.arange(len(read.places))

    @property
    def all_started(self) -> bool:
        return len(self._loads) == len(self._reads)

    @property
    def done(self) -> bool:
        return self._next == len(self._numbers)

    @property
    def ranges_in_use(self) -> int:
        """The number of ranges that are started and have records that are not taken yet."""
        return len(self._loads) - self._ended

    @property
    def next_length(self) -> int:
        return self._reads[len(self._loads)].length

    def has_started(self, number: int) -> bool:
        return number < len(self._loads)

    def start(self, reader: RecordReader) -> int:
        """Start reading the next range and return its length in bytes."""
        read = self._reads[len(self._loads)]
        self._loads.append(reader.start_read(read))
        return read.length

    def needed(self, most: int) -> list[int]:
        """Return the numbers of the ranges that the next `most` records still wait for."""
        numbers = sorted(set(self._range_of[self._next : self._next + most].tolist()))
        return [number for number in numbers if number >= 0 and number not in self._arrived]

    def wait_for(self, number: int) -> None:
        """Wait for a range."""
        self._arrived[number] = self._loads[number].result()

    def take(self, reader: RecordReader, most: int) -> tuple[list[bytes | None], list[int], int]:
        """Return the next `most` records, the numbers of damaged ones, and the freed bytes; all ranges have arrived."""
        begin, end = self._next, min(self._next + most, len(self._numbers))
        ranges, rows = self._range_of[begin:end].tolist(), self._row_of[begin:end].tolist()
        payload = {of: self._arrived[of].payload for of in set(ranges) if of >= 0}
        records = [None if of < 0 else payload[of](row) for of, row in zip(ranges, rows, strict=True)]
        numbers = self._numbers[begin:end].tolist()
        damaged = [number for number, record in zip(numbers, records, strict=True) if record is None and number >= 0]
        freed = 0
        for of, count in Counter(ranges).items():
            if of < 0:
                continue
            self._remaining[of] -= count
            if not self._remaining[of]:
                # All memory of a range, gaps included, is freed with its last record.
                freed += self._reads[of].length
                del self._arrived[of]
                self._ended += 1
                reader.release(self._loads[of])
        self._next = end
        return records, damaged, freed

    def cancel(self) -> None:
        for load in self._loads:
            load.cancel()
