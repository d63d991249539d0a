"""Prometheus metrics of one replica: reconciles, API calls, watch streams, leader election."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LIST_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
# The cause of the retry of a reconcile: an error response of the API server or none, a rejected child, or an error in
# the operator.
RetryCause = Literal["Api", "Refused", "Bug"]


class Metrics:
    """Metrics in a separate registry, so that two operators in one process, as in tests, do not share them.

    `monotonic` is in seconds.
    """

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # The time of the last event by resource.
        self._last_events: dict[str, float] = {}
        # The creation time of each counter would be another series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)

        def counting(name: str, text: str, *labels: str) -> Callable[..., None]:
            """Return the function that counts one event with the values of the labels."""
            made = counter(name, text, labels)
            return lambda *values: made.labels(*map(str, values)).inc()

        self._reconciles = histogram(
            "mptraining_reconcile_seconds",
            "Seconds of one reconcile, calls to the API server included, by the kind of object.",
            ("kind",),
            buckets=_SECONDS,
        )
        self.count_call: Callable[[str, str, int], None] = counting(
            "mptraining_api_calls",
            "Calls to the API server by this client; code 0 without a response.",
            *("verb", "resource", "code"),
        )
        self.count_dropped_event: Callable[[str], None] = counting(
            "mptraining_events_dropped",
            "Kubernetes Events that were not written: QueueFull, or RateLimited for one job.",
            "reason",
        )
        self.count_retry: Callable[[RetryCause], None] = counting(
            "mptraining_reconcile_retries",
            "Reconciles that failed and are retried: Api, Refused (a child was rejected), Bug (see the log).",
            "cause",
        )
        self._lists = histogram(
            "mptraining_list_seconds",
            "Seconds of one list of a resource, all pages and their parsing included.",
            ("resource",),
            buckets=_LIST_SECONDS,
        )
        self.count_watch_restart: Callable[[str], None] = counting(
            "mptraining_watch_restarts", "Watch streams that ended and began again with a list.", "resource"
        )
        self.count_refused_report: Callable[[int], None] = counting(
            "mptraining_progress_refused", "Progress reports that were not accepted, by HTTP status.", "code"
        )
        self._leader = Gauge("mptraining_leader", "1 on the replica that reconciles.", registry=self.registry)
        info = Gauge("mptraining_operator_info", "Always 1.", ("version",), registry=self.registry)
        info.labels(version("mptraining")).set(1)
        self.register(self._ages)

    def register(self, gauges: Callable[[], Iterator[GaugeMetricFamily]]) -> None:
        """Register gauges that are computed at each scrape."""
        self.registry.register(_ScrapeCollector(gauges))

    def _ages(self) -> Iterator[GaugeMetricFamily]:
        now = self._monotonic()
        yield by_label(
            "mptraining_watch_last_event_age_seconds",
            "Seconds since the last event of the watch stream; a stream without changes grows old.",
            "resource",
            {resource: max(0.0, now - at) for resource, at in self._last_events.copy().items()},
        )

    def observe_reconcile(self, kind: str, seconds: float) -> None:
        self._reconciles.labels(kind).observe(seconds)

    def observe_list(self, resource: str, seconds: float) -> None:
        self._lists.labels(resource).observe(seconds)

    def watch_event(self, resource: str) -> None:
        """Record the time of an event or bookmark of that resource's watch stream."""
        self._last_events[resource] = self._monotonic()

    def set_leader(self, leading: bool) -> None:
        self._leader.set(int(leading))

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def by_label(
    name: str, text: str, label: str, counts: Mapping[str, float], values: Iterable[str] = ()
) -> GaugeMetricFamily:
    """Return a gauge with one series for each of the values, and for each other one that is counted."""
    gauge = GaugeMetricFamily(name, text, labels=(label,))
    for value in sorted({*map(str, values), *counts}):
        gauge.add_metric((value,), counts.get(value, 0))
    return gauge


class _ScrapeCollector(Collector):
    def __init__(self, gauges: Callable[[], Iterator[GaugeMetricFamily]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield from self._gauges()
