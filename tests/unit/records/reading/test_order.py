from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mptraining_records.reading.order import Order, Together, key, splitmix64, training_order


@dataclass(frozen=True)
class Mixing:
    """`near` and `far` are the correlations 1 and 64 batches apart, or half of the epoch if that is less."""

    classes: float
    near: float
    far: float


def _mixing(records: NDArray[np.int64], classes: int, batch: int) -> Mixing:
    """Return the mixing of an epoch's record numbers, where the numbers are sorted by `classes` of equal size."""
    of = records * classes // len(records)
    batches = len(records) // batch
    cells = np.repeat(np.arange(batches), batch) * classes + of[: batches * batch]
    counts = np.bincount(cells, minlength=batches * classes).reshape(batches, classes).astype(float)
    differences = counts - counts.mean(axis=1, keepdims=True)
    differences /= np.linalg.norm(differences, axis=1, keepdims=True)
    near, far = (
        float((differences[:-lag] * differences[lag:]).sum(axis=1).mean()) for lag in (1, min(64, batches // 2))
    )
    return Mixing(float((counts > 0).sum(axis=1).mean()), near, far)


orders = st.builds(
    Order,
    count=st.integers(1, 700),
    seed=st.integers(-(2**63), 2**64),
    buffer_size=st.integers(1, 900),
    streams=st.integers(1, 80),
    block_size=st.integers(1, 200),
)
epochs = st.integers(0, 5)


def _all(order: Order, epoch: int) -> list[int]:
    return order.records(epoch, np.arange(order.count)).tolist()


@given(orders, epochs)
def test_an_epoch_holds_every_record_exactly_once(order: Order, epoch: int) -> None:
    assert sorted(_all(order, epoch)) == list(range(order.count))


@given(orders, epochs, st.data())
def test_any_positions_can_be_asked_for_in_any_order(order: Order, epoch: int, data: st.DataObject) -> None:
    whole = np.array(_all(order, epoch))
    positions = data.draw(st.lists(st.integers(0, order.count - 1), max_size=50))
    asked = order.records(epoch, np.array(positions, np.int64))
    assert asked.tolist() == whole[np.array(positions, np.int64)].tolist()


@given(orders, epochs, st.integers(1, 12), st.integers(1, 64))
def test_the_order_is_the_same_for_any_number_of_workers(order: Order, epoch: int, workers: int, batch: int) -> None:
    together: dict[int, int] = {}
    for start in range(0, order.count, batch):
        for worker in range(workers):
            end = min(start + batch, order.count)
            positions = np.arange(start + (worker - start) % workers, end, workers)
            records = order.records(epoch, positions)
            together |= dict(zip(positions.tolist(), records.tolist(), strict=True))
    assert [together[position] for position in range(order.count)] == _all(order, epoch)


@given(orders, epochs)
def test_each_row_of_a_stream_draws_from_the_last_segments(order: Order, epoch: int) -> None:
    whole = _all(order, epoch)
    streams = [whole[number :: order.stream_count] for number in range(order.stream_count)]
    # A window of one record does not change the streams.
    unshuffled = _all(Order(order.count, order.seed, 1, order.streams, order.block_size), epoch)
    cut = [unshuffled[number :: order.stream_count] for number in range(order.stream_count)]
    for stream, before in zip(streams, cut, strict=True):
        place = {record: number for number, record in enumerate(before)}
        moved = [abs(place[record] - number) for number, record in enumerate(stream)]
        assert max(moved, default=0) < order.segment * order.parts
    # One after the other, the streams are the permuted blocks.
    sequence = np.concatenate([np.array(stream) for stream in cut])
    starts = np.flatnonzero(np.diff(sequence, prepend=-9) != 1)
    assert (sequence[starts] % order.block_size == 0).all()


@given(
    st.builds(
        Order,
        count=st.integers(100, 700),
        seed=st.integers(0, 9),
        buffer_size=st.integers(250, 900),
        streams=st.integers(1, 4),
        block_size=st.integers(2, 25),
    ),
    epochs,
)
def test_the_records_of_a_block_are_within_the_rows_that_are_read_together(order: Order, epoch: int) -> None:
    together = order.together
    assert together is not None
    whole = np.array(_all(order, epoch))
    position = np.empty_like(whole)
    position[whole] = np.arange(order.count)
    rows = position // together.row_size
    # A block in two streams is the only exception: each stream has its own records of it.
    stream = position % order.stream_count
    for block in range(-(-order.count // together.block_size)):
        members = slice(block * together.block_size, (block + 1) * together.block_size)
        for number in np.unique(stream[members]):
            of_stream = rows[members][stream[members] == number]
            assert of_stream.max() - of_stream.min() < together.rows


def test_seeds_and_epochs_give_different_orders() -> None:
    seen = [tuple(_all(Order(500, seed), epoch)) for seed in range(4) for epoch in range(4)]
    assert len(set(seen)) == len(seen)


def test_it_never_changes_so_that_a_job_can_be_resumed_by_a_later_version() -> None:
    order = Order(20, seed=7, buffer_size=8, streams=4, block_size=3)
    assert _all(order, 0) == [19, 1, 3, 11, 18, 0, 14, 10, 7, 2, 5, 16, 6, 12, 4, 15, 8, 13, 9, 17]
    assert _all(order, 1) == [6, 9, 3, 17, 7, 10, 2, 16, 18, 11, 5, 13, 8, 0, 4, 12, 19, 1, 15, 14]
    assert _all(Order(10, seed=7), 0) == [6, 2, 9, 8, 0, 4, 1, 7, 3, 5]


def _mixed(order: Order) -> Mixing:
    # In pieces, as a reader asks for them: the time for each grows with the rows that it spans.
    pieces = np.split(np.arange(order.count), range(1 << 15, order.count, 1 << 15))
    return _mixing(np.concatenate([order.records(0, piece) for piece in pieces]), classes=1000, batch=256)


# 1.28 M records are what ImageNet has; a true shuffle has 226 classes in a batch of 256, and no correlation.
@pytest.mark.parametrize("record_bytes", [200, 16_000, 110_000])
def test_records_that_are_sorted_by_class_are_mixed_as_by_a_true_shuffle(record_bytes: int) -> None:
    order = training_order(1_280_000, record_bytes, seed=3, shuffle="Windowed")
    found = _mixed(order)
    assert found.classes > 220
    assert found.near < 0.05
    assert found.far < 0.05


def test_full_shuffling_is_a_true_shuffle_of_records_of_any_size() -> None:
    order = training_order(1_280_000, 100, seed=3, shuffle="Full")
    found = _mixed(order)
    assert found.classes == pytest.approx(226, abs=1)
    assert abs(found.near) < 0.005
    assert abs(found.far) < 0.005


def test_a_small_buffer_mixes_less_and_none_not_at_all() -> None:
    windowed = training_order(1_280_000, 4_000, seed=3, shuffle="Windowed", buffer_size=10_000)
    assert windowed.block_size == 12
    found = _mixed(windowed)
    assert 190 < found.classes < 220
    assert found.near > 0.1
    assert _all(training_order(1000, 4_000, seed=3, shuffle="None"), 1) == list(range(1000))


def test_a_window_is_bounded_in_bytes_and_in_records() -> None:
    large = training_order(10**6, 110_000, seed=0, shuffle="Windowed")
    assert (large.block_size, large.window_size, large.together) == (1, 9_984, None)
    medium = training_order(10**6, 4_096, seed=0, shuffle="Windowed")
    assert (medium.block_size, medium.parts, medium.window_size) == (12, 12, 64_512)
    assert medium.together == Together(row_size=5_376, block_size=12, rows=14)
    tiny = training_order(10**8, 20, seed=0, shuffle="Windowed")
    assert (tiny.block_size, tiny.buffer_size) == (192, 1 << 20)


def test_small_data_sets_are_shuffled_record_by_record() -> None:
    order = training_order(500, 100, seed=0, shuffle="Windowed")
    assert order.block_size == 1
    # All of them are in one row, so that they are read in long ranges.
    assert order.together == Together(row_size=500)


def test_a_window_is_what_the_buffer_holds() -> None:
    assert Order(100_000, seed=0, buffer_size=10_000).window_size == 64 * 156
    assert Order(100_000, seed=0, buffer_size=10_000, block_size=10).window_size == 64 * 20 * 10
    assert Order(3, seed=0, buffer_size=1).window_size == 3


def test_without_shuffling_it_is_the_order_of_the_index_and_empty_for_no_records() -> None:
    assert _all(Order(100, seed=1, shuffle=False), 3) == list(range(100))
    assert _all(Order(0, seed=0), 0) == []


@pytest.mark.parametrize("wrong", [{"count": -1}, {"buffer_size": 0}, {"streams": 0}, {"block_size": 0}])
def test_sizes_below_one_and_positions_outside_the_epoch_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        Order(**{"count": 10, "seed": 0} | wrong)
    for position in (-1, 10):
        with pytest.raises(IndexError):
            Order(10, seed=0).records(0, np.array([position]))


def test_numbers_are_those_of_splitmix64() -> None:
    # The first outputs of Vigna's splitmix64.c for the seed 1234567.
    drawn = splitmix64(np.array([1234567], np.uint64), np.arange(5, dtype=np.uint64))
    assert drawn.tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_keys_depend_on_every_number_and_their_order() -> None:
    keys = [key(1, 2), key(2, 1), key(1), key(1, 2, 0), key(-1), key(2**64 + 5)]
    assert len({int(each[0]) for each in keys}) == len(keys)
    assert key(-1) == key(2**64 - 1)


@given(st.lists(st.integers(-(2**65), 2**65), max_size=4))
def test_a_key_is_what_is_hashed_one_number_after_the_other(numbers: list[int]) -> None:
    expected = np.zeros(1, np.uint64)
    for number in numbers:
        expected = splitmix64(expected, np.array([number % 2**64], np.uint64))
    assert key(*numbers).tolist() == expected.tolist()
