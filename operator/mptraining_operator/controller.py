"""Reconcile workers: each takes a key from the queue, plans the job and applies the plan, with retries after failures.

An error of one job neither ends a worker nor delays another job. Workers run for one term of leadership; the queue
outlives them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_operator.apply import Applier, RecordEvent
from mptraining_operator.children import NotCreated
from mptraining_operator.leader_election import Term, TermWorkers
from mptraining_operator.metrics import RetryCause
from mptraining_operator.plan.actions import EventRecord, JoinQueue, Plan, StartAttempt
from mptraining_operator.plan.conditions import is_true
from mptraining_operator.plan.snapshot import Key, Limits, Snapshot
from mptraining_operator.watch.cache import Cache
from mptraining_operator.watch.work_queue import WorkQueue

# The number of consecutive plans for a job whose snapshots become outdated; then the job is queued again.
PLANS_AT_ONCE = 5
# Seconds from a write to the next reconcile, in case the watch does not report all effects of the write.
_RECONCILE_AFTER_WRITE = 2.0

Planner = Callable[[Snapshot, float], Plan]


class Reconciler(TermWorkers):
    """The workers of jobs.

    `observe` receives the seconds of each reconcile; `clock` is in seconds since 1970. `holds` returns whether a job is
    paused: no plan of it is executed.
    """

    expected = (ApiProblem, NotCreated)

    def __init__(
        self,
        queue: WorkQueue,
        cache: Cache,
        applier: Applier,
        *,
        plan: Planner,
        limits: Limits,
        record_event: RecordEvent,
        observe: Callable[[float], None],
        clock: Callable[[], float],
        stopwatch: Callable[[], float],
        holds: Callable[[Key], bool] = lambda key: False,
        count_retry: Callable[[RetryCause], None] = lambda cause: None,
    ) -> None:
        super().__init__(queue, stopwatch, "job", count_retry)
        self._cache = cache
        self._applier = applier
        self._plan = plan
        self._limits = limits
        self._record_event = record_event
        self._observe = observe
        self._clock = clock
        self._holds = holds
        self._reports_since: float | None = None
        self._starting = threading.Lock()

    def start(self, workers: int, term: Term, *, reports_since: float | None = None) -> bool:
        """Start the worker threads of `term`; return False if it is over, or if workers of an earlier term still run.

        `reports_since` as in Snapshot, in seconds since 1970.
        """

        def prepare() -> None:
            self._reports_since = reports_since

        return self.start_term(workers, term, prepare)

    def _reconcile(self, key: Key) -> None:
        began = self._stopwatch()
        try:
            self._plan_and_apply(key)
        finally:
            self._observe(self._stopwatch() - began)

    def _plan_and_apply(self, key: Key) -> None:
        for _ in range(PLANS_AT_ONCE):
            if self._holds(key):
                return
            seen = self._cache.versioned_snapshot(key, self._limits, self._reports_since)
            if seen is None:
                return
            now = self._clock()
            plan = self._plan(seen.snapshot, now)
            if self._nodes_taken(plan):
                plan, outdated = self._apply_with_reservation(key, now)
            else:
                outdated = self._applier.apply(plan, seen)
            if not outdated:
                self._requeue(key, plan, now)
                return
        # The snapshot was outdated every time, as when another client writes the job continuously.
        self._queue.add(key, 1.0)

    def update_cluster(self, settings: ClusterSettings) -> None:
        """Take over what the nodes of the cluster show, for jobs that have not started."""
        self._limits = replace(self._limits, cluster=settings)

    def _nodes_taken(self, plan: Plan) -> int:
        """Return the nodes of the attempt that the plan starts or queues for, if they are limited; else 0."""
        if self._limits.jobs.nodes_per_namespace is None:
            return 0
        return sum(each.attempt_job.processes for each in plan.actions if isinstance(each, StartAttempt | JoinQueue))

    def _apply_with_reservation(self, key: Key, now: float) -> tuple[Plan, bool]:
        """Plan again and reserve the nodes while no other job does, so that two jobs do not both take the last ones."""
        with self._starting:
            seen = self._cache.versioned_snapshot(key, self._limits, self._reports_since)
            plan = self._plan(seen.snapshot, now) if seen else Plan()
            if seen is None:
                return plan, False
            self._cache.reserve_nodes(key, self._nodes_taken(plan))
        try:
            return plan, self._applier.apply(plan, seen)
        finally:
            self._cache.reserve_nodes(key, 0)

    def _requeue(self, key: Key, plan: Plan, now: float) -> None:
        if plan.wake_at is not None:
            self._queue.add(key, plan.wake_at - now)
        runs = plan.status is not None and is_true(plan.status, "Running")
        if not runs and (plan.status is not None or plan.actions):
            self._queue.add(key, _RECONCILE_AFTER_WRITE)

    def _record(self, key: Key, record: EventRecord) -> None:
        snapshot = self._cache.snapshot(key, self._limits)
        if snapshot is not None:
            self._record_event(snapshot, record)
