"""A controller: what it reconciles, its retries after errors, and its workers, which end with the leader's term."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.status import EventRecord
from mptraining_operator.runtime.controller import Controller, Reconciler
from mptraining_operator.runtime.leader_election import NotLeading, Term
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue
from tests.fakes import Clock

KEY = Key("team", "flowers")


class QuotaError(Exception):
    """A child was refused."""


@dataclass(frozen=True)
class Flower:
    key: Key = KEY
    uid: str = "flower-1"
    paused: bool = False


class Flowers(Reconciler):
    """Reconciles flowers by a function of the test."""

    kind = "flower"
    while_paused = "lets this flower rest"
    expected = (ApiProblem, QuotaError)
    streams = ()

    def __init__(self, clock: Callable[[], float], reconcile: Callable[[Key], None], workers: int = 1) -> None:
        self.queue, self.workers = WorkQueue(clock), workers
        self.cache: dict[Key, Flower] = {KEY: Flower()}
        self.events: list[EventRecord] = []
        self._reconcile = reconcile
        self.known = True
        informer: Any = SimpleNamespace(is_known=lambda streams, namespace: self.known)
        self.metrics = Metrics(monotonic=clock)
        self.controller = Controller(self, informer, self.metrics, clock)

    def objects(self) -> tuple[Flower, ...]:
        return tuple(self.cache.values())

    def stored(self, key: Key) -> Flower | None:
        return self.cache.get(key)

    def reconcile(self, key: Key) -> None:
        self._reconcile(key)

    def record(self, key: Key, record: EventRecord) -> None:
        self.events.append(record)

    def begin_term(self) -> None:
        """Nothing."""

    def check_cluster(self) -> None:
        """Nothing."""

    def next_in(self, clock: Clock) -> float | None:
        """Return the seconds until the next key is due."""
        due = self.queue.next_due()
        return None if due is None else round(due - clock.now, 3)

    def turn(self) -> None:
        """Process the next key, as a worker does."""
        key = self.queue.take(0)
        assert key is not None
        self.controller.process(key)
        self.queue.done(key)


def raising(*errors: Exception) -> Callable[[Key], None]:
    left = list(errors)

    def reconcile(_: Key) -> None:
        if left:
            raise left.pop(0)

    return reconcile


def test_errors_are_retried_with_backoff_and_reported_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    away = ApiProblem(500, "InternalError", "etcd is away")
    flowers = Flowers(clock, raising(*[away] * 7, ApiProblem(429, "TooManyRequests", "slow", 40.0)))
    flowers.controller.queue_all()
    waits = []
    for _ in range(8):
        flowers.turn()
        waits.append(flowers.next_in(clock))
        clock.now += 60
    assert waits == [0.25, 0.5, 1, 2, 4, 8, 16, 40], "the last wait is the API server's"
    assert [event.reason for event in flowers.events] == ["OperatorProblem"]
    assert "etcd is away" in flowers.events[0].message
    assert all(record.__dict__["flower"] == "team/flowers" for record in caplog.records)
    assert not any(record.exc_info for record in caplog.records)
    # After a success the count starts at zero again.
    flowers.turn()
    assert flowers.queue.failures(KEY) == 0


def test_retries_are_counted_by_their_cause_and_bugs_leave_a_traceback(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    flowers = Flowers(clock, raising(ApiProblem(500, "InternalError", "away"), QuotaError("quota"), KeyError("ours")))
    for _ in range(4):
        flowers.controller.process(KEY)
    lines = flowers.metrics.text().decode().splitlines()
    for cause in ("Api", "Refused", "Bug"):
        assert f'mptraining_reconcile_retries_total{{cause="{cause}"}} 1.0' in lines
    assert 'mptraining_reconcile_seconds_count{kind="flower"} 4.0' in lines
    assert [bool(record.exc_info) for record in caplog.records if record.levelno == logging.ERROR] == [True]


def test_objects_of_a_namespace_that_is_not_known_are_left_alone(clock: Clock) -> None:
    reconciled: list[Key] = []
    flowers = Flowers(clock, reconciled.append)
    flowers.known = False
    flowers.controller.process(KEY)
    assert reconciled == []
    flowers.known = True
    flowers.controller.process(KEY)
    assert reconciled == [KEY]


def test_a_paused_object_is_left_alone_and_reported_once(clock: Clock) -> None:
    reconciled: list[Key] = []
    flowers = Flowers(clock, reconciled.append)
    flowers.cache[KEY] = replace(Flower(), paused=True)
    for _ in range(3):
        flowers.controller.process(KEY)
    assert reconciled == []
    assert [event.reason for event in flowers.events] == ["Paused"]
    assert "the operator lets this flower rest" in flowers.events[0].message
    flowers.cache[KEY] = Flower()
    for _ in range(2):
        flowers.controller.process(KEY)
    assert (len(reconciled), [event.reason for event in flowers.events]) == (2, ["Paused", "Unpaused"])
    # One that is gone is reconciled, for what it leaves.
    del flowers.cache[KEY]
    flowers.controller.process(KEY)
    assert len(reconciled) == 3


def test_workers_survive_errors_and_stop() -> None:
    done = threading.Event()
    working: list[Key] = []

    def fail(key: Key) -> None:
        working.append(key)
        if len(working) == 3:
            done.set()
        raise ValueError("no")

    flowers = Flowers(time.monotonic, fail, workers=2)
    assert flowers.controller.start(Term(1, lambda: False))
    for name in "abc":
        flowers.queue.add(Key("team", name))
    assert done.wait(60)
    assert {key.name for key in working} >= {"a", "b", "c"}
    assert flowers.controller.stuck() is None
    flowers.queue.stop()
    assert flowers.controller.join(60)
    assert flowers.controller.stuck() == "2 worker threads have ended"


def test_at_the_end_of_a_term_the_workers_leave_and_the_queue_stays() -> None:
    first, second = Term(1, lambda: False), Term(2, lambda: False)
    reconciled = threading.Semaphore(0)

    def reconcile(_: Key) -> None:
        reconciled.release()
        if not first.over:
            # The Lease is late meanwhile: the next write is refused.
            first.ended.set()
            raise NotLeading("term 1 is over")

    flowers = Flowers(time.monotonic, reconcile, workers=2)
    flowers.controller.queue_all()
    assert flowers.controller.start(first)
    assert reconciled.acquire(timeout=60)
    assert flowers.controller.join(60)
    assert flowers.controller.stuck() is None
    # No failure, no backoff: the next term continues with the object.
    assert (flowers.queue.depth(), flowers.queue.failures(KEY)) == (1, 0)
    assert not flowers.controller.start(first)
    assert flowers.controller.start(second)
    assert reconciled.acquire(timeout=60)
    second.ended.set()
    assert flowers.controller.join(60)


def test_the_workers_of_two_terms_never_run_at_once() -> None:
    first, second = Term(1, lambda: False), Term(2, lambda: False)
    entered, answered = threading.Event(), threading.Event()

    def reconcile(_: Key) -> None:
        entered.set()
        assert answered.wait(60)

    flowers = Flowers(time.monotonic, reconcile)
    flowers.controller.queue_all()
    assert flowers.controller.start(first)
    assert entered.wait(60)
    first.ended.set()
    assert not flowers.controller.join(0.01)
    assert not flowers.controller.start(second)
    answered.set()
    assert flowers.controller.join(60)
    assert flowers.controller.start(second)
    second.ended.set()
    assert flowers.controller.join(60)


@pytest.mark.parametrize("answered", [True, False])
def test_a_worker_is_stuck_only_if_no_call_of_it_is_answered(clock: Clock, answered: bool) -> None:
    """A long turn of a sweep, each of whose writes takes half a minute when the API server is overloaded, is none."""
    causes: list[str | None] = []
    term = Term(1, lambda: False)

    def reconcile(_: Key) -> None:
        for _ in range(5):
            clock.now += 30
            if answered:
                flowers.controller.note_progress()
            causes.append(flowers.controller.stuck())
        term.ended.set()

    flowers = Flowers(clock, reconcile)
    flowers.controller.queue_all()
    assert flowers.controller.start(term)
    flowers.controller._threads[0].join(60)
    assert causes[:4] == [None] * 4
    assert causes[4] == (None if answered else "a worker makes no progress with team/flowers for 150 s")
    assert flowers.controller.stuck() is None
