"""The numbers of the next records, and the choice of those that are planned as ranges together.

Pure: no reads. A place counts the records from the beginning of the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mptraining_records.index.shard_index import Int64s
from mptraining_records.reading.order import Together

NO_RANGE = -1


class Chosen(NamedTuple):
    """Records to plan together: their numbers and places, shape [n] each; `unit` are all numbers of the unit."""

    numbers: Int64s
    places: Int64s
    unit: Int64s


class Lookahead:
    """Record numbers from the first place that is not dropped, in units; -1 for no record.

    With a `together` of blocks, `choose` returns with a unit the records of the same blocks that later units need, so
    that each block is read once; an empty unit is the end of an epoch, after which blocks are read again. `count` is
    the number of records in the data set.
    """

    def __init__(self, units: Iterator[Int64s], together: Together | None, count: int) -> None:
        self._units = units
        self._block_size = together.block_size if together else 0
        self._ahead = together.rows if together and together.block_size else 1
        self._is_wanted = np.zeros(-(-count // self._block_size) if self._block_size else 0, np.bool_)
        self._begin = 0
        self._numbers = np.empty(0, np.int64)
        self._range_of = np.empty(0, np.int64)
        self._is_chosen = np.empty(0, np.bool_)
        # The places after the last record of each unit that is not chosen yet.
        self._ends: deque[int] = deque()
        self._epoch_ends: deque[int] = deque()
        # The place after the last record of the units that are chosen.
        self.chosen_end = 0

    def choose(self) -> Chosen | None:
        """Return the next unit's records without those that were chosen before; None after the last unit."""
        self._fill()
        if not self._ends:
            return None
        first, end = self.chosen_end - self._begin, self._ends.popleft() - self._begin
        self.chosen_end = end + self._begin
        rest = first + (~self._is_chosen[first:]).nonzero()[0]
        places = rest[rest < end]
        if self._block_size and len(places):
            while self._epoch_ends and self._epoch_ends[0] < self.chosen_end:
                self._epoch_ends.popleft()
            if self._epoch_ends:
                rest = rest[rest < self._epoch_ends[0] - self._begin]
            blocks = self._numbers[places] // self._block_size
            self._is_wanted[blocks] = True
            places = rest[self._is_wanted[self._numbers[rest] // self._block_size]]
            self._is_wanted[blocks] = False
        self._is_chosen[places] = True
        return Chosen(self._numbers[places], places + self._begin, self._numbers[first:end])

    def set_ranges(self, places: Int64s, ranges: Int64s) -> None:
        """Set the numbers of the ranges that contain the records at these places."""
        self._range_of[places - self._begin] = ranges

    def ranges(self, begin: int, end: int) -> list[int]:
        """Return the numbers of the ranges of the records from place `begin` to `end`, `NO_RANGE` for none."""
        found: list[int] = self._range_of[begin - self._begin : end - self._begin].tolist()
        return found

    def numbers(self, begin: int, end: int) -> list[int]:
        """Return the record numbers from place `begin` to `end`."""
        found: list[int] = self._numbers[begin - self._begin : end - self._begin].tolist()
        return found

    def drop(self, place: int) -> None:
        """Forget the records before `place`."""
        unused = place - self._begin
        # Copying what is left at every batch would take longer than the batch.
        if unused * 2 > len(self._numbers):
            self._begin = place
            self._numbers = self._numbers[unused:].copy()
            self._range_of = self._range_of[unused:].copy()
            self._is_chosen = self._is_chosen[unused:].copy()

    def _fill(self) -> None:
        added: list[Int64s] = []
        end = self._begin + len(self._numbers)
        while len(self._ends) < self._ahead and (unit := next(self._units, None)) is not None:
            added.append(unit)
            end += len(unit)
            (self._ends if len(unit) else self._epoch_ends).append(end)
        if added:
            new = np.concatenate(added)
            self._numbers = np.concatenate([self._numbers, new])
            self._range_of = np.concatenate([self._range_of, np.full(len(new), NO_RANGE)])
            # A number of -1 is no record.
            self._is_chosen = np.concatenate([self._is_chosen, new < 0])
