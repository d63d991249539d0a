"""Ranges: every wanted record in exactly one, within the limits, in the order of need."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mptraining_records.index import shard_index
from mptraining_records.index.read_plan import Limits, range_reads
from mptraining_storage.preconditions import StoredObject

LIMITS = Limits(gap=30, length=100)


SIZES = st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=40), min_size=1, max_size=3)


@given(SIZES, st.lists(st.integers(0, 119), max_size=60))
def test_every_record_is_in_one_range_and_every_range_within_limits(sizes: list[list[int]], wanted: list[int]) -> None:
    shards = tuple(
        shard_index.from_lengths(StoredObject(str(number), 0, ""), np.array(lengths, np.int64), 0)
        for number, lengths in enumerate(sizes)
    )
    every = [(number, row) for number, lengths in enumerate(sizes) for row in range(len(lengths))]
    records = [every[number % len(every)] for number in wanted]
    of = np.array([shard for shard, _ in records], np.int64)
    rows = np.array([row for _, row in records], np.int64)
    reads = range_reads(shards, of, rows, np.arange(len(records)), LIMITS)
    assert sorted(place for read in reads for place in read.places.tolist()) == list(range(len(records)))
    for read in reads:
        assert {records[place] for place in read.places.tolist()} == {(read.shard, row) for row in read.rows.tolist()}
        begins = shards[read.shard].offsets[read.rows]
        ends = begins + shards[read.shard].lengths[read.rows] + 4
        assert begins[0] == read.start
        assert ends[-1] == read.start + read.length
        assert read.length <= 1.5 * LIMITS.length or len(set(read.rows.tolist())) == 1
        assert (begins[1:] - ends[:-1] <= LIMITS.gap).all()
    needed = [int(read.places.min()) for read in reads]
    assert needed == sorted(needed)
