"""Reconciler of MPTrainingJobs: plans a job, applies the plan, and plans again while its snapshot is outdated."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import KIND
from mptraining_api.status import EventRecord, Phase
from mptraining_operator.jobs.apply import Applier
from mptraining_operator.jobs.children import NotCreated
from mptraining_operator.jobs.namespace_objects import NamespaceObjects
from mptraining_operator.jobs.plan.actions import JoinQueue, Plan
from mptraining_operator.jobs.plan.conditions import is_true
from mptraining_operator.jobs.plan.plan import plan
from mptraining_operator.jobs.plan.snapshot import Limits, SeenBatchJob, Snapshot
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.job_objects import Owner
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.jobs.watch.node_platform import NodePlatform
from mptraining_operator.jobs.watch.parse import StoredJob
from mptraining_operator.jobs.watch.streams import BatchJobStream, JobStream, PodStream
from mptraining_operator.runtime.controller import Reconciler
from mptraining_operator.runtime.metrics import Metrics, by_label
from mptraining_operator.runtime.replica import Replica
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue

_log = logging.getLogger(__name__)

# The number of consecutive plans for a job whose snapshots become outdated; then the job is queued again.
PLANS_AT_ONCE = 5
# Seconds from a write to the next reconcile, in case the watch does not report all effects of the write.
_RECONCILE_AFTER_WRITE = 2.0
# Creation timestamps are whole seconds; a start may wait for machines for an hour.
_START_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
_STARTED_KEPT = 20_000

Planner = Callable[[Snapshot, float], Plan]


@dataclass(eq=False)
class JobReconciler(Reconciler):
    """`limits` are the settings that plans depend on, and `pod_settings` returns those of a job's pods.

    `receives_reports`: workers report their progress. Thread-safe for different jobs.
    """

    kind = "job"
    while_paused = "leaves this job and its pods alone"
    expected = (ApiProblem, NotCreated)

    replica: Replica
    cache: Cache
    queue: WorkQueue
    limits: Limits
    platform: NodePlatform
    pod_settings: Callable[[Owner, ResolvedJob | None], PodSettings]
    receives_reports: bool
    workers: int
    notify: Callable[[Snapshot, EventRecord], None]
    plan: Planner = plan

    def __post_init__(self) -> None:
        self.stream = JobStream(self.cache, self.queue)
        self.streams = (BatchJobStream(self.cache, self.queue), PodStream(self.cache, self.queue), self.stream)
        self._clock = self.replica.clock
        self._metrics = JobMetrics(self.replica.metrics)
        self._namespace_objects = NamespaceObjects(self.replica.leader, self.replica.monotonic)
        self._applier = Applier(
            self.replica.leader,
            self.cache,
            pod_settings=self.pod_settings,
            record_event=self._record,
            written=self._metrics.count_plan,
            clock=self.replica.clock,
            namespace_objects=self._namespace_objects,
            started=self._observe_start,
        )
        # Without a leader, possibly no replica was running to receive reports.
        self._reports_since: float | None = None
        self._starting = threading.Lock()
        self.replica.metrics.register(self._gauges)

    def objects(self) -> tuple[StoredJob, ...]:
        return self.cache.jobs()

    def stored(self, key: Key) -> StoredJob | None:
        return self.cache.stored(key)

    def record(self, key: Key, record: EventRecord) -> None:
        stored = self.cache.stored(key)
        if stored is not None:
            _log.info("%s: %s", record.reason, record.message, extra={"job": str(key)})
            self.replica.event_recorder.record(KIND, key, stored.uid, record)

    def begin_term(self) -> None:
        self._reports_since = self._clock() if self.receives_reports else None

    def check_cluster(self) -> None:
        """Read the nodes, and repair objects of namespaces that another client changed. Raises NotLeading."""
        self.platform.read()
        for namespace in self.cache.used_namespaces():
            try:
                self._namespace_objects.ensure(namespace, again=True)
            except ApiProblem as problem:
                _log.warning("the shared objects of namespace %s could not be checked: %s", namespace, problem)

    def reconcile(self, key: Key) -> None:
        for _ in range(PLANS_AT_ONCE):
            snapshot = self._snapshot(key)
            if snapshot is None:
                return
            now = self._clock()
            planned = self.plan(snapshot, now)
            if self._workers_taken(planned):
                planned, outdated = self._apply_with_reservation(key, now)
            else:
                outdated = self._applier.apply(planned, snapshot)
            stored = self.cache.stored(key)
            if not outdated or (stored is not None and stored.paused):
                self._requeue(key, planned, now)
                return
        # The snapshot was outdated every time, as when another client writes the job continuously.
        self.queue.add(key, 1.0)

    def _snapshot(self, key: Key) -> Snapshot | None:
        limits = replace(self.limits, cluster=self.platform.settings)
        return self.cache.snapshot(key, limits, self._reports_since)

    def _workers_taken(self, planned: Plan) -> int:
        """Return the workers of the attempt that the plan intends or queues for, if they are limited; else 0."""
        takes = planned.job_text or any(isinstance(action, JoinQueue) for action in planned.actions)
        if self.limits.jobs.workers_per_namespace is None or planned.status is None or not takes:
            return 0
        return planned.status.workers or 0

    def _apply_with_reservation(self, key: Key, now: float) -> tuple[Plan, bool]:
        """Plan again and reserve the workers while no other job does, so that two jobs do not take the same ones."""
        with self._starting:
            snapshot = self._snapshot(key)
            if snapshot is None:
                return Plan(), False
            planned = self.plan(snapshot, now)
            self.cache.reserve_workers(key, self._workers_taken(planned))
        try:
            return planned, self._applier.apply(planned, snapshot)
        finally:
            self.cache.reserve_workers(key, 0)

    def _requeue(self, key: Key, planned: Plan, now: float) -> None:
        if planned.wake_at is not None:
            self.queue.add(key, planned.wake_at - now)
        runs = planned.status is not None and is_true(planned.status, "Running")
        if not runs and (planned.status is not None or planned.actions):
            self.queue.add(key, _RECONCILE_AFTER_WRITE)

    def _record(self, snapshot: Snapshot, record: EventRecord) -> None:
        self.replica.event_recorder.record(KIND, snapshot.key, snapshot.uid, record)
        self.notify(snapshot, record)

    def _observe_start(self, snapshot: Snapshot, batch_job: SeenBatchJob) -> None:
        ran = snapshot.status is not None and snapshot.status.start_time is not None
        if batch_job.attempt == 1 and not ran:
            self._metrics.observe_first_child(snapshot.uid, batch_job.created - snapshot.created)

    def _gauges(self) -> Iterator[GaugeMetricFamily]:
        yield by_label("mptraining_jobs", "Jobs by phase.", "phase", self.cache.jobs_by_phase(), Phase)


class JobMetrics:
    """Counters and histograms in the operator's registry. Thread-safe."""

    def __init__(self, metrics: Metrics) -> None:
        # The uids of jobs whose first Indexed Job was recorded; it may be deleted and created again.
        self._started: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._restarts = Counter(
            "mptraining_restarts", "Restarts of jobs by their cause.", ("cause",), registry=metrics.registry
        )
        starts = partial(Histogram, buckets=_START_SECONDS, registry=metrics.registry)
        self._created_to_child = starts(
            "mptraining_created_to_child_seconds",
            "Seconds from the creation of a job to the creation of its first Indexed Job; once for each job.",
        )
        self._created_to_running = starts(
            "mptraining_created_to_running_seconds",
            "Seconds from the creation of a job until all workers of its first attempt run; once for each job.",
        )

    def observe_first_child(self, uid: str, seconds: float) -> None:
        """Record the creation of the first Indexed Job of the job with that uid; later calls for it are ignored."""
        with self._lock:
            known = uid in self._started
            self._started[uid] = None
            while len(self._started) > _STARTED_KEPT:
                self._started.popitem(last=False)
        if not known:
            self._created_to_child.observe(max(0.0, seconds))

    def count_plan(self, plan: Plan) -> None:
        """Count the restart that the plan begins, and the first run."""
        if plan.restart:
            self._restarts.labels(plan.restart).inc()
        if plan.first_run is not None:
            self._created_to_running.observe(max(0.0, plan.first_run))
