from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mptraining_records.reading.order import Order, key, permuted, splitmix64, training_order


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


ints = st.integers
SEEDS = ints(-(2**63), 2**64)
orders = st.builds(
    Order,
    count=ints(1, 700),
    seed=SEEDS,
    buffer_size=ints(1, 900),
    streams=ints(1, 80),
    block=ints(1, 200),
    shuffle=st.sampled_from([True, True, False]),
)
epochs = ints(0, 5)


def _all(order: Order, epoch: int) -> list[int]:
    return order.records(epoch, np.arange(order.count)).tolist()


@given(orders, epochs)
def test_an_epoch_holds_every_record_exactly_once(order: Order, epoch: int) -> None:
    assert sorted(_all(order, epoch)) == list(range(order.count))


@given(orders, epochs, st.data())
def test_any_positions_can_be_asked_for_in_any_order(order: Order, epoch: int, data: st.DataObject) -> None:
    whole = np.array(_all(order, epoch))
    positions = data.draw(st.lists(ints(0, order.count - 1), max_size=50))
    asked = order.records(epoch, np.array(positions, np.int64))
    assert asked.tolist() == whole[np.array(positions, np.int64)].tolist()


@given(orders, epochs, ints(1, 12), ints(1, 64))
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
def test_a_window_shuffles_consecutive_records_of_the_permuted_blocks(order: Order, epoch: int) -> None:
    whole = np.array(_all(order, epoch))
    streams = [np.empty(0, np.int64)] * order.stream_count
    for positions in order.windows(0, order.count):
        [stream] = np.unique(positions % order.stream_count)
        assert len(positions) <= order.window
        streams[stream] = np.concatenate([streams[stream], np.sort(whole[positions])])
    # Sorted by window, the streams are blocks one after the other, each cut by at most the ends of windows.
    sequence = np.concatenate(streams)
    blocks = -(-order.count // order.block)
    cuts = int((np.diff(sequence) != 1).sum()) + 1
    assert cuts <= 2 * blocks + 2 * sum(1 for _ in order.windows(0, order.count))


@given(orders, ints(0, 699), ints(0, 700))
def test_windows_hold_each_position_once_by_their_first_one(order: Order, first: int, last: int) -> None:
    first, last = min(first, order.count), min(last, order.count)
    windows = list(order.windows(first, last))
    assert sorted(position for window in windows for position in window.tolist()) == list(range(first, last))
    begins = [window[0] for window in windows]
    assert begins == sorted(begins)
    # Those of a whole epoch, cut.
    whole = [window[(window >= first) & (window < last)].tolist() for window in order.windows(0, order.count)]
    assert sorted(window.tolist() for window in windows) == sorted(window for window in whole if window)


@pytest.mark.parametrize(("count", "record_bytes", "mixed"), [(76_800, 100_000, True), (1_280_000, 4_000, False)])
def test_half_of_the_records_of_the_windows_are_in_memory(count: int, record_bytes: int, mixed: bool) -> None:
    order = training_order(count, record_bytes, seed=0, shuffle="Windowed", mixed=mixed)
    begun = np.zeros(count + 1, np.int64)
    for positions in order.windows(0, count):
        begun[positions[0]] += len(positions)
    held = (np.cumsum(begun[:-1]) - np.arange(count))[2 * order.buffer_size : -2 * order.buffer_size]
    assert held.min() > 0.35 * order.buffer_size
    assert held.max() < 0.6 * order.buffer_size


@given(ints(1, 2000), SEEDS)
def test_a_permutation_is_one_for_every_size(size: int, seed: int) -> None:
    assert sorted(permuted(np.arange(size), np.array([size]), key(seed)).tolist()) == list(range(size))


def test_a_permutation_sends_each_index_to_each_place_equally_often() -> None:
    size, seeds = 6, 6000
    counts = np.zeros((size, size))
    for seed in range(seeds):
        counts[np.arange(size), permuted(np.arange(size), np.array([size]), key(seed))] += 1
    # Chi-square of 25 degrees of freedom: above 60 in 1 of 10,000 cases.
    assert ((counts - seeds / size) ** 2 / (seeds / size)).sum() < 60


def test_seeds_and_epochs_give_different_orders() -> None:
    seen = [tuple(_all(Order(500, seed), epoch)) for seed in range(4) for epoch in range(4)]
    assert len(set(seen)) == len(seen)


def test_it_never_changes_so_that_a_job_can_be_resumed_by_a_later_version() -> None:
    order = Order(20, seed=7, buffer_size=8, streams=4, block=3)
    assert _all(order, 0) == [0, 5, 10, 15, 18, 2, 11, 16, 17, 1, 12, 6, 4, 9, 13, 7, 19, 3, 14, 8]
    assert _all(order, 1) == [16, 1, 6, 11, 17, 3, 7, 12, 18, 2, 8, 14, 0, 4, 9, 13, 19, 5, 10, 15]
    assert _all(Order(10, seed=7), 0) == [4, 1, 9, 8, 6, 0, 3, 5, 2, 7]


def _mixed(order: Order) -> Mixing:
    return _mixing(order.records(0, np.arange(order.count)), classes=1000, batch=256)


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
    assert windowed.block == 12
    found = _mixed(windowed)
    assert 190 < found.classes < 220
    assert found.near > 0.1
    assert _all(training_order(1000, 4_000, seed=3, shuffle="None"), 1) == list(range(1000))


@pytest.mark.parametrize(
    ("count", "record_bytes", "mixed", "block", "buffer_size"),
    [
        (10**6, 110_000, False, 1, 10_000),
        (10**6, 4_096, False, 12, 65_536),
        (10**8, 20, False, 192, 1 << 20),
        # Blocks of 1 MiB, and one of them in a window of each stream.
        (10**6, 110_000, True, 10, 640),
        (10**6, 4_096, True, 256, 16_384),
        (10**6, 10_000_000, True, 1, 64),
        (10**8, 20, True, 16_384, 1 << 20),
        # A block is never longer than an eighth of a stream.
        (500, 100, False, 1, 512),
        (6_400, 100, True, 12, 6_400),
    ],
)
def test_blocks_and_windows_are_bounded_in_bytes_and_in_records(
    count: int, record_bytes: int, mixed: bool, block: int, buffer_size: int
) -> None:
    order = training_order(count, record_bytes, seed=0, shuffle="Windowed", mixed=mixed)
    assert (order.block, order.buffer_size) == (block, buffer_size)


@pytest.mark.parametrize(("count", "positions"), [(10**9, 256), (10**9, 1)])
def test_the_time_for_a_position_does_not_depend_on_the_number_of_records(count: int, positions: int) -> None:
    order = training_order(count, 1000, seed=0, shuffle="Windowed")
    asked = np.arange(count // 2, count // 2 + positions)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        order.records(3, asked)
        next(order.windows(count // 2, count))
        seconds.append(time.perf_counter() - began)
    # A sort or a table of all of them takes minutes.
    assert min(seconds) < 0.1


def test_without_shuffling_it_is_the_order_of_the_index_and_empty_for_no_records() -> None:
    assert _all(Order(100, seed=1, shuffle=False), 3) == list(range(100))
    assert _all(Order(0, seed=0), 0) == []


@pytest.mark.parametrize("wrong", [{"count": -1}, {"buffer_size": 0}, {"streams": 0}, {"block": 0}])
def test_sizes_below_one_and_positions_outside_the_epoch_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        Order(**{"count": 10, "seed": 0} | wrong)
    for position in (-1, 10):
        with pytest.raises(IndexError):
            Order(10, seed=0).records(0, np.array([position]))


def test_numbers_are_those_of_splitmix64() -> None:
    # The first outputs of Vigna's splitmix64.c for the seed 1234567.
    drawn = splitmix64(np.array([1234567], np.uint64), np.arange(4, dtype=np.uint64))
    assert drawn.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]


@given(st.lists(ints(-(2**65), 2**65), max_size=4))
def test_a_key_is_what_is_hashed_one_number_after_the_other(numbers: list[int]) -> None:
    expected = np.zeros(1, np.uint64)
    for number in numbers:
        expected = splitmix64(expected, np.array([number % 2**64], np.uint64))
    assert key(*numbers).tolist() == expected.tolist()
