"""Order of training records: a pure function of (seed, epoch, position), for any number of workers.

    records   0 … N-1, in index order, cut into blocks of `block_size` contiguous records (the last shorter)
    sequence  the blocks, concatenated in an order permuted in every epoch
    streams   the sequence cut into V contiguous streams; stream v has ceil(N/V) records when v < N mod V,
              else floor(N/V), so that position i·V + v exists exactly when it is less than N
    windows   each stream cut into windows of `buffer_size / V` records, each permuted
    position  p takes record p div V of stream p mod V

Permutations sort hashed keys instead of using numpy's generators, whose `permutation` may change between versions: a
resumed job must continue in the same order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

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

STREAMS = 64
_MAX_BLOCK = 1024
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
    `block_size` None means an eighth of a stream, at most 1024 records: small enough that each stream samples a
    whole sorted data set, large enough that a block of small records is one range request.
    """

    count: int
    seed: int
    buffer_size: int = 10_000
    streams: int = STREAMS
    block_size: int | None = None
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name, least in (("count", 0), ("buffer_size", 1), ("streams", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.block_size is not None and self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {self.block_size}")

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
    def block(self) -> int:
        """The block size in use."""
        return self.block_size or max(1, min(_MAX_BLOCK, self.count // (8 * self.stream_count)))

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
        size = self.block
        blocks = _blocks(self.seed, epoch, -(-self.count // size))
        last = len(blocks) - 1
        last_size = self.count - last * size
        # The short block may be anywhere in the sequence; records after it are shifted by its missing ones.
        last_end = int(np.flatnonzero(blocks == last)[0]) * size + last_size
        shift = np.where(sequence >= last_end, size - last_size, 0)
        block, offset = np.divmod(sequence + shift, size)
        return blocks[block] * size + offset


@functools.lru_cache(maxsize=4)
def _windows(*, seed: int, epoch: int, row: int, count: int, streams: int, window: int) -> Int64s:
    """Return for each stream's window number `row` a permutation of 0 … length - 1; shape [streams, window]."""
    keys = splitmix64(key(seed, epoch, _WINDOWS, row), np.arange(streams, dtype=np.uint64))
    drawn = splitmix64(keys[:, None], np.arange(window, dtype=np.uint64)[None, :])
    shorter, longer_streams = divmod(count, streams)
    length = shorter + (np.arange(streams) < longer_streams) - row * window
    drawn[np.arange(window)[None, :] >= length[:, None]] = np.iinfo(np.uint64).max
    return np.argsort(drawn, axis=1, kind="stable").astype(np.int64)


@functools.lru_cache(maxsize=4)
def _blocks(seed: int, epoch: int, blocks: int) -> Int64s:
    """Return a permutation of 0 … blocks - 1."""
    drawn = splitmix64(key(seed, epoch, _BLOCKS), np.arange(blocks, dtype=np.uint64))
    return np.argsort(drawn, kind="stable").astype(np.int64)
