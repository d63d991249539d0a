"""Records in the order of their need, fetched ahead of it within a bounded number of bytes.

    numbers     cut into chunks of at most half the read-ahead; the first records by themselves, so that they come soon
    chunk       planned as ranges (`read_plan`), begun in the order in which they are needed first
    take        waits for the ranges of the next records alone, hands the records out, and begins as many more ranges
                as the bytes that it freed allow

All planning happens in the thread that takes; the reader's threads only read. So the records never depend on which
range came first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from mptraining_records.index.read_plan import RangeRead, cut_by_bytes
from mptraining_records.index.shard_index import Int64s
from mptraining_records.reading.byte_source import Loaded
from mptraining_records.reading.reader import Load, RecordReader
from mptraining_records.storage.ranges import STREAMS
from mptraining_records.tfrecord.framing import OVERHEAD

READ_AHEAD = 64 << 20
# Ranges ahead at most: of a few short records, for ever, the bytes alone would be thousands of epochs.
_MOST_RANGES = 8 * STREAMS


class RecordStream:
    """Hands out the records of `units` one after the other; a number of -1 gives None.

    A unit (record numbers of shape [n]) is read as one chunk where its bytes fit into half of `read_ahead` bytes:
    cut the numbers where few ranges bring many of them. `first` records are fetched by themselves to begin with.
    Take from one thread; `waited` counts the seconds of the clock `now` that it spent waiting for bytes.
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
        self._begun: deque[_Chunk] = deque()
        self._in_use = 0
        self._now = now or (lambda: 0.0)
        self._lengths = np.concatenate([np.zeros(0, np.int64), *(shard.lengths for shard in reader.dataset.shards)])
        self.waited = 0.0

    @property
    def bytes_under_way(self) -> int:
        """Bytes that are asked for, or here and not yet taken."""
        return self._in_use

    def take(self, count: int) -> list[bytes | None]:
        """The next `count` payloads, fewer at the end; None for each skipped record. Raises as RecordReader.read."""
        taken: list[bytes | None] = []
        while len(taken) < count:
            self._begin_more()
            if not self._begun:
                break
            chunk = self._begun[0]
            records, freed = self._hand_out(chunk, count - len(taken))
            taken += records
            self._in_use -= freed
            if chunk.done:
                self._begun.popleft()
        self._begin_more()
        return taken

    def close(self) -> None:
        """Nothing more is begun, and what has not begun yet is dropped."""
        for chunk in self._begun:
            chunk.cancel()
        self._begun.clear()
        self._chunks = iter(())

    def _begin_more(self) -> None:
        """Begins ranges while their bytes fit; of a chunk that nothing waits before, the first always."""
        while True:
            chunk = self._begun[-1] if self._begun else None
            if chunk is None or chunk.all_begun:
                chunk = next(self._chunks, None)
                if chunk is None:
                    return
                self._begun.append(chunk)
                if chunk.all_begun:
                    # Holes only, of which there may be no end.
                    return
            if self._in_use and self._in_use + chunk.next_length > self._read_ahead:
                return
            if sum(each.ranges_under_way for each in self._begun) >= _MOST_RANGES:
                return
            self._in_use += chunk.begin(self._reader)

    def _hand_out(self, chunk: _Chunk, most: int) -> tuple[list[bytes | None], int]:
        began = self._now()
        for number in chunk.needed(most):
            while not chunk.has_begun(number):
                self._in_use += chunk.begin(self._reader)
            chunk.arrive(number)
        self.waited += self._now() - began
        records, damaged, freed = chunk.hand_out(self._reader, most)
        for number in damaged:
            self._reader.damaged(number)
        return records, freed

    def _cut(self, units: Iterator[Int64s], first: int) -> Iterator[_Chunk]:
        most, alone = self._read_ahead // 2, first
        for unit in units:
            sizes = np.where(unit >= 0, self._lengths[np.maximum(unit, 0)] + OVERHEAD, 0)
            # What follows the first records is cut as if they were no part of it.
            pieces = [(0, min(alone, len(unit)))] if alone else []
            rest = pieces[0][1] if pieces else 0
            alone -= rest
            pieces += [(rest + begin, rest + end) for begin, end in cut_by_bytes(sizes[rest:], most)]
            for begin, end in pieces:
                if begin < end:
                    yield _Chunk(unit[begin:end], self._reader.plan(unit[begin:end]))


class _Chunk:
    """Records that were planned together: their ranges, those begun, and what has arrived."""

    def __init__(self, numbers: Int64s, reads: list[RangeRead]) -> None:
        self._numbers = numbers
        self._reads = reads
        self._loads: list[Load] = []
        self._arrived: dict[int, Loaded] = {}
        self._left = [len(read.rows) for read in reads]
        self._at = 0
        self._ended = 0
        # Which range brings each record, -1 for a hole, and at which of its rows.
        self._range_of = np.full(len(numbers), -1, np.int64)
        self._row_of = np.zeros(len(numbers), np.int64)
        for number, read in enumerate(reads):
            self._range_of[read.places] = number
            self._row_of[read.places] = np.arange(len(read.places))

    @property
    def all_begun(self) -> bool:
        return len(self._loads) == len(self._reads)

    @property
    def done(self) -> bool:
        return self._at == len(self._numbers)

    @property
    def ranges_under_way(self) -> int:
        """Those that are begun and not yet handed out to the last record."""
        return len(self._loads) - self._ended

    @property
    def next_length(self) -> int:
        return self._reads[len(self._loads)].length

    def has_begun(self, number: int) -> bool:
        return number < len(self._loads)

    def begin(self, reader: RecordReader) -> int:
        """Begins the next range; its length in bytes."""
        read = self._reads[len(self._loads)]
        self._loads.append(reader.begin(read))
        return read.length

    def needed(self, most: int) -> list[int]:
        """The ranges that the next `most` records wait for."""
        numbers = sorted(set(self._range_of[self._at : self._at + most].tolist()))
        return [number for number in numbers if number >= 0 and number not in self._arrived]

    def arrive(self, number: int) -> None:
        """Waits for a range."""
        self._arrived[number] = self._loads[number].result()

    def hand_out(self, reader: RecordReader, most: int) -> tuple[list[bytes | None], list[int], int]:
        """The next `most` records, which have arrived; the numbers of damaged ones; the bytes that are free now."""
        begin, end = self._at, min(self._at + most, len(self._numbers))
        ranges, rows = self._range_of[begin:end].tolist(), self._row_of[begin:end].tolist()
        payload = {of: self._arrived[of].payload for of in set(ranges) if of >= 0}
        records = [None if of < 0 else payload[of](row) for of, row in zip(ranges, rows, strict=True)]
        numbers = self._numbers[begin:end].tolist()
        damaged = [number for number, record in zip(numbers, records, strict=True) if record is None and number >= 0]
        freed = 0
        for of, count in Counter(ranges).items():
            if of < 0:
                continue
            self._left[of] -= count
            if not self._left[of]:
                # The memory of a range is free with its last record, gaps and all.
                freed += self._reads[of].length
                del self._arrived[of]
                self._ended += 1
                reader.end(self._loads[of])
        self._at = end
        return records, damaged, freed

    def cancel(self) -> None:
        for load in self._loads:
            load.cancel()
