"""Metrics of single jobs, from the `status.progress` that the cache stores: one series for each job and value.

The labels are `job_namespace` and `job_name`: Prometheus itself sets `namespace` and `job` on every series. A finished
or deleted job has no series.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from mptraining_api.status import parse_time
from mptraining_operator.watch.parse import StoredJob

_LABELS = ("job_namespace", "job_name")

# Name of the metric and its help, by the field of status.progress.
NUMBERS: Mapping[str, tuple[str, str]] = {
    "attempt": ("mptraining_job_attempt", "The attempt that reported the progress."),
    "step": ("mptraining_job_step", "Completed steps."),
    "totalSteps": ("mptraining_job_total_steps", "Steps in all."),
    "epoch": ("mptraining_job_epoch", "Current epoch, from 1."),
    "trial": ("mptraining_job_trial", "Current trial of a search with KerasTuner, from 1."),
    "trials": ("mptraining_job_trials", "Trials of the search in all."),
    "percentComplete": ("mptraining_job_percent_complete", "Share of all steps."),
    "examplesPerSecond": ("mptraining_job_examples_per_second", "Examples a second over all replicas."),
    "estimatedRemainingSeconds": ("mptraining_job_remaining_seconds", "Estimated seconds until the end."),
    "inputBoundPercent": ("mptraining_job_input_bound_percent", "Share of the time that the loop waited for data."),
    "lossScale": ("mptraining_job_loss_scale", "The loss scale under mixed_float16."),
    "deviceUtilizationPercent": (
        "mptraining_job_device_utilization_percent",
        "Share of the time in which a kernel ran, mean of worker 0's GPUs.",
    ),
    "deviceMemoryUsedBytes": (
        "mptraining_job_device_memory_used_bytes",
        "Memory in use on the fullest GPU of worker 0.",
    ),
    "deviceMemoryTotalBytes": ("mptraining_job_device_memory_total_bytes", "Memory of that GPU."),
    "recoveries": ("mptraining_job_recoveries", "Number of rollbacks to a checkpoint."),
}
_STEP_TIME = ("mptraining_job_last_step_timestamp_seconds", "When the number of steps last increased, since 1970.")
_METRIC = ("mptraining_job_metric", "The last value of loss, val_loss and other metrics of the program.")


class JobMetrics(Collector):
    """Collector of the series of all jobs; on a replica that does not lead, of none, so that each job is in one scrape.

    `jobs` returns the stored jobs, `leading` whether this replica leads.
    """

    def __init__(self, jobs: Callable[[], Iterable[StoredJob]], leading: Callable[[], bool]) -> None:
        self._jobs = jobs
        self._leading = leading

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics without series: the registry needs their names, not a scrape."""
        yield from self._families().values()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = self._families()
        for job in self._jobs() if self._leading() else ():
            if job.progress and not job.ended:
                _add(families, job)
        yield from families.values()

    def _families(self) -> dict[str, GaugeMetricFamily]:
        families = {
            field: GaugeMetricFamily(name, text, labels=_LABELS)
            for field, (name, text) in {**NUMBERS, "stepTime": _STEP_TIME}.items()
        }
        families["metrics"] = GaugeMetricFamily(*_METRIC, labels=(*_LABELS, "metric"))
        return families


def _add(families: Mapping[str, GaugeMetricFamily], job: StoredJob) -> None:
    labels = (job.key.namespace, job.key.name)
    try:
        progress: Any = json.loads(job.progress)
        for field in NUMBERS:
            value = progress.get(field)
            if isinstance(value, int | float):
                families[field].add_metric(labels, value)
        if progress.get("stepTime"):
            families["stepTime"].add_metric(labels, parse_time(progress["stepTime"]))
        for metric in progress.get("metrics") or ():
            families["metrics"].add_metric((*labels, metric["name"]), float(metric["value"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        # A progress that was edited by hand must not end the scrape; the next report replaces it.
        return
