"""The series of single jobs: from the progress that the cache stores, of running jobs, on the leader alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from mptraining_api.status import Progress
from mptraining_operator.metrics import Metrics
from mptraining_operator.monitoring.job_metrics import NUMBERS, JobMetrics
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache
from tests.fakes import Clock

Make = Callable[..., dict[str, Any]]
AT = "2026-01-01T00:05:00Z"
PROGRESS = {
    "attempt": 2, "updateTime": AT, "stepTime": AT, "step": 300, "totalSteps": 1000, "epoch": 3, "percentComplete": 30,
    "examplesPerSecond": 512.5, "estimatedRemainingSeconds": 90, "inputBoundPercent": 12.5, "lossScale": 32768.0,
    "precision": "mixed_float16", "recoveries": 1, "deviceUtilizationPercent": 97.5,
    "deviceMemoryUsedBytes": 12_000_000_000, "deviceMemoryTotalBytes": 16_000_000_000,
    "metrics": [{"name": "loss", "value": "0.25"}, {"name": "top \"5\"", "value": "nan"}],
}  # fmt: skip


class Scrape:
    def __init__(self, clock: Clock) -> None:
        self.cache = Cache(clock)
        self.leading = True
        self.metrics = Metrics(monotonic=float)
        self.metrics.registry.register(JobMetrics(self.cache.jobs, lambda: self.leading))

    def lines(self) -> set[str]:
        text = self.metrics.text().decode()
        return {line for line in text.splitlines() if line.startswith("mptraining_job_")}


@pytest.fixture
def scrape(clock: Clock) -> Scrape:
    return Scrape(clock)


def running(**progress: Any) -> dict[str, Any]:
    return {"phase": "Running", "currentAttempt": 2, "progress": progress or PROGRESS}


def test_a_running_job_has_a_series_for_each_value(scrape: Scrape, raw_job: Make) -> None:
    scrape.cache.put_job(parse.job(raw_job(status=running())))
    labels = 'job_name="flowers",job_namespace="team"'
    assert scrape.lines() == {
        f"mptraining_job_attempt{{{labels}}} 2.0",
        f"mptraining_job_step{{{labels}}} 300.0",
        f"mptraining_job_total_steps{{{labels}}} 1000.0",
        f"mptraining_job_epoch{{{labels}}} 3.0",
        f"mptraining_job_percent_complete{{{labels}}} 30.0",
        f"mptraining_job_examples_per_second{{{labels}}} 512.5",
        f"mptraining_job_remaining_seconds{{{labels}}} 90.0",
        f"mptraining_job_input_bound_percent{{{labels}}} 12.5",
        f"mptraining_job_loss_scale{{{labels}}} 32768.0",
        f"mptraining_job_recoveries{{{labels}}} 1.0",
        f"mptraining_job_device_utilization_percent{{{labels}}} 97.5",
        f"mptraining_job_device_memory_used_bytes{{{labels}}} 1.2e+10",
        f"mptraining_job_device_memory_total_bytes{{{labels}}} 1.6e+10",
        f"mptraining_job_last_step_timestamp_seconds{{{labels}}} 1.7672259e+09",
        f'mptraining_job_metric{{{labels},metric="loss"}} 0.25',
        f'mptraining_job_metric{{{labels},metric="top \\"5\\""}} NaN',
    }


def test_every_number_of_the_progress_is_exported_or_known_to_be_no_number() -> None:
    fields = {str(field.alias) for field in Progress.model_fields.values()}
    assert fields - NUMBERS.keys() == {"metrics", "modelKeptUntil", "oomKills", "precision", "stepTime", "updateTime"}
    assert NUMBERS.keys() <= fields


def test_values_that_are_not_reported_have_no_series(scrape: Scrape, raw_job: Make) -> None:
    scrape.cache.put_job(parse.job(raw_job(status=running(step=5))))
    assert scrape.lines() == {'mptraining_job_step{job_name="flowers",job_namespace="team"} 5.0'}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_job_that_has_ended_leaves_no_series(scrape: Scrape, raw_job: Make, phase: str) -> None:
    scrape.cache.put_job(parse.job(raw_job(status=running())))
    assert scrape.lines()
    scrape.cache.put_job(parse.job(raw_job(version=11, status={**running(), "phase": phase})))
    assert scrape.lines() == set()


def test_a_deleted_job_leaves_no_series(scrape: Scrape, raw_job: Make) -> None:
    scrape.cache.put_job(parse.job(raw_job(status=running())))
    scrape.cache.remove_job(Key("team", "flowers"), "job-1", 11)
    assert scrape.lines() == set()


def test_a_standby_exports_no_job(scrape: Scrape, raw_job: Make) -> None:
    """Else a sum over the replicas would count every job twice."""
    scrape.cache.put_job(parse.job(raw_job(status=running())))
    scrape.leading = False
    assert scrape.lines() == set()


@pytest.mark.parametrize(
    "progress", [b"[]", b"{", b'{"metrics":[{"name":"loss","value":"?"}]}', b'{"stepTime":"noon"}']
)
def test_a_progress_that_cannot_be_read_does_not_end_the_scrape(scrape: Scrape, raw_job: Make, progress: bytes) -> None:
    scrape.cache.put_job(dataclasses.replace(parse.job(raw_job(status=running())), progress=progress))
    scrape.cache.put_job(parse.job(raw_job("other", uid="job-2", status=running(step=5))))
    assert scrape.lines() == {'mptraining_job_step{job_name="other",job_namespace="team"} 5.0'}
