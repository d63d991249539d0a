"""Assignment of records to steps, workers and replicas: integer arithmetic over the global order.

A pass reads the data once. Step s of a pass covers the positions s * E … (s + 1) * E - 1 of the pass's order, where E
is the number of examples per step; worker r of n takes the positions that are r modulo n, in order, and splits them
into equal pieces for its replicas.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mptraining_records.reading.order import Int64s, Order, Position
from mptraining_records.reading.prefetch import Window

# The number of positions computed at a time: it bounds the memory of long passes, and a short pass is one piece.
_POSITIONS_AT_ONCE = 1 << 17
# Planning a short window takes as long as planning a longer one.
_PLANNED_AT_ONCE = 512


@dataclass(frozen=True)
class Share:
    """The share of worker `worker` of `workers`."""

    worker: int
    workers: int


SINGLE_WORKER = Share(0, 1)


@dataclass(frozen=True)
class Batching:
    """The division of passes over `count` records into steps of `examples_per_step`."""

    count: int
    examples_per_step: int
    remainder: Literal["Drop", "PadAndMask"]

    @property
    def steps_per_pass(self) -> int:
        """The number of steps in a pass from its first record; 0 if Drop leaves none."""
        return self.steps_from(0)

    def steps_from(self, examples: int) -> int:
        """Return the number of steps left in a pass after `examples` positions."""
        left = max(0, self.count - examples)
        return -(-left // self.examples_per_step) if self.remainder == "PadAndMask" else left // self.examples_per_step

    def steps_before(self, position: Position) -> int:
        """Return the number of steps of this size in the passes up to `position`, regardless of the real step size."""
        return (position.epoch + 1) * self.steps_per_pass - self.steps_from(position.examples)

    def advance(self, position: Position, steps: int) -> Position:
        """Return the position after `steps` more steps; the next pass begins when this one cannot fill a step."""
        while steps > 0:
            left = self.steps_from(position.examples)
            if left == 0:
                position = replace(position, epoch=position.epoch + 1, examples=0)
                if self.steps_per_pass == 0:
                    raise ValueError(f"{self.count} records never fill a step of {self.examples_per_step}")
                continue
            taken = min(steps, left)
            position = replace(position, examples=position.examples + taken * self.examples_per_step)
            steps -= taken
        return position

    def next_step(self, position: Position) -> Position:
        """Return the beginning of the step after `position`: in the next pass if this one cannot fill a step."""
        if self.steps_from(position.examples):
            return position
        return replace(position, epoch=position.epoch + 1, examples=0)


@dataclass(frozen=True)
class Piece:
    """Some steps of one worker's share: record numbers, -1 where there is no record, and their positions.

    Both are int64 [steps * examples_per_step / workers]; `epoch` is their pass.
    """

    epoch: int
    records: Int64s
    positions: Int64s


@dataclass(frozen=True)
class Span:
    """Whole steps of one pass: the positions `first` … `end` - 1, of which those from `last` on have no record."""

    epoch: int
    first: int
    last: int
    end: int


def training_spans(batching: Batching, position: Position, steps: int | None = None) -> Iterator[Span]:
    """Yield the passes from `position` on, for `steps` steps or without end."""
    left = math.inf if steps is None else steps
    while left:
        position = batching.next_step(position)
        now = int(min(batching.steps_from(position.examples), left))
        end = position.examples + now * batching.examples_per_step
        yield Span(position.epoch, position.examples, min(end, batching.count), end)
        position = replace(position, examples=end)
        left -= now


def validation_spans(count: int, examples_per_step: int) -> Iterator[Span]:
    """Yield passes that have every record exactly once over all workers, without end."""
    return itertools.repeat(Span(0, 0, count, -(-count // examples_per_step) * examples_per_step))


def pieces(order: Order, spans: Iterable[Span], share: Share, examples_per_step: int) -> Iterator[Piece]:
    """Yield the share's records of the spans, in pieces of whole steps."""
    at_once = max(1, _POSITIONS_AT_ONCE // examples_per_step) * examples_per_step
    for span in spans:
        for first in range(span.first, span.end, at_once):
            positions = np.arange(first + share.worker, min(first + at_once, span.end), share.workers, dtype=np.int64)
            records = np.full(positions.shape, -1, np.int64)
            there = positions < span.last
            records[there] = order.records(span.epoch, positions[there])
            yield Piece(span.epoch, records, positions)


def windows(order: Order, spans: Iterable[Span], share: Share) -> Iterator[Window]:
    """Yield the windows of the order with the share's records of the spans; positions without a record have no place.

    It does not end if the spans do not end and the share has no record in them.
    """
    begin = 0
    for span in spans:
        for positions in _joined(order.windows(span.first, span.last)):
            places, remainders = np.divmod(positions - span.first - share.worker, share.workers)
            of_share = remainders == 0
            if of_share.any():
                numbers = order.records(span.epoch, positions[of_share])
                yield Window(begin + int(places[0]), begin + places[of_share], numbers)
        begin += max(0, -(-(span.last - span.first - share.worker) // share.workers))


def _joined(windows: Iterator[Int64s]) -> Iterator[Int64s]:
    """Yield windows that follow each other as one, of about `_PLANNED_AT_ONCE` positions."""
    parts: list[Int64s] = []
    for positions in windows:
        parts.append(positions)
        if sum(map(len, parts)) >= _PLANNED_AT_ONCE:
            yield np.concatenate(parts)
            parts = []
    if parts:
        yield np.concatenate(parts)
