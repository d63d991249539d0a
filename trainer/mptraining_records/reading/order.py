"""Order of training records: a pure function of (seed, epoch, position), for any number of workers.

    records   0 … N-1, in index order, cut into blocks of `block_size` contiguous records (the last shorter)
    sequence  the blocks, concatenated in an order permuted in every epoch
    streams   the sequence cut into V contiguous streams; stream v has ceil(N/V) records when v < N mod V,
              else floor(N/V), so that position i·V + v exists exactly when it is less than N
    segments  each stream cut into segments of `segment` records, and these into groups of `block_size` records; a
              permutation of each group deals its records to `parts` parts
    rows      row r of a stream is part 0 of segment r, part 1 of segment r - 1, …, permuted
    position  p takes record p div V of stream p mod V, whose records are those of its rows

A block is read when its first record is needed, and each of the next rows takes a share of it. So about half of a
window of `buffer_size` records is in memory, and the same number of blocks begins in each row.

`training_order` chooses the sizes from the job's shuffling and the mean size of a record.

Permutations sort hashed keys instead of using numpy's generators, whose `permutation` may change between versions: a
resumed job must continue in the same order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]
# splitmix64 adds this odd constant (2^64 divided by the golden ratio) once per number drawn.
_STEP = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_ALL = 2**64 - 1


def key(*numbers: int) -> UInt64s:
    """Return one key of shape [1] for a sequence of integers, each taken modulo 2^64."""
    result = 0
    # This is `splitmix64` for single numbers; numpy takes ten times as long for those.
    for number in numbers:
        result = (result + (number + 1) * _STEP) & _ALL
        result = ((result ^ result >> 30) * _MIX[0]) & _ALL
        result = ((result ^ result >> 27) * _MIX[1]) & _ALL
        result ^= result >> 31
    return np.array([result], np.uint64)


def splitmix64(keys: UInt64s, numbers: UInt64s) -> UInt64s:
    """Return element number `numbers` of the splitmix64 sequence that begins at `keys`; shapes broadcast.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), with the
    constants of Stafford's variant 13 as in Vigna's public-domain splitmix64.c. Arithmetic is modulo 2^64.
    """
    bits: UInt64s = keys + (numbers + np.uint64(1)) * np.uint64(_STEP)
    for shift, factor in zip((30, 27), _MIX, strict=True):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)
    return bits


Int64s = NDArray[np.int64]
Shuffle = Literal["Full", "Windowed", "None"]

STREAMS = 64
# How well class-sorted records are mixed depends on the number of blocks in use. Batches of b examples correlate by at
# most about b / (b + blocks): 5,461 blocks for 0.05 at b = 256. About half of their bytes are in memory, which decides
# how long a block, which is one read, can be.
_WINDOW_BYTES = 256 << 20
_BLOCK_BYTES = 48 << 10
# More parts save little memory.
_MAX_PARTS = 16
# In records, for small ones.
_MAX_WINDOW = 1 << 20
_MAX_BLOCK = 192
# For large records, whose blocks are single records: any window is as good as another.
_MIN_WINDOW = 10_000
# The purpose of a key is part of it, so that no two permutations share a key.
_ROWS, _BLOCKS, _GROUPS = 1, 2, 3


@dataclass(frozen=True)
class Position:
    """Position of training: `examples` counts the records consumed in this epoch, including skipped ones."""

    seed: int
    epoch: int
    examples: int
    fingerprint: str


@dataclass(frozen=True)
class Together:
    """Records that are read together: those of one block of `block_size` records, which `rows` rows contain.

    A row has about `row_size` positions. `block_size` is 0 if a row is read as a whole.
    """

    row_size: int
    block_size: int = 0
    rows: int = 1


@dataclass(frozen=True)
class Order:
    """Order of `count` records in every epoch; with `shuffle` False it is the index order.

    `buffer_size` is the number of records that are shuffled against each other, as in tf.data.
    """

    count: int
    seed: int
    buffer_size: int = 10_000
    streams: int = STREAMS
    block_size: int = 1
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name, least in (("count", 0), ("buffer_size", 1), ("streams", 1), ("block_size", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")

    @property
    def stream_count(self) -> int:
        """V: `streams`, at most the number of records."""
        return max(1, min(self.streams, self.count))

    @property
    def window(self) -> int:
        """The number of consecutive records of one stream that are shuffled against each other."""
        return max(1, self.buffer_size // self.stream_count)

    @property
    def parts(self) -> int:
        """The number of rows that take records of one segment."""
        return max(1, min(self.block_size, _MAX_PARTS, self.window // self.block_size))

    @property
    def segment(self) -> int:
        """The number of records in a segment; several parts divide whole groups."""
        if self.parts == 1:
            return self.window
        return max(1, round(self.window / self.parts / self.block_size)) * self.block_size

    @property
    def row_size(self) -> int:
        """The number of positions in one row of every stream, except for the first and last rows of an epoch."""
        return self.segment * self.stream_count

    @property
    def window_size(self) -> int:
        """The number of positions between which all records of a block are."""
        return self.row_size * self.parts

    @property
    def together(self) -> Together | None:
        """The records that are in fewer and longer ranges if they are read together.

        None if it makes no difference: in index order, and for single records scattered over many rows.
        """
        if not self.shuffle or (self.block_size == 1 and self.row_size < self.count):
            return None
        if self.parts == 1:
            return Together(min(self.row_size, self.count))
        # Rows begin with smaller ones, and a block may be in two segments.
        return Together(self.row_size, self.block_size, self.parts + 2)

    def records(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the record numbers at these positions of an epoch; both of shape [n], positions in 0 … count - 1.

        Costs two sorts of `row_size` keys for each row of the positions (the last rows are cached), and one permutation
        of the blocks per epoch. Raises IndexError for a position outside the epoch.
        """
        positions = np.asarray(positions, np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= self.count):
            raise IndexError(f"positions must be in 0 … {self.count - 1}")
        if not self.shuffle or not positions.size:
            return positions.copy()
        place, stream = np.divmod(positions, self.stream_count)
        shorter, longer_streams = divmod(self.count, self.stream_count)
        sequence = stream * shorter + np.minimum(stream, longer_streams)
        kinds = ((0, longer_streams, shorter + 1), (longer_streams, self.stream_count, shorter))
        for first, last, length in kinds:
            chosen = ((stream >= first) & (stream < last)).nonzero()[0]
            if chosen.size:
                streams = _Streams(self.seed, epoch, first, last, length, self.segment, self.block_size, self.parts)
                sequence[chosen] += streams.places(stream[chosen] - first, place[chosen])
        return self._records_in_blocks(epoch, sequence)

    def _records_in_blocks(self, epoch: int, sequence: Int64s) -> Int64s:
        """Return the record numbers at these positions of the sequence of permuted blocks."""
        size = self.block_size
        blocks = _blocks(self.seed, epoch, -(-self.count // size))
        last = len(blocks) - 1
        last_size = self.count - last * size
        # The short block may be anywhere in the sequence; records after it are shifted by its missing ones.
        last_end = int(np.flatnonzero(blocks == last)[0]) * size + last_size
        shift = np.where(sequence >= last_end, size - last_size, 0)
        block, offset = np.divmod(sequence + shift, size)
        return blocks[block] * size + offset


def training_order(
    count: int, record_bytes: int, *, seed: int, shuffle: Shuffle, buffer_size: int | None = None
) -> Order:
    """Return the order of `count` records whose mean size is `record_bytes`.

    Full is a permutation of the records. Windowed permutes blocks of 48 KiB, and then `buffer_size` records with one
    another: 256 MiB of them without it. Records of 32 KiB and more are blocks of their own, so that both are the same.
    """
    record_bytes = max(1, record_bytes)
    window = buffer_size or min(_MAX_WINDOW, max(_MIN_WINDOW, _WINDOW_BYTES // record_bytes))
    window = min(window, max(1, -(-count // STREAMS)) * STREAMS)
    # An eighth of a stream at most: then each stream samples a whole sorted data set.
    block = min(_MAX_BLOCK, round(_BLOCK_BYTES / record_bytes), count // (8 * STREAMS)) if shuffle == "Windowed" else 1
    return Order(count, seed, buffer_size=window, block_size=max(1, block), shuffle=shuffle != "None")


@dataclass(frozen=True)
class _Streams:
    """Streams `first` … `last` - 1, of `length` records each, in one epoch."""

    seed: int
    epoch: int
    first: int
    last: int
    length: int
    segment: int
    group: int
    parts: int

    def places(self, stream: Int64s, place: Int64s) -> Int64s:
        """Return the places before shuffling of the records at `place` of stream number `first + stream`."""
        starts = _row_starts(self.length, self.segment, self.group, self.parts)
        row = np.searchsorted(starts, place, side="right") - 1
        found = np.empty_like(place)
        for number in np.unique(row):
            chosen = row == number
            found[chosen] = _row(self, int(number))[stream[chosen], place[chosen] - starts[number]]
        return found

    def drawn(self, purpose: int, number: int, count: int) -> UInt64s:
        """Return hashed keys of shape [streams, count]."""
        keys = splitmix64(
            key(self.seed, self.epoch, purpose, number), np.arange(self.first, self.last, dtype=np.uint64)
        )
        return splitmix64(keys[:, None], np.arange(count, dtype=np.uint64)[None, :])


@functools.lru_cache(maxsize=4)
def _row_starts(length: int, segment: int, group: int, parts: int) -> Int64s:
    """Return the first place of each row of a stream, shape [rows]."""
    whole, rest = divmod(length, segment)
    sizes = np.zeros(whole + parts, np.int64)
    for part, (each, last) in enumerate(zip(*(_part_sizes(n, group, parts) for n in (segment, rest)), strict=True)):
        sizes[part : part + whole] += each
        sizes[whole + part] += last
    return np.cumsum(sizes) - sizes


def _part_sizes(length: int, group: int, parts: int) -> list[int]:
    """Return the number of records in each part of a segment of `length` records."""
    parts_of = np.arange(group) * parts // group
    groups, rest = divmod(length, group)
    sizes = groups * np.bincount(parts_of, minlength=parts) + np.bincount(parts_of[:rest], minlength=parts)
    return [int(size) for size in sizes]


@functools.lru_cache(maxsize=4)
def _row(streams: _Streams, number: int) -> Int64s:
    """Return the places before shuffling of the records of a row; shape [streams, records]."""
    taken = []
    for part in range(streams.parts):
        segment = number - part
        length = min(streams.segment, streams.length - segment * streams.segment)
        if segment >= 0 and length > 0:
            sizes = _part_sizes(length, streams.group, streams.parts)
            begin = sum(sizes[:part])
            taken.append(segment * streams.segment + _dealt(streams, segment, length)[:, begin : begin + sizes[part]])
    places = np.concatenate(taken, axis=1)
    shuffled = np.argsort(streams.drawn(_ROWS, number, places.shape[1]), axis=1, kind="stable")
    return np.take_along_axis(places, shuffled, axis=1)


# Each row needs `parts` segments, of longer and of shorter streams.
@functools.lru_cache(maxsize=2 * _MAX_PARTS + 2)
def _dealt(streams: _Streams, number: int, length: int) -> Int64s:
    """Return 0 … length - 1 sorted by the part that they are dealt to; shape [streams, length]."""
    if streams.parts == 1:
        return np.broadcast_to(np.arange(length), (streams.last - streams.first, length))
    groups = -(-length // streams.group)
    drawn = streams.drawn(_GROUPS, number, groups * streams.group)
    # The last group of the last segment may be shorter.
    drawn[:, length:] = _ALL
    by_group = drawn.reshape(-1, groups, streams.group).argsort(axis=2, kind="stable")
    ranked = (by_group + np.arange(groups)[:, None] * streams.group).transpose(0, 2, 1)
    exists = np.arange(streams.group)[:, None] < length - np.arange(groups) * streams.group
    return ranked[:, exists]


@functools.lru_cache(maxsize=2)
def _blocks(seed: int, epoch: int, blocks: int) -> Int64s:
    """Return a permutation of 0 … blocks - 1."""
    drawn = splitmix64(key(seed, epoch, _BLOCKS), np.arange(blocks, dtype=np.uint64))
    return np.argsort(drawn, kind="stable").astype(np.int64)
