"""Prometheus metrics: jobs by phase, API calls, restarts and lost accelerator time, queue, reconcile duration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mptraining_api.status import Phase
from mptraining_operator.plan.actions import Plan

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Metrics in a separate registry, so that two operators in one process, as in tests, do not share them."""

    def __init__(self) -> None:
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
        self._leader = Gauge("mptraining_leader", "1 on the replica that reconciles.", registry=self.registry)
        info = Gauge("mptraining_operator_info", "Always 1.", ("version",), registry=self.registry)
        info.labels(version("mptraining")).set(1)

    def watch(
        self,
        *,
        jobs_by_phase: Callable[[], Mapping[str, int]],
        queue_age: Callable[[], float],
        queue_depth: Callable[[], int],
    ) -> None:
        """Register the gauges that are computed at each scrape."""
        self.registry.register(_ScrapeCollector(jobs_by_phase, queue_age, queue_depth))

    def observe_reconcile(self, seconds: float) -> None:
        self._reconcile.observe(seconds)

    def count_call(self, verb: str, resource: str, code: int) -> None:
        self._calls.labels(verb, resource, str(code)).inc()

    def count_dropped_event(self, reason: str) -> None:
        self._dropped_events.labels(reason).inc()

    def count_plan(self, plan: Plan) -> None:
        """Count the restart that the plan begins, and the accelerator time that restarts cost."""
        if plan.restart:
            self._restarts.labels(plan.restart).inc()
        for loss in plan.losses:
            self._lost.labels(loss.accelerator).inc(max(0.0, loss.seconds))

    def set_leader(self, leading: bool) -> None:
        self._leader.set(int(leading))

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _ScrapeCollector(Collector):
    """Gauges that are computed at each scrape."""

    def __init__(
        self,
        jobs_by_phase: Callable[[], Mapping[str, int]],
        queue_age: Callable[[], float],
        queue_depth: Callable[[], int],
    ) -> None:
        self._jobs_by_phase = jobs_by_phase
        self._queue_age = queue_age
        self._queue_depth = queue_depth

    def collect(self) -> Iterator[GaugeMetricFamily]:
        jobs = GaugeMetricFamily("mptraining_jobs", "Jobs by phase.", labels=("phase",))
        counts = self._jobs_by_phase()
        for phase in sorted({each.value for each in Phase} | counts.keys()):
            jobs.add_metric((phase,), counts.get(phase, 0))
        yield jobs
        yield GaugeMetricFamily(
            "mptraining_queue_age_seconds", "Seconds that the job at the head has been waiting.", self._queue_age()
        )
        yield GaugeMetricFamily("mptraining_queue_depth", "Jobs that wait for a worker.", self._queue_depth())
