"""The series that dashboards and alerts depend on, by name and labels."""

from __future__ import annotations

import re

from mptraining_operator.jobs.plan.actions import Plan
from mptraining_operator.jobs.reconciler import JobMetrics
from mptraining_operator.runtime.metrics import Metrics, by_label
from tests.fakes import Clock


def test_what_prometheus_reads() -> None:
    metrics = Metrics(monotonic=float)
    metrics.count_call("patch", "mptrainingjobs/status", 200)
    metrics.count_call("get", "nodes", 0)
    metrics.observe_reconcile("job", 0.02)
    jobs = JobMetrics(metrics)
    jobs.count_plan(Plan(restart="Preempted"))
    jobs.count_plan(Plan())
    metrics.set_leader(True)
    lines = set(metrics.text().decode().splitlines())
    assert {
        'mptraining_api_calls_total{code="200",resource="mptrainingjobs/status",verb="patch"} 1.0',
        'mptraining_api_calls_total{code="0",resource="nodes",verb="get"} 1.0',
        'mptraining_reconcile_seconds_bucket{kind="job",le="0.025"} 1.0',
        'mptraining_reconcile_seconds_count{kind="job"} 1.0',
        'mptraining_restarts_total{cause="Preempted"} 1.0',
        "mptraining_leader 1.0",
    } <= lines
    assert any(line.startswith("mptraining_operator_info{version=") for line in lines)
    assert not any(re.search(r"_created\b", line) for line in lines)


def lines(metrics: Metrics) -> set[str]:
    return set(metrics.text().decode().splitlines())


def test_gauges_are_computed_at_each_scrape(clock: Clock) -> None:
    metrics = Metrics(monotonic=clock)
    phases = {"Running": 3}
    metrics.register(lambda: iter([by_label("mptraining_jobs", "Jobs.", "phase", phases, ("Running", "Failed"))]))
    metrics.watch_event("pods")
    clock.now += 5
    metrics.watch_event("mptrainingjobs")
    clock.now += 2
    assert {
        'mptraining_jobs{phase="Running"} 3.0',
        'mptraining_jobs{phase="Failed"} 0.0',
        'mptraining_watch_last_event_age_seconds{resource="pods"} 7.0',
        'mptraining_watch_last_event_age_seconds{resource="mptrainingjobs"} 2.0',
    } <= lines(metrics)
    phases["Running"] = 4
    assert 'mptraining_jobs{phase="Running"} 4.0' in lines(metrics)


def test_each_start_is_observed_once() -> None:
    registry = Metrics(monotonic=float)
    metrics = JobMetrics(registry)
    metrics.observe_first_child("job-1", 1.5)
    # Its Indexed Job was deleted and is created again.
    metrics.observe_first_child("job-1", 3000.0)
    metrics.observe_first_child("job-2", 3500.0)
    # The clocks of two machines may differ.
    metrics.observe_first_child("job-3", -1.0)
    metrics.count_plan(Plan(first_run=45.0))
    metrics.count_plan(Plan())
    assert {
        'mptraining_created_to_child_seconds_bucket{le="1.0"} 1.0',
        'mptraining_created_to_child_seconds_bucket{le="2.0"} 2.0',
        'mptraining_created_to_child_seconds_bucket{le="3600.0"} 3.0',
        'mptraining_created_to_running_seconds_bucket{le="30.0"} 0.0',
        'mptraining_created_to_running_seconds_bucket{le="60.0"} 1.0',
        "mptraining_created_to_running_seconds_count 1.0",
    } <= lines(registry)
