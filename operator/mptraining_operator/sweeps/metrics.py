"""Prometheus metrics of sweeps: the time between two trials, and of a proposal."""

from __future__ import annotations

from prometheus_client import Histogram

from mptraining_operator.runtime.metrics import Metrics

# The completion time of a job has whole seconds.
_GAP_SECONDS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_PROPOSAL_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class SweepMetrics:
    """Histograms in the operator's registry."""

    def __init__(self, metrics: Metrics) -> None:
        self.observe_gap = Histogram(
            "mptraining_sweep_trial_gap_seconds",
            "Seconds from the end of a trial to the creation of the next job of its sweep.",
            buckets=_GAP_SECONDS,
            registry=metrics.registry,
        ).observe
        self.observe_proposal = Histogram(
            "mptraining_sweep_proposal_seconds",
            "Seconds that the proposal of one trial took.",
            buckets=_PROPOSAL_SECONDS,
            registry=metrics.registry,
        ).observe
