"""The worker threads: they survive errors, and end with the leader's term."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mptraining_operator.leader_election import NotLeading, Term
from mptraining_operator.plan.actions import Plan
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache, VersionedSnapshot
from mptraining_operator.watch.work_queue import WorkQueue
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job
from tests.unit.operator.controller.reconciled_job import KEY, Applied, reconciler


def test_workers_survive_and_stop() -> None:
    done = threading.Event()
    working: list[Key] = []

    class Failing(Applied):
        def apply(self, plan: Plan, seen: VersionedSnapshot) -> bool:
            super().apply(plan, seen)
            longest = workers.longest_work()
            assert longest is not None
            assert longest[1] >= 0
            working.append(seen.snapshot.key)
            if len(self.plans) == 3:
                done.set()
            raise ValueError("no")

    queue, cache = WorkQueue(time.monotonic), Cache(time.monotonic)
    workers = reconciler(queue, cache, Failing())
    assert workers.start(2, Term(1, lambda: False))
    for name in ("a", "b", "c"):
        cache.put_job(parse.job(raw_job(name, uid=name)))
        queue.add(Key("team", name))
    assert done.wait(60)
    assert {key.name for key in working} == {"a", "b", "c"}
    assert workers.ended_workers() == 0
    queue.stop()
    assert workers.join(60)
    assert workers.ended_workers() == 2
    assert workers.longest_work() is None


class Leader:
    """Workers over a queue, whose plans are applied by a method of the test."""

    def __init__(self, raw: dict[str, Any], apply: Callable[[], None]) -> None:
        self.queue, cache = WorkQueue(time.monotonic), Cache(time.monotonic)
        cache.put_job(parse.job(raw))
        self.queue.add(KEY)

        class Applying(Applied):
            def apply(self, plan: Plan, seen: VersionedSnapshot) -> bool:
                apply()
                return False

        self.reconciler = reconciler(self.queue, cache, Applying())


def test_at_the_end_of_a_term_the_workers_leave_and_the_queue_stays() -> None:
    first, second = Term(1, lambda: False), Term(2, lambda: False)
    applied = threading.Semaphore(0)

    def apply() -> None:
        applied.release()
        # The Lease is late while the plan is applied: its next write is refused.
        first.ended.set()
        leader.reconciler.check_term()

    leader = Leader(raw_job(), apply)
    with pytest.raises(NotLeading):
        leader.reconciler.check_term()
    assert leader.reconciler.start(2, first)
    assert applied.acquire(timeout=60)
    assert leader.reconciler.join(60)
    assert leader.reconciler.ended_workers() == 0
    # No failure, no backoff: the next term continues with the job.
    assert (leader.queue.depth(), leader.queue.failures(KEY)) == (1, 0)
    assert not leader.reconciler.start(2, first)
    assert leader.reconciler.start(2, second)
    assert applied.acquire(timeout=60)
    second.ended.set()
    assert leader.reconciler.join(60)


def test_a_worker_whose_calls_are_answered_slowly_is_not_stuck(clock: Clock) -> None:
    """As in a long turn of a sweep, each of whose writes takes half a minute when the API server is overloaded."""
    ages: list[float] = []
    term = Term(1, lambda: False)

    def apply() -> None:
        for _ in range(10):
            clock.now += 30
            work = leader.reconciler.longest_work()
            ages.append(work[1] if work else -1)
            leader.reconciler.note_progress()
        term.ended.set()

    leader = Leader(raw_job(), apply)
    leader.reconciler._stopwatch = clock
    assert leader.reconciler.start(1, term)
    leader.reconciler._threads[0].join(60)
    assert ages == [30] * 10
    assert leader.reconciler.longest_work() is None


def test_a_worker_that_is_blocked_in_a_call_sends_nothing_in_a_later_term_and_delays_it() -> None:
    first, second = Term(1, lambda: False), Term(2, lambda: False)
    entered, answered = threading.Event(), threading.Event()
    sent: list[int] = []

    def apply() -> None:
        leader.reconciler.check_term()
        sent.append(1)
        entered.set()
        assert answered.wait(60)
        leader.reconciler.check_term()
        sent.append(2)

    leader = Leader(raw_job(), apply)
    assert leader.reconciler.start(1, first)
    assert entered.wait(60)
    first.ended.set()
    assert not leader.reconciler.join(0.01)
    # Never the workers of two terms at once.
    assert not leader.reconciler.start(1, second)
    answered.set()
    assert leader.reconciler.join(60)
    assert sent == [1]
    assert leader.reconciler.start(0, second)
    leader.reconciler.check_term()
