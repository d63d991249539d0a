"""Each job once, at its time, and never in two threads."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import LONGEST_RETRY, WorkQueue
from tests.fakes import Clock

A, B, C = (Key("team", name) for name in "abc")


def test_a_delay_is_kept_and_the_sooner_time_wins(clock: Clock) -> None:
    queue = WorkQueue(clock)
    queue.add(A, 10)
    queue.add(A, 5)
    queue.add(A, 7)
    clock.now += 4.9
    assert queue.take(0) is None
    clock.now += 0.1
    assert queue.take(0) == A
    queue.done(A)
    clock.now += 100
    assert queue.take(0) is None


def test_a_key_added_during_its_work_is_due_again(clock: Clock) -> None:
    queue = WorkQueue(clock)
    queue.add(A)
    assert queue.take(0) == A
    queue.add(A)
    queue.add(A, 3)
    assert queue.take(0) is None
    queue.done(A)
    assert queue.take(0) == A
    queue.done(A)
    assert queue.take(0) is None


def test_keys_are_taken_in_the_order_of_their_times(clock: Clock) -> None:
    queue = WorkQueue(clock)
    queue.add(A, 2)
    queue.add(B, 1)
    queue.add(C)
    clock.now += 2
    assert [queue.take(0), queue.take(0), queue.take(0)] == [C, B, A]


def test_failures_wait_longer_each_time(clock: Clock) -> None:
    queue = WorkQueue(clock)
    assert [queue.retry(A) for _ in range(9)] == [0.25, 0.5, 1, 2, 4, 8, 16, 32, LONGEST_RETRY]
    assert queue.failures(A) == 9
    assert queue.retry(B, 20) == 20
    queue.forget(A)
    assert queue.retry(A) == 0.25


@pytest.mark.parametrize("wakes", ["a new key", "the stop"])
def test_what_wakes_a_waiting_worker(wakes: str) -> None:
    queue = WorkQueue(time.monotonic)
    found: list[Key | None] = []
    thread = threading.Thread(target=lambda: found.append(queue.take(60)))
    thread.start()
    if wakes == "a new key":
        queue.add(A, 0.02)
    else:
        queue.stop()
    thread.join(60)
    assert found == [A if wakes == "a new key" else None]
    queue.stop()
    queue.add(B)
    assert queue.take(0) is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from((A, B, C)), st.sampled_from((0.0, 0.2, 5.0))),
        st.tuples(st.just("take"), st.none(), st.none()),
        st.tuples(st.just("done"), st.integers(0, 2), st.none()),
        st.tuples(st.just("retry"), st.integers(0, 2), st.none()),
        st.tuples(st.just("wait"), st.none(), st.sampled_from((0.1, 1.0, 10.0))),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_key_is_ever_in_two_threads_and_none_is_lost(steps: list[tuple[str, object, object]]) -> None:
    now = [0.0]
    queue = WorkQueue(lambda: now[0])
    held: list[Key] = []
    owed: set[Key] = set()
    for step, what, number in steps:
        if step == "add":
            assert isinstance(what, Key)
            assert isinstance(number, float)
            queue.add(what, number)
            owed.add(what)
        elif step == "take":
            key = queue.take(0)
            if key is not None:
                assert key not in held
                held.append(key)
                owed.discard(key)
        elif step in ("done", "retry") and held:
            assert isinstance(what, int)
            key = held.pop(what % len(held))
            if step == "retry":
                queue.retry(key)
                owed.add(key)
            queue.done(key)
        elif step == "wait":
            assert isinstance(number, float)
            now[0] += number
    for key in held:
        queue.done(key)
    now[0] += LONGEST_RETRY
    left = set()
    while (key := queue.take(0)) is not None:
        assert key not in left
        left.add(key)
    assert left == owed


def test_ages(clock: Clock) -> None:
    queue = WorkQueue(clock)
    assert queue.oldest_age() == 0
    queue.add(A, 2)
    clock.now += 1
    assert (queue.oldest_age(), queue.depth()) == (0, 0)
    clock.now += 4
    assert (queue.oldest_age(), queue.depth()) == (3, 1)
