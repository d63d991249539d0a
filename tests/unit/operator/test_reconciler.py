"""One reconcile of a job: its plans while snapshots are outdated, the node limit, and when it is due again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mptraining_api.admin_limits import JobLimits
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.status import JobStatus, Phase
from mptraining_operator.jobs.plan.actions import JoinQueue, Plan, ReadNode
from mptraining_operator.jobs.plan.conditions import with_running
from mptraining_operator.jobs.plan.plan import plan as plan_of_job
from mptraining_operator.jobs.plan.snapshot import Limits, Snapshot
from mptraining_operator.jobs.reconciler import PLANS_AT_ONCE, JobReconciler
from mptraining_operator.jobs.watch import parse
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.runtime.event_recorder import EventRecorder
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue
from tests.fakes import Clock, with_image
from tests.unit.operator.api_objects import raw_job

KEY = Key("team", "flowers")
NOW = Clock().now


class Bench(JobReconciler):
    """Plans by a function, and applies nothing: `answers` say whether each plan was outdated."""

    def __init__(
        self, api: Any, clock: Clock, *answers: bool, plan: Callable[[Snapshot, float], Plan], limits: JobLimits
    ) -> None:
        self.cache = Cache(clock)
        self.plans: list[tuple[Key, Plan]] = []
        self.answers = list(answers)
        metrics = Metrics(monotonic=clock)
        runtimes = {**with_image("trainer:1")}
        runtimes["default"] = runtimes["default"].model_copy(update={"limits": limits})
        settings = ClusterSettings(runtimes=runtimes)
        platform: Any = SimpleNamespace(settings=settings, read=lambda: None)
        recorder = EventRecorder(api, host="op-0", clock=clock, metrics=metrics)
        replica: Any = SimpleNamespace(
            leader=api, event_recorder=recorder, metrics=metrics, clock=clock, monotonic=clock
        )
        super().__init__(
            replica,
            self.cache,
            WorkQueue(clock),
            limits=Limits(cluster=settings),
            platform=platform,
            pod_settings=lambda owner: pytest.fail("no pods are made"),
            receives_reports=True,
            workers=0,
            notify=lambda snapshot, record: None,
            plan=plan,
        )
        self._applier = self  # type: ignore[assignment]

    def apply(self, plan: Plan, seen: Snapshot) -> bool:
        self.plans.append((seen.key, plan))
        return self.answers.pop(0) if self.answers else False

    def next_in(self, clock: Clock) -> float | None:
        """Return the seconds until the job is due again."""
        due = self.queue.next_due()
        return None if due is None else round(due - clock.now, 3)


Make = Callable[..., Bench]


@pytest.fixture
def make(api: Any, clock: Clock) -> Make:
    def make(*answers: bool, plan: Plan | Callable[[Snapshot, float], Plan], limits: JobLimits | None = None) -> Bench:
        planner = (lambda snapshot, now: plan) if isinstance(plan, Plan) else plan
        bench = Bench(api, clock, *answers, plan=planner, limits=limits or JobLimits())
        bench.cache.put_job(parse.job(raw_job()))
        return bench

    return make


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
def test_when_a_job_is_due_again_after_its_plan_was_applied(
    make: Make, clock: Clock, plan: Plan, due: float | None
) -> None:
    bench = make(plan=plan)
    bench.reconcile(KEY)
    assert (len(bench.plans), bench.next_in(clock)) == (1, due)


def test_a_pause_ends_the_plans_of_one_reconcile(make: Make) -> None:
    bench = make(True, True, plan=Plan(actions=(ReadNode("n"),)))
    paused = raw_job(version=11)
    paused["metadata"]["annotations"] = {"mptraining.dev/paused": "true"}
    bench.cache.put_job(parse.job(paused))
    bench.reconcile(KEY)
    assert len(bench.plans) == 1


def test_a_plan_has_the_time_since_when_reports_arrive(make: Make, clock: Clock) -> None:
    heard: list[float | None] = []

    def plan(snapshot: Snapshot, now: float) -> Plan:
        heard.append(snapshot.reports_since)
        return Plan()

    bench = make(plan=plan)
    bench.reconcile(KEY)
    bench.begin_term()
    bench.reconcile(KEY)
    assert heard == [None, clock.now]


@pytest.mark.parametrize(("outdated", "plans", "due"), [(2, 3, None), (100, PLANS_AT_ONCE, 1)])
def test_an_outdated_snapshot_is_planned_with_again_but_not_for_ever(
    make: Make, clock: Clock, outdated: int, plans: int, due: float | None
) -> None:
    bench = make(*[True] * outdated, plan=Plan())
    bench.reconcile(KEY)
    assert (len(bench.plans), bench.next_in(clock)) == (plans, due)


def test_a_job_that_is_gone_is_no_work(make: Make) -> None:
    bench = make(plan=Plan())
    bench.cache.remove_job(KEY, "job-1", 99)
    bench.reconcile(KEY)
    assert bench.plans == []


@pytest.mark.parametrize("spec", [{}, {"scheduling": {"queueName": "gpus"}}])
def test_while_one_start_is_written_another_job_sees_its_workers_and_does_not_wait_for_it(
    make: Make, spec: dict[str, Any]
) -> None:
    bench = make(plan=plan_of_job, limits=JobLimits(workers_per_job=2, workers_per_namespace=3))
    for name in ("first", "second"):
        bench.cache.put_job(parse.job(raw_job(name, uid=name, status={"phase": "Pending"}, **spec)))
    writing, written = threading.Event(), threading.Event()

    def apply(plan: Plan, seen: Snapshot) -> bool:
        plans[seen.key.name] = plan
        if seen.key.name == "first":
            writing.set()
            assert written.wait(60)
        return False

    plans: dict[str, Plan] = {}
    bench.apply = apply  # type: ignore[method-assign]
    first = threading.Thread(target=bench.reconcile, args=(Key("team", "first"),))
    first.start()
    assert writing.wait(60)
    bench.reconcile(Key("team", "second"))
    written.set()
    first.join(60)
    assert [type(action) for action in plans["first"].actions] == ([JoinQueue] if spec else [])
    assert bool(plans["first"].job_text) is not bool(spec)
    assert plans["second"].actions == ()
    assert [record.reason for record in plans["second"].event_records] == ["NamespaceFull"]
