"""Byte ranges that cover a set of records, computed from the index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mptraining_records.index.shard_index import Int64s, ShardIndex
from mptraining_records.tfrecord.framing import FOOTER


@dataclass(frozen=True)
class Limits:
    """Limits in bytes: a range has no gap longer than `gap` between two records, and a length of about `length`."""

    gap: int
    length: int


@dataclass(frozen=True, eq=False)
class RangeRead:
    """`length` bytes from byte `start` of shard number `shard`, which contain the records `rows`.

    `places` are the records' positions in the request; rows may repeat. Both have shape [records], rows ascending.
    """

    shard: int
    start: int
    length: int
    rows: Int64s
    places: Int64s


def range_reads(
    shards: tuple[ShardIndex, ...], shard_numbers: Int64s, rows: Int64s, places: Int64s, limits: Limits
) -> list[RangeRead]:
    """Return ranges that cover record `rows[i]` of shard `shard_numbers[i]`, requested at `places[i]`.

    All three have shape [n]. Each record is in one range. The ranges are in the order of their first use.
    """
    if not len(rows):
        return []
    order = np.lexsort((rows, shard_numbers))
    shard_numbers, rows, places = shard_numbers[order], rows[order], places[order]
    reads = []
    for first, last in _runs(shard_numbers):
        shard = shards[shard_numbers[first]]
        begins = shard.offsets[rows[first:last]]
        ends = begins + shard.lengths[rows[first:last]] + FOOTER
        for begin, end in _ranges(begins, ends, limits):
            reads.append(
                RangeRead(
                    shard=int(shard_numbers[first]),
                    start=int(begins[begin]),
                    length=int(ends[end - 1] - begins[begin]),
                    rows=rows[first + begin : first + end],
                    places=places[first + begin : first + end],
                )
            )
    reads.sort(key=lambda read: int(read.places.min()))
    return reads


def _runs(numbers: Int64s) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each run of equal numbers."""
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    yield from itertools.pairwise(cuts)


def _ranges(begins: Int64s, ends: Int64s, limits: Limits) -> Iterator[tuple[int, int]]:
    gaps = np.flatnonzero(begins[1:] - ends[:-1] > limits.gap) + 1
    cuts = [0, *gaps.tolist(), len(begins)]
    for first, last in itertools.pairwise(cuts):
        # Parts of equal length avoid a short last one, which would cost a request for few bytes.
        whole = int(ends[last - 1] - begins[first])
        size = -(-whole // max(1, round(whole / limits.length)))
        at = first
        while at < last:
            end = max(at + 1, first + int(np.searchsorted(ends[first:last], begins[at] + size, side="right")))
            yield at, end
            at = end
