"""Assignment of records to steps, workers and replicas: integer arithmetic over the global order.

A pass reads the data once. Step s of a pass covers the positions s * E … (s + 1) * E - 1 of the pass's order, where E
is the number of examples per step; worker r of n takes the positions that are r modulo n, in order, and splits them
into equal pieces for its replicas.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mptraining_records.reading.order import Order, Position, Together

# The number of positions computed at a time: it bounds the memory of long passes, and a short pass is one piece.
_POSITIONS_AT_ONCE = 1 << 17


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
    records: NDArray[np.int64]
    positions: NDArray[np.int64]


def training_pieces(
    order: Order,
    batching: Batching,
    position: Position,
    share: Share,
    steps: int | None = None,
    excluded: Collection[int] = (),
) -> Iterator[Piece]:
    """Yield this worker's records from `position` on, pass after pass, for `steps` steps or without end.

    A record in `excluded` is replaced by -1.
    """
    excluded_numbers = np.array(sorted(excluded), np.int64)
    size = batching.examples_per_step
    at_once = max(1, _POSITIONS_AT_ONCE // size)
    left = math.inf if steps is None else steps
    while left:
        in_pass = batching.steps_from(position.examples)
        if in_pass == 0:
            position = replace(position, epoch=position.epoch + 1, examples=0)
            continue
        now = int(min(in_pass, at_once, left))
        positions = np.arange(position.examples + share.worker, position.examples + now * size, share.workers)
        piece = _piece(order, position.epoch, positions.astype(np.int64))
        if excluded_numbers.size:
            piece.records[np.isin(piece.records, excluded_numbers)] = -1
        yield piece
        position = replace(position, examples=position.examples + now * size)
        left -= now


def units(pieces: Iterable[Piece], together: Together | None) -> Iterator[NDArray[np.int64]]:
    """Yield the record numbers of the pieces, in arrays that are read together, for `RecordStream`.

    Positions of one row may be in several pieces; their records would otherwise be read in parts, and the bytes between
    them more than once. An empty array separates epochs.
    """
    held: list[NDArray[np.int64]] = []
    row_held: tuple[int, int] | None = None
    for piece in pieces:
        if together is None:
            yield piece.records
            continue
        rows = piece.positions // together.row_size
        cuts = np.flatnonzero(np.diff(rows)) + 1
        for first, part in zip([0, *cuts.tolist()], np.split(piece.records, cuts), strict=True):
            row = (piece.epoch, int(rows[first]))
            if row_held is not None and row != row_held:
                yield np.concatenate(held)
                held = []
                if row[0] != row_held[0]:
                    yield np.empty(0, np.int64)
            held.append(part)
            row_held = row
    if held:
        yield np.concatenate(held)


def validation_pieces(count: int, examples_per_step: int, share: Share) -> Iterator[Piece]:
    """Yield every record exactly once per pass over all workers, without end; -1 fills the last step."""
    order = Order(count=count, seed=0, shuffle=False)
    steps = -(-count // examples_per_step)
    while True:
        for first in range(0, steps, max(1, _POSITIONS_AT_ONCE // examples_per_step)):
            last = min(steps, first + max(1, _POSITIONS_AT_ONCE // examples_per_step))
            positions = np.arange(
                first * examples_per_step + share.worker, last * examples_per_step, share.workers, dtype=np.int64
            )
            yield _piece(order, 0, positions)


def _piece(order: Order, epoch: int, positions: NDArray[np.int64]) -> Piece:
    records = np.full(positions.shape, -1, np.int64)
    there = positions < order.count
    records[there] = order.records(epoch, positions[there])
    return Piece(epoch, records, positions)
