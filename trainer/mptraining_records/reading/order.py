"""Order of training records: a pure function of (seed, epoch, position), for any number of workers.

    records   0 … N-1, in index order, cut into blocks of `block_size` contiguous records (the last shorter)
    sequence  the blocks, concatenated in an order permuted in every epoch
    streams   the sequence cut into V contiguous streams; stream v has ceil(N/V) records when v < N mod V,
              else floor(N/V), so that position i·V + v exists exactly when it is less than N
    windows   each stream cut into windows of `buffer_size / V` records, each permuted
    position  p takes record p div V of stream p mod V

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
# How well class-sorted records are mixed depends on the number of blocks in a row. Batches that follow one another
# correlate by about b / (b + blocks), for batches of b examples: 5,461 blocks for 0.05 at b = 256. A row is kept in
# memory while it is consumed, so its bytes decide how long a block, which is one read, can be.
_ROW_BYTES = 256 << 20
_BLOCK_BYTES = 48 << 10
# In records, for small ones: the keys of a row are sorted at once.
_MAX_ROW = 1 << 20
_MAX_BLOCK = 192
# For large records, whose blocks are single records: any row is as good as another.
_MIN_ROW = 10_000
# The purpose of a key is part of it, so that no two permutations share a key.
_WINDOWS, _BLOCKS = 1, 2


@dataclass(frozen=True)
class Position:
    """Position of training: `examples` counts the records consumed in this epoch, including skipped ones."""

    seed: int
    epoch: int
    examples: int
    fingerprint: str


@dataclass(frozen=True)
class Order:
    """Order of `count` records in every epoch; with `shuffle` False it is the index order.

    `buffer_size` is the number of records that are shuffled against each other, as in tf.data: reading
    `row_size` positions at a time, from a multiple of it, fetches whole windows of contiguous blocks.
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
    def row_size(self) -> int:
        """The number of positions in one window of every stream."""
        return self.window * self.stream_count

    @property
    def planned_together(self) -> int | None:
        """The number of positions whose records are in fewer and longer ranges if they are read together.

        None if the number makes no difference: in index order, and for single records scattered over many rows.
        """
        scattered = self.block_size == 1 and self.row_size < self.count
        return min(self.row_size, self.count) if self.shuffle and not scattered else None

    def records(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the record numbers at these positions of an epoch; both of shape [n], positions in 0 … count - 1.

        Costs one sort of `row_size` keys for each row of the positions (the last four rows are cached), and one
        permutation of the blocks per epoch. Raises IndexError for a position outside the epoch.
        """
        positions = np.asarray(positions, np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= self.count):
            raise IndexError(f"positions must be in 0 … {self.count - 1}")
        if not self.shuffle or not positions.size:
            return positions.copy()
        place, stream = np.divmod(positions, self.stream_count)
        row, column = np.divmod(place, self.window)
        shuffled = np.empty_like(positions)
        for number in np.unique(row):
            chosen = row == number
            windows = _windows(
                seed=self.seed,
                epoch=epoch,
                row=int(number),
                count=self.count,
                streams=self.stream_count,
                window=self.window,
            )
            shuffled[chosen] = windows[stream[chosen], column[chosen]]
        shorter, longer_streams = divmod(self.count, self.stream_count)
        sequence = stream * shorter + np.minimum(stream, longer_streams) + row * self.window + shuffled
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
    row = buffer_size or min(_MAX_ROW, max(_MIN_ROW, _ROW_BYTES // record_bytes))
    # A row is sorted as a whole, also where the data is shorter.
    row = min(row, max(1, -(-count // STREAMS)) * STREAMS)
    # An eighth of a stream at most: then each stream samples a whole sorted data set.
    block = min(_MAX_BLOCK, round(_BLOCK_BYTES / record_bytes), count // (8 * STREAMS)) if shuffle == "Windowed" else 1
    return Order(count, seed, buffer_size=row, block_size=max(1, block), shuffle=shuffle != "None")


@functools.lru_cache(maxsize=4)
def _windows(*, seed: int, epoch: int, row: int, count: int, streams: int, window: int) -> Int64s:
    """Return for each stream's window number `row` a permutation of 0 … length - 1; shape [streams, window]."""
    keys = splitmix64(key(seed, epoch, _WINDOWS, row), np.arange(streams, dtype=np.uint64))
    drawn = splitmix64(keys[:, None], np.arange(window, dtype=np.uint64)[None, :])
    shorter, longer_streams = divmod(count, streams)
    length = shorter + (np.arange(streams) < longer_streams) - row * window
    drawn[np.arange(window)[None, :] >= length[:, None]] = np.iinfo(np.uint64).max
    return np.argsort(drawn, axis=1, kind="stable").astype(np.int64)


@functools.lru_cache(maxsize=2)
def _blocks(seed: int, epoch: int, blocks: int) -> Int64s:
    """Return a permutation of 0 … blocks - 1."""
    drawn = splitmix64(key(seed, epoch, _BLOCKS), np.arange(blocks, dtype=np.uint64))
    return np.argsort(drawn, kind="stable").astype(np.int64)
