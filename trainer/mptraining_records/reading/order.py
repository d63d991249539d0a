"""Order of training records: a pure function of (seed, epoch, position), for any number of workers.

    streams   records 0 … N-1, rotated, cut into V contiguous streams; stream v has ceil(N/V) records when v < N mod V,
              else floor(N/V), so that position i·V + v exists exactly when it is less than N
    windows   each stream, cut into windows of `window` records, which are permuted; the first window of stream v has
              (v + 1)/V of that, so that the windows of the streams begin one after the other
    blocks    each window, cut into blocks of `block` contiguous records; those of all streams are permuted, but for the
              shorter ones at the ends of a stream, which rotation fills with other records in every epoch
    position  p takes record p div V of stream p mod V

A window is planned and read as its records are taken, so that about half of V windows is in memory. Rotation and
permutations change in every epoch.

A permutation is a Feistel network over hashed keys, as in `tf.random.experimental.index_shuffle`: the time for a
position does not depend on the number of records. numpy's generators may change between versions, and a resumed job
must continue in the same order.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# It changes with the order of the same seed, so that a checkpoint is resumed only in the order of its run.
VERSION = 3

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]
Shuffle = Literal["Full", "Windowed", "None"]

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


def permuted(indices: Int64s, sizes: Int64s, keys: UInt64s) -> Int64s:
    """Return the index in a permutation of 0 … size - 1 for each index, of shape [n].

    `sizes` and `keys` are both of shape [n] or both of [1].

    Four rounds of a Feistel network permute the next power of 2; an index outside of the size is permuted again
    (Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
    """
    # frexp returns the number of bits, exactly for sizes up to 2^53.
    bits = np.frexp((sizes - 1).astype(np.float64))[1].astype(np.uint64)
    low = bits - bits // np.uint64(2)
    masks = (np.uint64(1) << bits - low) - np.uint64(1), (np.uint64(1) << low) - np.uint64(1)
    offset, *rounds = splitmix64(keys, np.arange(5, dtype=np.uint64)[:, None])
    network = np.stack([low, *masks, *rounds])
    limit = sizes.astype(np.uint64)
    # Over few bits the network alone prefers some places by a fifth.
    image = _feistel((indices.astype(np.uint64) + offset % limit) % limit, network)
    outside = np.flatnonzero(image >= limit)
    while len(outside):
        walked = _feistel(image[outside], network if network.shape[1] == 1 else network[:, outside])
        image[outside] = walked
        outside = outside[walked >= (limit if len(limit) == 1 else limit[outside])]
    return image.astype(np.int64)


def _feistel(numbers: UInt64s, network: UInt64s) -> UInt64s:
    """Permute the numbers by the network's rows: the number of low bits, the masks of both halves, four keys."""
    low, high_mask, low_mask, *keys = network
    high, rest = numbers >> low, numbers & low_mask
    for turn, drawn in enumerate(keys):
        number, other, mask = (rest, high, high_mask) if turn % 2 == 0 else (high, rest, low_mask)
        bits = (number ^ drawn) * np.uint64(_MIX[0])
        bits ^= bits >> np.uint64(29)
        bits *= np.uint64(_MIX[1])
        bits >>= np.uint64(32)
        bits &= mask
        other ^= bits
    image: UInt64s = high << low | rest
    return image


STREAMS = 64
# How well class-sorted records are mixed depends on the number of blocks in use. Batches of b examples correlate by at
# most about b / (b + blocks): 5,461 blocks for 0.05 at b = 256. A block is one read.
_WINDOW_BYTES = 256 << 20
_SORTED_BLOCK_BYTES = 48 << 10
# In data that are mixed already a block may be as long as a read should be, and one for each stream is enough.
_MIXED_BLOCK_BYTES = 1 << 20
# In records, for small ones.
_MAX_WINDOW = 1 << 20
_MAX_BLOCK = 192
# For large records, whose blocks are single records: any window is as good as another.
_MIN_WINDOW = 10_000
# The purpose of a key is part of it, so that no two permutations share a key.
_WINDOWS, _BLOCKS, _ROTATION = 1, 2, 3


@dataclass(frozen=True)
class Position:
    """Position of training: `examples` counts the records consumed in this epoch, including skipped ones.

    `mixed` chose the blocks of the run's order (`training_order`).
    """

    seed: int
    epoch: int
    examples: int
    fingerprint: str
    mixed: bool = False


@dataclass(frozen=True)
class Order:
    """Order of `count` records in every epoch; with `shuffle` False it is the index order.

    `buffer_size` is the number of records that are shuffled against each other, as in tf.data.
    """

    count: int
    seed: int
    buffer_size: int = 10_000
    streams: int = STREAMS
    block: int = 1
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name, least in (("count", 0), ("buffer_size", 1), ("streams", 1), ("block", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")

    @property
    def stream_count(self) -> int:
        """V: `streams`, at most the number of records; 1 without shuffling."""
        return max(1, min(self.streams, self.count)) if self.shuffle else 1

    @property
    def window(self) -> int:
        """The number of consecutive records of a stream that are shuffled together: whole blocks, or less than one."""
        records = max(1, self.buffer_size // self.stream_count)
        return records - records % self.block or records

    def records(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the record numbers at these positions of an epoch; both of shape [n], positions in 0 … count - 1.

        Raises IndexError for a position outside the epoch.
        """
        positions = np.asarray(positions, np.int64)
        if positions.size and (positions.min() < 0 or positions.max() >= self.count):
            raise IndexError(f"positions must be in 0 … {self.count - 1}")
        if not self.shuffle or not positions.size:
            return positions.copy()
        index, stream = np.divmod(positions, self.stream_count)
        begin, end = self._window_at(index, stream)
        keys = splitmix64(key(self.seed, epoch, _WINDOWS), (begin * self.stream_count + stream).astype(np.uint64))
        index = begin + permuted(index - begin, end - begin, keys)
        first, blocks = self._blocks
        block, offset = np.divmod(index - first[stream], self.block)
        whole = np.flatnonzero((block >= 0) & (block < np.diff(blocks)[stream]))
        number = blocks[stream[whole]] + block[whole]
        image = permuted(number, np.maximum(1, blocks[-1:]), key(self.seed, epoch, _BLOCKS))
        stream[whole] = np.searchsorted(blocks, image, "right") - 1
        block[whole] = image - blocks[stream[whole]]
        rotation = int(key(self.seed, epoch, _ROTATION)[0]) % self.count
        records: Int64s = self._start(stream) + first[stream] + block * self.block + offset
        return (records + rotation) % self.count

    def windows(self, first: int, last: int) -> Iterator[Int64s]:
        """Yield the positions `first` … `last` - 1 of any epoch by window, in the order of each window's first one."""
        count = self.stream_count
        upcoming = [(first + (stream - first) % count, stream) for stream in range(count)]
        heapq.heapify(upcoming)
        while upcoming:
            position, stream = heapq.heappop(upcoming)
            if position >= last:
                return
            _, ends = self._window_at(np.array([position // count]), np.array([stream]))
            end = int(ends[0]) * count + stream
            yield np.arange(position, min(end, last), count)
            heapq.heappush(upcoming, (end, stream))

    def _window_at(self, index: Int64s, stream: Int64s) -> tuple[Int64s, Int64s]:
        """Return the first index of the window with this index of a stream, and the index after its last one."""
        first = self._first_window(stream)
        number = (index - first) // self.window
        length = self._start(stream + 1) - self._start(stream)
        return np.maximum(0, first + number * self.window), np.minimum(first + (number + 1) * self.window, length)

    def _first_window(self, stream: Int64s) -> Int64s:
        return np.maximum(1, self.window * (stream + 1) // self.stream_count)

    @functools.cached_property
    def _blocks(self) -> tuple[Int64s, Int64s]:
        """The index of each stream's first whole block, shape [V], and the blocks before each stream, [V + 1]."""
        stream = np.arange(self.stream_count)
        first = self._first_window(stream) % self.block
        counts = np.maximum(0, self._start(stream + 1) - self._start(stream) - first) // self.block
        return first, np.concatenate([[0], np.cumsum(counts)])

    def _start(self, stream: Int64s) -> Int64s:
        """Return the place of each stream's first record in the rotated sequence."""
        shorter, longer_streams = divmod(self.count, self.stream_count)
        start: Int64s = stream * shorter + np.minimum(stream, longer_streams)
        return start


def training_order(
    count: int, record_bytes: int, *, seed: int, shuffle: Shuffle, buffer_size: int | None = None, mixed: bool = False
) -> Order:
    """Return the order of `count` records whose mean size is `record_bytes`.

    Full is a permutation of the records. Windowed permutes blocks of 48 KiB, and then `buffer_size` records with one
    another: 256 MiB of them without it. If the records are `mixed` already, it is blocks of 1 MiB, and 64 of them.
    Records longer than a block are blocks of their own, so that both are the same.
    """
    record_bytes = max(1, record_bytes)
    if mixed:
        block = round(_MIXED_BLOCK_BYTES / record_bytes)
        window = STREAMS * max(1, block)
    else:
        block = min(round(_SORTED_BLOCK_BYTES / record_bytes), _MAX_BLOCK)
        window = max(_MIN_WINDOW, _WINDOW_BYTES // record_bytes)
    window = min(buffer_size or min(_MAX_WINDOW, window), max(1, -(-count // STREAMS)) * STREAMS)
    # An eighth of a stream at most: then each stream samples a whole sorted data set.
    block = min(block, window // STREAMS, count // (8 * STREAMS)) if shuffle == "Windowed" else 1
    return Order(count, seed, buffer_size=window, block=max(1, block), shuffle=shuffle != "None")
