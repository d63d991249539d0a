"""Prometheus metrics of one replica: jobs, reconciles, API calls, watch streams, leader election."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mptraining_api.status import Phase
from mptraining_operator.plan.actions import Plan

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LIST_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
# Creation timestamps are whole seconds; a start may wait for machines for an hour.
_START_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)

_STARTED_KEPT = 20_000

# The cause of the retry of a reconcile: an error response of the API server or none, a rejected child, or an error in
# the operator.
RetryCause = Literal["Api", "Refused", "Bug"]
LeaseChange = Literal["Acquired", "Lost"]


class Metrics:
    """Metrics in a separate registry, so that two operators in one process, as in tests, do not share them.

    `monotonic` is in seconds.
    """

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # The time of the last event by resource.
        self._last_events: dict[str, float] = {}
        # The uids of jobs whose first Indexed Job was recorded; it may be deleted and created again.
        self._started: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        # The creation time of each counter would be another series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._reconcile = Histogram(
            "mptraining_reconcile_seconds",
            "Seconds of one reconcile of a job, calls to the API server included.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._calls = Counter(
            "mptraining_api_calls",
            "Calls to the API server by this client; code 0 without a response.",
            ("verb", "resource", "code"),
            registry=self.registry,
        )
        self._restarts = Counter(
            "mptraining_restarts", "Restarts of jobs by their cause.", ("cause",), registry=self.registry
        )
        self._lost = Counter(
            "mptraining_accelerator_seconds_lost",
            "Accelerator seconds from the end of an attempt until the next one runs.",
            ("accelerator",),
            registry=self.registry,
        )
        self._dropped_events = Counter(
            "mptraining_events_dropped",
            "Kubernetes Events that were not written: QueueFull, or RateLimited for one job.",
            ("reason",),
            registry=self.registry,
        )
        self._retries = Counter(
            "mptraining_reconcile_retries",
            "Reconciles that failed and are retried: Api, Refused (a child was rejected), Bug (see the log).",
            ("cause",),
            registry=self.registry,
        )
        self._lists = Histogram(
            "mptraining_list_seconds",
            "Seconds of one list of a resource, all pages and their parsing included.",
            ("resource",),
            buckets=_LIST_SECONDS,
            registry=self.registry,
        )
        self._watch_restarts = Counter(
            "mptraining_watch_restarts",
            "Watch streams that ended and began again with a list.",
            ("resource",),
            registry=self.registry,
        )
        self._lease_changes = Counter(
            "mptraining_lease_changes",
            "Acquired and Lost by this replica, which stands by after a loss and may lead again.",
            ("change",),
            registry=self.registry,
        )
        self._refused_reports = Counter(
            "mptraining_progress_refused",
            "Progress reports that were not accepted, by HTTP status.",
            ("code",),
            registry=self.registry,
        )
        self._created_to_child = Histogram(
            "mptraining_created_to_child_seconds",
            "Seconds from the creation of a job to the creation of its first Indexed Job; once for each job.",
            buckets=_START_SECONDS,
            registry=self.registry,
        )
        self._created_to_running = Histogram(
            "mptraining_created_to_running_seconds",
            "Seconds from the creation of a job until all workers of its first attempt run; once for each job.",
            buckets=_START_SECONDS,
            registry=self.registry,
        )
        self._leader = Gauge("mptraining_leader", "1 on the replica that reconciles.", registry=self.registry)
        info = Gauge("mptraining_operator_info", "Always 1.", ("version",), registry=self.registry)
        info.labels(version("mptraining")).set(1)

    def watch(
        self,
        *,
        jobs_by_phase: Callable[[], Mapping[str, int]],
        queue_age: Callable[[], float],
        queue_depth: Callable[[], int],
        paused_jobs: Callable[[], int] = lambda: 0,
        lease_transitions: Callable[[], int | None] = lambda: None,
        namespaces_unavailable: Callable[[], Mapping[str, str]] = lambda: {},
    ) -> None:
        """Register the gauges that are computed at each scrape; `lease_transitions` is None before the first read,
        `namespaces_unavailable` the reason by namespace.
        """

        def gauges() -> Iterator[GaugeMetricFamily]:
            jobs = GaugeMetricFamily("mptraining_jobs", "Jobs by phase.", labels=("phase",))
            counts = jobs_by_phase()
            for phase in sorted({each.value for each in Phase} | counts.keys()):
                jobs.add_metric((phase,), counts.get(phase, 0))
            yield jobs
            yield GaugeMetricFamily(
                "mptraining_queue_age_seconds", "Seconds that the job at the head has been waiting.", queue_age()
            )
            yield GaugeMetricFamily("mptraining_queue_depth", "Jobs that wait for a worker.", queue_depth())
            yield GaugeMetricFamily("mptraining_jobs_paused", "Jobs that their annotation pauses.", paused_jobs())
            yield self._event_ages()
            unavailable = GaugeMetricFamily(
                "mptraining_namespace_unavailable",
                "1 for each namespace of the setting namespaces that cannot be listed, with the API server's reason.",
                labels=("namespace", "reason"),
            )
            for namespace, reason in namespaces_unavailable().items():
                unavailable.add_metric((namespace, reason), 1)
            yield unavailable
            transitions = lease_transitions()
            if transitions is not None:
                help_text = "The Lease's leaseTransitions, as this replica last read it."
                yield GaugeMetricFamily("mptraining_lease_transitions", help_text, transitions)

        self.registry.register(ScrapeCollector(gauges))

    def observe_reconcile(self, seconds: float) -> None:
        self._reconcile.observe(seconds)

    def count_retry(self, cause: RetryCause) -> None:
        self._retries.labels(cause).inc()

    def observe_list(self, resource: str, seconds: float) -> None:
        self._lists.labels(resource).observe(seconds)

    def count_watch_restart(self, resource: str) -> None:
        self._watch_restarts.labels(resource).inc()

    def watch_event(self, resource: str) -> None:
        """Record the time of an event or bookmark of that resource's watch stream."""
        self._last_events[resource] = self._monotonic()

    def count_lease_change(self, change: LeaseChange) -> None:
        self._lease_changes.labels(change).inc()

    def count_refused_report(self, status: int) -> None:
        self._refused_reports.labels(str(status)).inc()

    def observe_first_child(self, uid: str, seconds: float) -> None:
        """Record the creation of the first Indexed Job of the job with that uid; later calls for it are ignored."""
        with self._lock:
            known = uid in self._started
            self._started[uid] = None
            while len(self._started) > _STARTED_KEPT:
                self._started.popitem(last=False)
        if not known:
            self._created_to_child.observe(max(0.0, seconds))

    def count_call(self, verb: str, resource: str, code: int) -> None:
        self._calls.labels(verb, resource, str(code)).inc()

    def count_dropped_event(self, reason: str) -> None:
        self._dropped_events.labels(reason).inc()

    def count_plan(self, plan: Plan) -> None:
        """Count the restart that the plan begins, the accelerator time that restarts cost, and the first run."""
        if plan.restart:
            self._restarts.labels(plan.restart).inc()
        for loss in plan.losses:
            self._lost.labels(loss.accelerator).inc(max(0.0, loss.seconds))
        if plan.first_run is not None:
            self._created_to_running.observe(max(0.0, plan.first_run))

    def set_leader(self, leading: bool) -> None:
        self._leader.set(int(leading))

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _event_ages(self) -> GaugeMetricFamily:
        ages = GaugeMetricFamily(
            "mptraining_watch_last_event_age_seconds",
            "Seconds since the last event of the watch stream; a stream without changes grows old.",
            labels=("resource",),
        )
        now = self._monotonic()
        for resource, at in sorted(self._last_events.copy().items()):
            ages.add_metric((resource,), max(0.0, now - at))
        return ages


class ScrapeCollector(Collector):
    """Gauges that are computed at each scrape."""

    def __init__(self, gauges: Callable[[], Iterator[GaugeMetricFamily]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._gauges()
