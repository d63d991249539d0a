"""Prometheus metrics of sweeps: by phase, their trials by state, the time between two trials, and of a proposal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily

from mptraining_api.sweep.status import SweepPhase
from mptraining_operator.metrics import ScrapeCollector, by_label
from mptraining_operator.sweeps.cache import TRIAL_STATES

# The completion time of a job has whole seconds.
_GAP_SECONDS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_PROPOSAL_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class SweepMetrics:
    """Metrics in the operator's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.observe_gap = Histogram(
            "mptraining_sweep_trial_gap_seconds",
            "Seconds from the end of a trial to the creation of the next job of its sweep.",
            buckets=_GAP_SECONDS,
            registry=registry,
        ).observe
        self.observe_proposal = Histogram(
            "mptraining_sweep_proposal_seconds",
            "Seconds that the proposal of one trial took.",
            buckets=_PROPOSAL_SECONDS,
            registry=registry,
        ).observe

    def watch(
        self,
        *,
        sweeps_by_phase: Callable[[], Mapping[str, int]],
        trials_by_state: Callable[[], Mapping[str, int]],
        paused: Callable[[], int],
        queue_age: Callable[[], float],
    ) -> None:
        """Register the gauges that are computed at each scrape."""

        def gauges() -> Iterator[GaugeMetricFamily]:
            yield by_label("mptraining_sweeps", "Sweeps by phase.", "phase", SweepPhase, sweeps_by_phase())
            states = trials_by_state()
            yield by_label("mptraining_sweep_trials", "Trials of all sweeps by state.", "state", TRIAL_STATES, states)
            yield GaugeMetricFamily("mptraining_sweeps_paused", "Sweeps that their annotation pauses.", paused())
            yield GaugeMetricFamily(
                "mptraining_sweep_queue_age_seconds",
                "Seconds that the sweep at the head has been waiting.",
                queue_age(),
            )

        self._registry.register(ScrapeCollector(gauges))
