"""Which byte ranges bring a set of records: pure arithmetic over the index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mptraining_records.index.shard_index import Int64s, ShardIndex
from mptraining_records.tfrecord.framing import FOOTER


@dataclass(frozen=True)
class Limits:
    """Ranges are cut before a gap of more than `gap` bytes between two records, and at about `range` bytes."""

    gap: int
    range: int


@dataclass(frozen=True, eq=False)
class RangeRead:
    """`length` bytes from byte `start` of shard number `shard`, in which the records `rows` lie.

    `places` says where each of them was asked for; rows may repeat. Both have shape [records], rows ascending.
    """

    shard: int
    start: int
    length: int
    rows: Int64s
    places: Int64s


def range_reads(
    shards: tuple[ShardIndex, ...], of: Int64s, rows: Int64s, places: Int64s, limits: Limits
) -> list[RangeRead]:
    """The ranges for record `rows[i]` of shard `of[i]`, wanted at `places[i]`, each record in exactly one of them.

    All three have shape [n]. The ranges come in the order in which they are needed first.
    """
    if not len(rows):
        return []
    order = np.lexsort((rows, of))
    of, rows, places = of[order], rows[order], places[order]
    reads = []
    for first, last in _runs(of):
        shard = shards[of[first]]
        begins = shard.offsets[rows[first:last]]
        ends = begins + shard.lengths[rows[first:last]] + FOOTER
        for begin, end in _ranges(begins, ends, limits):
            reads.append(
                RangeRead(
                    shard=int(of[first]),
                    start=int(begins[begin]),
                    length=int(ends[end - 1] - begins[begin]),
                    rows=rows[first + begin : first + end],
                    places=places[first + begin : first + end],
                )
            )
    reads.sort(key=lambda each: int(each.places.min()))
    return reads


def cut_by_bytes(sizes: Int64s, most: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of consecutive pieces of at most `most` bytes, or of one record that is longer than that."""
    ends = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield begin, end
        begin = end


def _runs(of: Int64s) -> Iterator[tuple[int, int]]:
    """(first, last) of each stretch of equal numbers."""
    cuts = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist(), len(of)]
    yield from itertools.pairwise(cuts)


def _ranges(begins: Int64s, ends: Int64s, limits: Limits) -> Iterator[tuple[int, int]]:
    gaps = np.flatnonzero(begins[1:] - ends[:-1] > limits.gap) + 1
    cuts = [0, *gaps.tolist(), len(begins)]
    for first, last in itertools.pairwise(cuts):
        # Equal parts: a short last one would cost a request for little.
        whole = int(ends[last - 1] - begins[first])
        size = -(-whole // -(-whole // limits.range)) if whole else 1
        at = first
        while at < last:
            end = max(at + 1, first + int(np.searchsorted(ends[first:last], begins[at] + size, side="right")))
            # A record that would overlap the limit by a little goes along rather than alone.
            yield at, end
            at = end
