"""One reconciliation of a job, and its retries after errors."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.status import JobStatus, Phase
from mptraining_operator.apply import NotCreated
from mptraining_operator.controller import PLANS_AT_ONCE
from mptraining_operator.leader_election import Term
from mptraining_operator.plan.actions import JoinQueue, Plan, ReadNode, StartAttempt
from mptraining_operator.plan.conditions import with_running
from mptraining_operator.plan.plan import plan as plan_of_job
from mptraining_operator.plan.snapshot import Key, Limits, Snapshot
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache, VersionedSnapshot
from mptraining_operator.watch.work_queue import WorkQueue
from tests.fakes import Clock, with_image
from tests.unit.operator.api_objects import raw_job
from tests.unit.operator.controller.reconciled_job import KEY, Bench, reconciler

NOW = Clock().now


@pytest.mark.parametrize(
    ("plan", "due"),
    [
        (Plan(wake_at=NOW + 30), 30),
        (Plan(), None),
        # After a write, the job is reconciled again, unless its workers run.
        (Plan(status=JobStatus(phase=Phase.PENDING), wake_at=NOW + 30), 2),
        (Plan(status=with_running(JobStatus(), "all run", NOW, 1), actions=(ReadNode("n"),), wake_at=NOW + 30), 30),
    ],
)
def test_when_a_job_is_due_again_after_its_plan_was_applied(clock: Clock, plan: Plan, due: float | None) -> None:
    bench = Bench(clock, raw_job(), plan=plan)
    bench.reconciler.reconcile(KEY)
    assert (len(bench.applied.plans), len(bench.seconds)) == (1, 1)
    assert bench.next_in(clock) == due


def test_a_pause_ends_the_plans_of_one_reconcile(clock: Clock) -> None:
    bench = Bench(clock, raw_job(), plan=Plan(actions=(ReadNode("n"),)))

    def apply(plan: Plan, seen: VersionedSnapshot) -> bool:
        bench.applied.plans.append(plan)
        bench.held = True
        return True

    bench.reconciler._applier.apply = apply  # type: ignore[method-assign]
    bench.reconciler.reconcile(KEY)
    assert len(bench.applied.plans) == 1


def test_retries_are_counted_by_their_cause(clock: Clock) -> None:
    refused = NotCreated("Refused", "ConfigMap flowers-job", "quota")
    bench = Bench(clock, raw_job(), ApiProblem(500, "InternalError", "away"), refused, KeyError("ours"), plan=Plan())
    for _ in range(4):
        bench.reconciler.reconcile(KEY)
    assert bench.retries == ["Api", "Refused", "Bug"]


def test_a_plan_has_the_time_since_when_reports_arrive(clock: Clock) -> None:
    bench = Bench(clock, raw_job(), plan=Plan())
    heard: list[float | None] = []

    def make(snapshot: Snapshot, now: float) -> Plan:
        heard.append(snapshot.reports_since)
        return Plan()

    bench.reconciler._plan = make
    bench.reconciler.reconcile(KEY)
    bench.reconciler.start(0, Term(1, lambda: False), reports_since=990.0)
    bench.reconciler.reconcile(KEY)
    assert heard == [None, 990.0]


@pytest.mark.parametrize(("findings", "plans", "due"), [(2, 3, None), (100, PLANS_AT_ONCE, 1)])
def test_a_new_finding_is_planned_with_at_once_but_not_for_ever(
    clock: Clock, findings: int, plans: int, due: float | None
) -> None:
    bench = Bench(clock, raw_job(), *[True] * findings, plan=Plan())
    bench.reconciler.reconcile(KEY)
    assert (len(bench.applied.plans), bench.next_in(clock)) == (plans, due)


def test_a_job_that_is_gone_is_no_work(clock: Clock) -> None:
    bench = Bench(clock, raw_job(), plan=Plan())
    bench.queue.retry(KEY)
    bench.cache.remove_job(KEY, "job-1", 99)
    bench.reconciler.reconcile(KEY)
    assert bench.applied.plans == []
    assert bench.queue.failures(KEY) == 0


def test_errors_are_retried_with_backoff_and_logged_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    away = ApiProblem(500, "InternalError", "etcd is away")
    bench = Bench(clock, raw_job(), *[away] * 7, ApiProblem(429, "TooManyRequests", "slow", 40.0), plan=Plan())
    waits = []
    for _ in range(8):
        bench.queue.take(0)
        bench.reconciler.reconcile(KEY)
        bench.queue.done(KEY)
        waits.append(bench.next_in(clock))
        clock.now += 60
    assert waits == [0.25, 0.5, 1, 2, 4, 8, 16, 40], "the last wait is the API server's"
    assert [said.reason for said in bench.said] == ["OperatorProblem"]
    assert "etcd is away" in bench.said[0].message
    assert all(record.__dict__["job"] == "team/flowers" for record in caplog.records)
    assert not any(record.exc_info for record in caplog.records)
    # After a success the count starts at zero again.
    bench.queue.take(0)
    bench.reconciler.reconcile(KEY)
    assert bench.queue.failures(KEY) == 0


def test_an_error_of_our_own_leaves_a_traceback_and_a_retry(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(clock, raw_job(), plan=ZeroDivisionError("a policy divides"))
    with caplog.at_level(logging.ERROR):
        bench.reconciler.reconcile(KEY)
    assert caplog.records[0].exc_info
    assert bench.next_in(clock) == 0.25


@pytest.mark.parametrize("spec", [{}, {"scheduling": {"queueName": "gpus"}}])
def test_while_one_start_is_written_another_job_sees_its_nodes_and_does_not_wait_for_it(
    clock: Clock, spec: dict[str, Any]
) -> None:
    queue, cache = WorkQueue(clock), Cache(clock)
    for name in ("first", "second"):
        cache.put_job(parse.job(raw_job(name, uid=name, status={"phase": "Pending"}, **spec)))
    writing, written = threading.Event(), threading.Event()
    plans: dict[str, Plan] = {}

    class Slow:
        def apply(self, plan: Plan, seen: VersionedSnapshot) -> bool:
            name = seen.snapshot.key.name
            plans[name] = plan
            if name == "first":
                writing.set()
                assert written.wait(60)
            return False

    runtimes = with_image("trainer:1", limits={"nodesPerJob": 2, "nodesPerNamespace": 3})
    limited = Limits(cluster=ClusterSettings(runtimes=runtimes))
    workers = reconciler(queue, cache, Slow(), plan=plan_of_job, limits=limited, clock=clock, stopwatch=clock)
    first = threading.Thread(target=workers.reconcile, args=(Key("team", "first"),))
    first.start()
    assert writing.wait(60)
    workers.reconcile(Key("team", "second"))
    written.set()
    first.join(60)
    assert [type(each) for each in plans["first"].actions] == [JoinQueue if spec else StartAttempt]
    assert plans["second"].actions == ()
    assert [each.reason for each in plans["second"].event_records] == ["NamespaceFull"]
