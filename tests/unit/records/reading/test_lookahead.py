"""Each block is chosen once, with all its records that the next rows need, and no records of another epoch."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mptraining_records.reading.lookahead import NO_RANGE, Chosen, Lookahead
from mptraining_records.reading.order import Order, Together


def _chosen(ahead: Lookahead) -> list[Chosen]:
    return list(iter(ahead.choose, None))


@given(count=st.integers(100, 2000), block_size=st.integers(2, 20), workers=st.sampled_from([1, 2, 3]))
def test_a_block_is_chosen_once_in_an_epoch(count: int, block_size: int, workers: int) -> None:
    order = Order(count, seed=3, buffer_size=600, streams=2, block_size=block_size)
    together = order.together
    assert together is not None
    empty = np.empty(0, np.int64)
    epochs = [
        [
            order.records(epoch, np.arange(first, min(count, first + together.row_size), workers))
            for first in range(0, count, together.row_size)
        ]
        for epoch in range(2)
    ]
    chosen = _chosen(Lookahead(iter([*epochs[0], empty, *epochs[1]]), together, count))
    places = np.concatenate([one.places for one in chosen])
    assert sorted(places.tolist()) == list(range(sum(map(len, itertools.chain(*epochs)))))
    # A block that two streams share is in two choices at most, in each epoch.
    blocks = [block for one in chosen for block in np.unique(one.numbers // block_size).tolist()]
    shared = 2 * (order.stream_count - 1)
    assert len(blocks) <= 2 * -(-count // block_size) + shared


def test_a_unit_without_records_has_no_ranges() -> None:
    ahead = Lookahead(iter([np.array([-1, -1]), np.array([4, -1])]), Together(2, block_size=2, rows=2), 10)
    first, second = _chosen(ahead)
    assert (first.numbers.tolist(), first.unit.tolist()) == ([], [-1, -1])
    assert (second.numbers.tolist(), second.places.tolist()) == ([4], [2])
    ahead.set_ranges(second.places, np.array([0]))
    assert ahead.ranges(0, 4) == [NO_RANGE, NO_RANGE, 0, NO_RANGE]
    assert ahead.numbers(2, 4) == [4, -1]


def test_records_before_a_place_are_dropped() -> None:
    ahead = Lookahead(iter([np.arange(4), np.arange(4, 8)]), None, 8)
    _chosen(ahead)
    ahead.set_ranges(np.arange(8), np.arange(8))
    ahead.drop(5)
    assert ahead.ranges(5, 8) == [5, 6, 7]
    assert ahead.numbers(6, 8) == [6, 7]
