"""The series that dashboards and alerts depend on, by name and labels."""

from __future__ import annotations

from mptraining_operator.metrics import Metrics
from mptraining_operator.plan.actions import Loss, Plan


def test_what_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.watch(jobs_by_phase=lambda: {"Running": 3}, queue_age=lambda: 1.5, queue_depth=lambda: 2)
    metrics.count_call("patch", "mptrainingjobs/status", 200)
    metrics.count_call("get", "nodes", 0)
    metrics.observe_reconcile(0.02)
    metrics.count_plan(Plan(restart="Preempted", losses=(Loss("nvidia-tesla-t4", 40.0), Loss("cpu", -1.0))))
    metrics.count_plan(Plan())
    metrics.set_leader(True)
    lines = set(metrics.text().decode().splitlines())
    assert {
        'mptraining_jobs{phase="Running"} 3.0',
        'mptraining_jobs{phase="Failed"} 0.0',
        "mptraining_queue_age_seconds 1.5",
        "mptraining_queue_depth 2.0",
        'mptraining_api_calls_total{code="200",resource="mptrainingjobs/status",verb="patch"} 1.0',
        'mptraining_api_calls_total{code="0",resource="nodes",verb="get"} 1.0',
        'mptraining_reconcile_seconds_bucket{le="0.025"} 1.0',
        "mptraining_reconcile_seconds_count 1.0",
        'mptraining_restarts_total{cause="Preempted"} 1.0',
        'mptraining_accelerator_seconds_lost_total{accelerator="nvidia-tesla-t4"} 40.0',
        'mptraining_accelerator_seconds_lost_total{accelerator="cpu"} 0.0',
        "mptraining_leader 1.0",
    } <= lines
    assert any(line.startswith("mptraining_operator_info{version=") for line in lines)
    assert not any("_created" in line for line in lines)


def test_two_operators_in_one_process_share_no_series() -> None:
    one, other = Metrics(), Metrics()
    one.set_leader(True)
    assert b"mptraining_leader 0.0" in other.text()
