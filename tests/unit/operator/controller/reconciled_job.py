"""One job in the cache and the queue, with an applier that returns prepared results."""

from __future__ import annotations

import time
from typing import Any

from mptraining_operator.controller import Reconciler
from mptraining_operator.plan.actions import EventRecord, Plan
from mptraining_operator.plan.snapshot import Key, Limits, Snapshot
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache, VersionedSnapshot
from mptraining_operator.watch.work_queue import WorkQueue
from tests.fakes import Clock

KEY = Key("team", "flowers")


class Applied:
    """Replaces Applier; returns results from a list, or raises the errors in it."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.plans: list[Plan] = []

    def apply(self, plan: Plan, seen: VersionedSnapshot) -> bool:
        self.plans.append(plan)
        answer = self.answers.pop(0) if self.answers else False
        if isinstance(answer, Exception):
            raise answer
        return answer


def reconciler(queue: WorkQueue, cache: Cache, applier: Any, **options: Any) -> Reconciler:
    """Return a reconciler whose plans are empty, by the real clock; `options` replace its parts."""
    chosen = {
        "plan": lambda snapshot, now: Plan(),
        "limits": Limits(),
        "record_event": lambda snapshot, record: None,
        "observe": lambda seconds: None,
        "clock": time.time,
        "stopwatch": time.monotonic,
        **options,
    }
    return Reconciler(queue, cache, applier, **chosen)


class Bench:
    def __init__(self, clock: Clock, raw: dict[str, Any], *answers: bool | Exception, plan: Plan | Exception) -> None:
        self.queue = WorkQueue(clock)
        self.cache = Cache(clock)
        self.cache.put_job(parse.job(raw))
        self.applied = Applied(*answers)
        self.said: list[EventRecord] = []
        self.seconds: list[float] = []
        self.held = False
        self.retries: list[str] = []

        def make(snapshot: Snapshot, now: float) -> Plan:
            assert snapshot.key == KEY
            assert now == clock.now
            if isinstance(plan, Exception):
                raise plan
            return plan

        self.reconciler = reconciler(
            self.queue,
            self.cache,
            self.applied,
            plan=make,
            record_event=lambda snapshot, announcement: self.said.append(announcement),
            observe=self.seconds.append,
            clock=clock,
            stopwatch=clock,
            holds=lambda key: self.held,
            count_retry=self.retries.append,
        )

    def next_in(self, clock: Clock) -> float | None:
        """Return the seconds until the job is due again."""
        due = min(self.queue._heads().values(), default=None)
        return None if due is None else round(due - clock.now, 3)
