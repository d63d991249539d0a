"""Prometheus metrics of jobs: their restarts, and the time until they start."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial

from prometheus_client import Counter, Histogram

from mptraining_operator.jobs.plan.actions import Plan
from mptraining_operator.runtime.metrics import Metrics

# Creation timestamps are whole seconds; a start may wait for machines for an hour.
_START_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
_STARTED_KEPT = 20_000


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
