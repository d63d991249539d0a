"""The workers: each takes a key, looks at the job, plans, and carries the plan out; a failure is tried again later.

Nothing that happens to one job ends a worker or holds up another job.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from mptraining_operator.apply import Announce, NotCreated
from mptraining_operator.cluster import ApiProblem
from mptraining_operator.plan.actions import EventRecord, Plan, StartAttempt
from mptraining_operator.plan.snapshot import Key, Limits, Snapshot
from mptraining_operator.watch.cache import Cache, Seen
from mptraining_operator.watch.work_queue import WorkQueue

_log = logging.getLogger(__name__)

# A plan that was overtaken is made anew at once this often; then the job waits for its turn again.
PLANS_AT_ONCE = 5
# After so many failures in a row the user hears of it: before that it heals by itself more often than not.
_FAILURES_UNTIL_SAID = 5
# After a write, if nothing else asks sooner: whatever the write's own events did not say is seen then.
_LOOK_AFTER_WRITE = 2.0

Planner = Callable[[Snapshot, float], Plan]


class PlanApplier(Protocol):
    """What is needed of `apply.Applier`."""

    def apply(self, plan: Plan, seen: Seen) -> bool: ...


class Reconciler:
    """`observe` is told the seconds that each look took; `clock` is in seconds since 1970."""

    def __init__(
        self,
        queue: WorkQueue,
        cache: Cache,
        applier: PlanApplier,
        *,
        plan: Planner,
        limits: Limits,
        announce: Announce,
        observe: Callable[[float], None],
        clock: Callable[[], float],
        stopwatch: Callable[[], float],
    ) -> None:
        self._queue = queue
        self._cache = cache
        self._applier = applier
        self._plan = plan
        self._limits = limits
        self._announce = announce
        self._observe = observe
        self._clock = clock
        self._stopwatch = stopwatch
        self._threads: list[threading.Thread] = []
        self._reports_since: float | None = None
        self._starting = threading.Lock()

    def start(self, workers: int, *, reports_since: float | None = None) -> None:
        """`reports_since` as in Snapshot, in seconds since 1970."""
        self._reports_since = reports_since
        for number in range(workers):
            thread = threading.Thread(target=self._work, name=f"worker-{number}", daemon=True)
            thread.start()
            # Not before: another thread may be stopping already, and one that was not started cannot be joined.
            self._threads.append(thread)

    def join(self, seconds: float) -> bool:
        """After `queue.stop()`: whether all workers finished what they had in hand in that time."""
        until = self._stopwatch() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - self._stopwatch()))
        return not any(thread.is_alive() for thread in self._threads)

    def dead(self) -> int:
        """Workers that have ended."""
        return sum(1 for thread in self._threads if not thread.is_alive())

    def _work(self) -> None:
        while (key := self._queue.take()) is not None:
            try:
                self.look_at(key)
            finally:
                self._queue.done(key)

    def look_at(self, key: Key) -> None:
        """One job, once; whatever goes wrong is logged and tried again, later each time."""
        began = self._stopwatch()
        try:
            self._reconcile(key)
            self._queue.succeeded(key)
        except ApiProblem as problem:
            delay = self._queue.retry(key, problem.retry_after or 0.0)
            said = "the API server's answer: %s; tried again in %.0f s"
            _log.warning(said, problem, delay, extra={"job": str(key)})
            self._say_if_lasting(key, str(problem))
        except NotCreated as no:
            self._queue.retry(key)
            _log.warning("%s", no, extra={"job": str(key)})
            self._say_if_lasting(key, str(no))
        except Exception as error:  # noqa: BLE001 - one job's trouble is not the other jobs'
            delay = self._queue.retry(key)
            _log.exception("an error in the operator; tried again in %.0f s", delay, extra={"job": str(key)})
            self._say_if_lasting(key, f"{type(error).__name__}: {error}")
        finally:
            self._observe(self._stopwatch() - began)

    def _reconcile(self, key: Key) -> None:
        for _ in range(PLANS_AT_ONCE):
            seen = self._cache.seen(key, self._limits, self._reports_since)
            if seen is None:
                return
            now = self._clock()
            plan = self._plan(seen.snapshot, now)
            if self._takes_nodes(plan):
                plan, overtaken = self._apply_alone(key, now)
            else:
                overtaken = self._applier.apply(plan, seen)
            if not overtaken:
                self._wake(key, plan, now)
                return
        # Overtaken again and again, as by somebody who writes the job all the time.
        self._queue.add(key, 1.0)

    def _takes_nodes(self, plan: Plan) -> bool:
        limited = self._limits.jobs.nodes_per_namespace is not None
        return limited and any(isinstance(each, StartAttempt) for each in plan.actions)

    def _apply_alone(self, key: Key, now: float) -> tuple[Plan, bool]:
        """Planned anew and applied with no other start beside it, so that two jobs do not take the last nodes both."""
        with self._starting:
            seen = self._cache.seen(key, self._limits, self._reports_since)
            plan = self._plan(seen.snapshot, now) if seen else Plan()
            return plan, seen is not None and self._applier.apply(plan, seen)

    def _wake(self, key: Key, plan: Plan, now: float) -> None:
        if plan.wake_at is not None:
            self._queue.add(key, plan.wake_at - now)
        if plan.status is not None or plan.actions:
            self._queue.add(key, _LOOK_AFTER_WRITE)

    def _say_if_lasting(self, key: Key, problem: str) -> None:
        if self._queue.failures(key) != _FAILURES_UNTIL_SAID:
            return
        with suppress(Exception):
            snapshot = self._cache.snapshot(key, self._limits)
            if snapshot is not None:
                said = f"the operator cannot go on with this job and keeps trying: {problem}"
                self._announce(snapshot, EventRecord("OperatorProblem", said[:1000], "Warning"))
