"""The records of each step: for any number of records, batch size and workers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mptraining_records.reading.order import Order, Position
from mptraining_trainer.data.batching import Batching, Piece, Share, pieces, training_spans, validation_spans, windows

Remainder = Literal["Drop", "PadAndMask"]

counts = st.integers(1, 300)
workers = st.sampled_from([1, 2, 3, 4, 8])
# Examples per worker and step, so that the workers share a step evenly, as `resolve` makes sure.
shares = st.integers(1, 24)
START = Position(seed=3, epoch=0, examples=0, fingerprint="")


def order(count: int) -> Order:
    return Order(count=count, seed=3, buffer_size=32, streams=8)


def steps_of(batching: Batching, position: Position, steps: int, workers: int) -> list[tuple[int, list[int]]]:
    """Return (epoch, records in the order of their positions) of the next `steps` steps, merged from all workers."""
    size = batching.examples_per_step // workers
    together = []
    for worker in range(workers):
        of_worker = training_pieces(order(batching.count), batching, position, Share(worker, workers))
        together.append(list(itertools.islice(_steps(of_worker, size), steps)))
    return [
        (of_workers[0][0], np.stack([records for _, records in of_workers], axis=1).ravel().tolist())
        for of_workers in zip(*together, strict=True)
    ]


def training_pieces(order: Order, batching: Batching, position: Position, share: Share) -> Iterator[Piece]:
    return pieces(order, training_spans(batching, position), share, batching.examples_per_step)


def _steps(parts: Iterator[Piece], size: int) -> Iterator[tuple[int, np.ndarray]]:
    for piece in parts:
        for row in piece.records.reshape(-1, size):
            yield piece.epoch, row


@settings(deadline=None)
@given(counts, shares, workers)
def test_a_padded_pass_has_every_record_exactly_once(count: int, share: int, workers: int) -> None:
    batching = Batching(count, share * workers, "PadAndMask")
    seen = steps_of(batching, START, batching.steps_per_pass * 2, workers)
    for epoch in (0, 1):
        records = [number for of, step in seen if of == epoch for number in step]
        assert sorted(number for number in records if number >= 0) == list(range(count))
        assert len(records) - count == -count % batching.examples_per_step, "holes fill the last step alone"


@settings(deadline=None)
@given(counts, shares, workers)
def test_a_pass_that_drops_has_no_hole_and_no_record_twice(count: int, share: int, workers: int) -> None:
    batching = Batching(count, share * workers, "Drop")
    assert batching.steps_per_pass == count // batching.examples_per_step
    seen = steps_of(batching, START, batching.steps_per_pass, workers)
    records = [number for _, step in seen for number in step]
    assert len(set(records)) == len(records) == count - count % batching.examples_per_step
    assert all(0 <= number < count for number in records)


@settings(deadline=None)
@given(counts, st.integers(1, 8), st.sampled_from(["Drop", "PadAndMask"]))
def test_the_order_is_the_same_for_every_number_of_workers(count: int, share: int, remainder: Remainder) -> None:
    batching = Batching(count, share * 8, remainder)
    if batching.steps_per_pass == 0:
        return
    alone = steps_of(batching, START, 12, 1)
    for workers in (2, 4, 8):
        assert steps_of(batching, START, 12, workers) == alone


@settings(deadline=None)
@given(counts, shares, workers, st.sampled_from(["Drop", "PadAndMask"]), st.integers(0, 30))
def test_a_resume_gives_the_same_rest(count: int, share: int, workers: int, remainder: Remainder, done: int) -> None:
    batching = Batching(count, share * workers, remainder)
    if batching.steps_per_pass == 0:
        return
    undisturbed = steps_of(batching, START, done + 5, workers)
    position = batching.advance(START, done)
    assert steps_of(batching, position, 5, workers) == undisturbed[done:]
    assert batching.steps_before(position) == done


@settings(deadline=None)
@given(counts, shares, st.integers(1, 40), st.integers(0, 20))
def test_another_batch_size_resumes_where_the_first_one_was(count: int, before: int, after: int, done: int) -> None:
    first, second = (Batching(count, size, "PadAndMask") for size in (before, after))
    position = first.advance(START, done)
    consumed = [number for _, step in steps_of(first, START, done, 1) for number in step]
    rest = steps_of(second, position, second.steps_from(position.examples), 1)
    of_this_pass = [number for number in consumed[position.epoch * first.steps_per_pass * before :] if number >= 0]
    assert sorted(of_this_pass + [number for _, step in rest for number in step if number >= 0]) == list(range(count))


def test_a_position_that_cannot_fill_a_step_is_followed_by_the_next_pass() -> None:
    batching = Batching(10, 4, "Drop")
    assert batching.advance(START, 2) == Position(3, 0, 8, "")
    assert batching.advance(START, 3) == Position(3, 1, 4, "")
    with pytest.raises(ValueError, match="never fill"):
        Batching(3, 4, "Drop").advance(START, 1)


def test_a_long_pass_comes_in_pieces_of_whole_steps() -> None:
    batching = Batching(400_000, 1000, "Drop")
    parts = training_pieces(Order(count=400_000, seed=3), batching, START, Share(0, 2))
    first = next(parts)
    assert len(first.records) % 500 == 0
    assert len(first.records) < 200_000, "memory is bounded"
    second = next(parts)
    assert second.positions[0] == first.positions[-1] + 2


@settings(deadline=None)
@given(counts, shares, workers, st.integers(0, 300), st.sampled_from(["Drop", "PadAndMask"]), st.integers(1, 5))
def test_the_windows_of_a_share_have_the_records_of_its_pieces(
    count: int, share: int, workers: int, examples: int, remainder: Remainder, steps: int
) -> None:
    batching = Batching(count, share * workers, remainder)
    if batching.steps_per_pass == 0:
        return
    spans = list(training_spans(batching, Position(3, 0, examples % count, ""), steps))
    for worker in range(workers):
        of_pieces = [piece.records for piece in pieces(order(count), spans, Share(worker, workers), share * workers)]
        expected = np.concatenate(of_pieces)
        found = list(windows(order(count), spans, Share(worker, workers)))
        by_place = {
            place: number
            for window in found
            for place, number in zip(window.places.tolist(), window.numbers.tolist(), strict=True)
        }
        assert [by_place[place] for place in range(len(by_place))] == expected[expected >= 0].tolist()
        assert all(window.begin <= window.places.min() for window in found)
        assert [window.begin for window in found] == sorted(window.begin for window in found)


@settings(deadline=None)
@given(counts, shares, workers)
def test_validation_counts_every_record_once_over_all_workers(count: int, share: int, workers: int) -> None:
    steps = -(-count // (share * workers))
    of_workers = []
    for worker in range(workers):
        stored = Order(count, seed=0, shuffle=False)
        spans = validation_spans(count, share * workers)
        rows = itertools.islice(
            _steps(pieces(stored, spans, Share(worker, workers), share * workers), share), steps * 2
        )
        of_workers.append([records for _, records in rows])
    for one_pass in (slice(0, steps), slice(steps, None)):
        records = np.concatenate([np.concatenate(rows[one_pass]) for rows in of_workers])
        assert sorted(number for number in records if number >= 0) == list(range(count))
