"""One reconciliation of a job, and its retries after errors."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mptraining_api.admin_limits import JobLimits
from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, PODS, ApiProblem
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.status import JobStatus, Phase
from mptraining_operator.apply import NotCreated
from mptraining_operator.controller import PLANS_AT_ONCE, Reconciler
from mptraining_operator.leader_election import NotLeading, Term
from mptraining_operator.plan.actions import AllowPeers, EventRecord, Plan, ReadNode, StartAttempt
from mptraining_operator.plan.conditions import with_running
from mptraining_operator.plan.plan import plan as plan_of_job
from mptraining_operator.plan.snapshot import Key, Limits, Snapshot
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache, VersionedSnapshot
from mptraining_operator.watch.informer import COALESCE, CRD_MISSING, STREAMS, Intake, Relister
from mptraining_operator.watch.work_queue import WorkQueue
from tests.fakes import Clock
from tests.operator.api_objects import decoded

Make = Callable[..., dict[str, Any]]
KEY = Key("team", "flowers")


class Applied:
    """Replaces Applier; returns results from a list, or raises the errors in it."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.plans: list[Plan] = []
        self.cleaned_up: list[Key] = []

    def clean_up(self, key: Key) -> None:
        self.cleaned_up.append(key)

    def apply(self, plan: Plan, seen: VersionedSnapshot) -> bool:
        self.plans.append(plan)
        answer = self.answers.pop(0) if self.answers else False
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bench:
    def __init__(self, clock: Clock, raw: dict[str, Any], *answers: bool | Exception, plan: Plan | Exception) -> None:
        self.queue = WorkQueue(clock)
        self.cache = Cache(clock)
        self.cache.put_job(parse.job(raw))
        self.applied = Applied(*answers)
        self.said: list[EventRecord] = []
        self.seconds: list[float] = []
        self.held = False
        self.retries: list[str] = []

        def make(snapshot: Snapshot, now: float) -> Plan:
            assert snapshot.key == KEY
            assert now == clock.now
            if isinstance(plan, Exception):
                raise plan
            return plan

        self.reconciler = Reconciler(
            self.queue,
            self.cache,
            self.applied,
            plan=make,
            limits=Limits(),
            record_event=lambda snapshot, announcement: self.said.append(announcement),
            observe=self.seconds.append,
            clock=clock,
            stopwatch=clock,
            holds=lambda key: self.held,
            count_retry=self.retries.append,
        )

    def next_in(self, clock: Clock) -> float | None:
        """Return the seconds until the job is due again."""
        due = min(self.queue._heads().values(), default=None)
        return None if due is None else round(due - clock.now, 3)


def test_a_plan_is_applied_and_its_job_is_due_again(clock: Clock, raw_job: Make) -> None:
    bench = Bench(clock, raw_job(), plan=Plan(wake_at=clock.now + 30))
    bench.reconciler.reconcile(KEY)
    assert len(bench.applied.plans) == 1
    assert bench.next_in(clock) == 30
    assert len(bench.seconds) == 1


def test_a_paused_job_is_not_planned_and_not_due_again(clock: Clock, raw_job: Make) -> None:
    bench = Bench(clock, raw_job(), plan=Plan(wake_at=clock.now + 30))
    bench.held = True
    bench.reconciler.reconcile(KEY)
    assert bench.applied.plans == []
    assert bench.next_in(clock) is None
    bench.held = False
    bench.reconciler.reconcile(KEY)
    assert len(bench.applied.plans) == 1


def test_a_pause_ends_the_plans_of_one_reconcile(clock: Clock, raw_job: Make) -> None:
    bench = Bench(clock, raw_job(), plan=Plan(actions=(ReadNode("n"),)))

    def apply(plan: Plan, seen: VersionedSnapshot) -> bool:
        bench.applied.plans.append(plan)
        bench.held = True
        return True

    bench.reconciler._applier.apply = apply  # type: ignore[method-assign]
    bench.reconciler.reconcile(KEY)
    assert len(bench.applied.plans) == 1


def test_retries_are_counted_by_their_cause(clock: Clock, raw_job: Make) -> None:
    problems = [
        ApiProblem(500, "InternalError", "etcd is away"),
        NotCreated("Refused", "ConfigMap flowers-job", "quota"),
        KeyError("ours"),
    ]
    bench = Bench(clock, raw_job(), *problems, plan=Plan())
    for _ in range(4):
        bench.reconciler.reconcile(KEY)
    assert bench.retries == ["Api", "Refused", "Bug"]


def test_after_a_write_the_job_is_reconciled_again(clock: Clock, raw_job: Make) -> None:
    bench = Bench(clock, raw_job(), plan=Plan(status=JobStatus(phase=Phase.PENDING), wake_at=clock.now + 30))
    bench.reconciler.reconcile(KEY)
    assert bench.next_in(clock) == 2


def test_after_the_write_that_its_workers_run_the_job_is_left_alone(clock: Clock, raw_job: Make) -> None:
    running = with_running(JobStatus(), "all run", clock.now, 1)
    bench = Bench(clock, raw_job(), plan=Plan(status=running, actions=(AllowPeers(),), wake_at=clock.now + 30))
    bench.reconciler.reconcile(KEY)
    assert bench.next_in(clock) == 30


def test_without_actions_the_job_is_not_due_again(clock: Clock, raw_job: Make) -> None:
    bench = Bench(clock, raw_job(), plan=Plan())
    bench.reconciler.reconcile(KEY)
    assert bench.next_in(clock) is None


def test_a_plan_has_the_time_since_when_reports_arrive(clock: Clock, raw_job: Make) -> None:
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


def test_a_new_finding_is_planned_with_at_once(clock: Clock, raw_job: Make) -> None:
    bench = Bench(clock, raw_job(), True, True, plan=Plan(actions=(ReadNode("n"),)))
    bench.reconciler.reconcile(KEY)
    assert len(bench.applied.plans) == 3


def test_but_not_for_ever(clock: Clock, raw_job: Make) -> None:
    bench = Bench(clock, raw_job(), *[True] * 100, plan=Plan())
    bench.reconciler.reconcile(KEY)
    assert len(bench.applied.plans) == PLANS_AT_ONCE
    assert bench.next_in(clock) == 1


def test_a_job_that_is_gone_is_no_work(clock: Clock, raw_job: Make) -> None:
    bench = Bench(clock, raw_job(), plan=Plan())
    bench.queue.retry(KEY)
    bench.cache.remove_job(KEY, "job-1", 99)
    bench.reconciler.reconcile(KEY)
    assert bench.applied.plans == []
    assert bench.applied.cleaned_up == [KEY]
    assert bench.queue.failures(KEY) == 0


def test_errors_are_retried_with_backoff_and_logged_once(
    clock: Clock, raw_job: Make, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(clock, raw_job(), *[ApiProblem(500, "InternalError", "etcd is away")] * 7, plan=Plan())
    waits = []
    for _ in range(7):
        bench.queue.take(0)
        bench.reconciler.reconcile(KEY)
        bench.queue.done(KEY)
        waits.append(bench.next_in(clock))
        clock.now += 60
    assert waits == [0.25, 0.5, 1, 2, 4, 8, 16]
    assert [said.reason for said in bench.said] == ["OperatorProblem"]
    assert "etcd is away" in bench.said[0].message
    assert all(record.__dict__["job"] == "team/flowers" for record in caplog.records)
    assert not any(record.exc_info for record in caplog.records)
    # After a success the count starts at zero again.
    bench.queue.take(0)
    bench.reconciler.reconcile(KEY)
    assert bench.queue.failures(KEY) == 0


def test_retry_after_of_the_api_server_is_honoured(clock: Clock, raw_job: Make) -> None:
    bench = Bench(clock, raw_job(), ApiProblem(429, "TooManyRequests", "slow", 40.0), plan=Plan())
    bench.reconciler.reconcile(KEY)
    assert bench.next_in(clock) == 40


def test_an_error_of_our_own_leaves_a_traceback_and_a_retry(
    clock: Clock, raw_job: Make, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(clock, raw_job(), plan=ZeroDivisionError("a policy divides"))
    with caplog.at_level(logging.ERROR):
        bench.reconciler.reconcile(KEY)
    assert caplog.records[0].exc_info
    assert bench.next_in(clock) == 0.25


def test_while_one_start_is_written_another_job_sees_its_nodes_and_does_not_wait_for_it(
    clock: Clock, raw_job: Make
) -> None:
    queue, cache = WorkQueue(clock), Cache(clock)
    for name in ("first", "second"):
        cache.put_job(parse.job(raw_job(name, uid=name, status={"phase": "Pending"})))
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

    reconciler = Reconciler(
        queue,
        cache,
        Slow(),  # type: ignore[arg-type]
        plan=plan_of_job,
        limits=Limits(
            cluster=ClusterSettings(default_image="trainer:1"), jobs=JobLimits(nodes_per_job=2, nodes_per_namespace=3)
        ),
        record_event=lambda snapshot, record: None,
        observe=lambda seconds: None,
        clock=clock,
        stopwatch=clock,
    )
    first = threading.Thread(target=reconciler.reconcile, args=(Key("team", "first"),))
    first.start()
    assert writing.wait(60)
    reconciler.reconcile(Key("team", "second"))
    written.set()
    first.join(60)
    assert any(isinstance(each, StartAttempt) for each in plans["first"].actions)
    assert plans["second"].actions == ()
    assert [each.reason for each in plans["second"].event_records] == ["NamespaceFull"]


def test_workers_survive_and_stop(raw_job: Make) -> None:
    class Moving:
        @property
        def now(self) -> float:
            return time.monotonic()

        def __call__(self) -> float:
            return time.monotonic()

    done = threading.Event()
    working: list[Key] = []

    class Failing(Applied):
        def apply(self, plan: Plan, seen: VersionedSnapshot) -> bool:
            super().apply(plan, seen)
            key, seconds = reconciler.working()[threading.current_thread().name]
            assert seconds >= 0
            working.append(key)
            if len(self.plans) == 3:
                done.set()
            raise ValueError("no")

    queue, cache = WorkQueue(time.monotonic), Cache(time.monotonic)
    applied = Failing()
    reconciler = Reconciler(
        queue,
        cache,
        applied,
        plan=lambda snapshot, now: Plan(),
        limits=Limits(),
        record_event=lambda snapshot, announcement: None,
        observe=lambda seconds: None,
        clock=Moving(),
        stopwatch=time.monotonic,
    )
    assert reconciler.start(2, Term(1, lambda: False))
    for name in ("a", "b", "c"):
        cache.put_job(parse.job(raw_job(name, uid=name)))
        queue.add(Key("team", name))
    assert done.wait(60)
    assert {key.name for key in working} == {"a", "b", "c"}
    assert reconciler.ended_workers() == 0
    queue.stop()
    assert reconciler.join(60)
    assert reconciler.ended_workers() == 2
    assert reconciler.working() == {}


class Leader:
    """Workers over a queue, whose plans are applied by a method of the test."""

    def __init__(self, raw: dict[str, Any], apply: Callable[[], None]) -> None:
        self.queue, cache = WorkQueue(time.monotonic), Cache(time.monotonic)
        cache.put_job(parse.job(raw))
        self.queue.add(KEY)

        class Applying(Applied):
            def apply(self, plan: Plan, seen: VersionedSnapshot) -> bool:
                apply()
                return False

        self.reconciler = Reconciler(
            self.queue,
            cache,
            Applying(),
            plan=lambda snapshot, now: Plan(),
            limits=Limits(),
            record_event=lambda snapshot, announcement: None,
            observe=lambda seconds: None,
            clock=time.time,
            stopwatch=time.monotonic,
        )


def test_at_the_end_of_a_term_the_workers_leave_and_the_queue_stays(raw_job: Make) -> None:
    first, second = Term(1, lambda: False), Term(2, lambda: False)
    applied = threading.Semaphore(0)

    def apply() -> None:
        applied.release()
        # The Lease is late while the plan is applied: its next write is refused.
        first.ended.set()
        leader.reconciler.check_term()

    leader = Leader(raw_job(), apply)
    with pytest.raises(NotLeading):
        leader.reconciler.check_term()
    assert leader.reconciler.start(2, first)
    assert applied.acquire(timeout=60)
    assert leader.reconciler.join(60)
    assert leader.reconciler.ended_workers() == 0
    # No failure, no backoff: the next term continues with the job.
    assert (leader.queue.depth(), leader.queue.failures(KEY)) == (1, 0)
    assert not leader.reconciler.start(2, first)
    assert leader.reconciler.start(2, second)
    assert applied.acquire(timeout=60)
    second.ended.set()
    assert leader.reconciler.join(60)


def test_a_worker_that_is_blocked_in_a_call_sends_nothing_in_a_later_term_and_delays_it(raw_job: Make) -> None:
    first, second = Term(1, lambda: False), Term(2, lambda: False)
    entered, answered = threading.Event(), threading.Event()
    sent: list[int] = []

    def apply() -> None:
        leader.reconciler.check_term()
        sent.append(1)
        entered.set()
        assert answered.wait(60)
        leader.reconciler.check_term()
        sent.append(2)

    leader = Leader(raw_job(), apply)
    assert leader.reconciler.start(1, first)
    assert entered.wait(60)
    first.ended.set()
    assert not leader.reconciler.join(0.01)
    # Never the workers of two terms at once.
    assert not leader.reconciler.start(1, second)
    answered.set()
    assert leader.reconciler.join(60)
    assert sent == [1]
    assert leader.reconciler.start(0, second)
    leader.reconciler.check_term()


def test_what_arrives_is_queued_at_once_for_jobs_and_soon_for_children(
    clock: Clock, raw_job: Make, raw_batch_job: Make, raw_pod: Make
) -> None:
    cache, queue = Cache(clock), WorkQueue(clock)
    intake = Intake(cache, queue)
    intake.put(PODS, decoded(PODS, raw_pod()))
    intake.put(BATCH_JOBS, decoded(BATCH_JOBS, raw_batch_job()))
    assert queue.take(0) is None
    clock.now += COALESCE
    assert queue.take(0) == KEY
    queue.done(KEY)
    intake.put(JOBS, decoded(JOBS, raw_job()))
    assert queue.take(0) == KEY
    queue.done(KEY)
    for resource, raw in ((JOBS, raw_job(version=11)), (PODS, raw_pod(version=31))):
        intake.put(resource, decoded(resource, raw))
    clock.now += 1
    assert queue.take(0) is None
    intake.remove(PODS, decoded(PODS, raw_pod(version=32)))
    clock.now += 1
    assert queue.take(0) == KEY
    queue.done(KEY)
    intake.remove(JOBS, decoded(JOBS, raw_job(version=12)))
    assert queue.take(0) == KEY
    assert cache.job_keys() == ()


def test_foreign_objects_are_ignored(clock: Clock, raw_pod: Make) -> None:
    cache, queue = Cache(clock), WorkQueue(clock)
    intake = Intake(cache, queue)
    pod = raw_pod()
    pod["metadata"]["labels"] = {}
    intake.put(PODS, decoded(PODS, pod))
    intake.remove(PODS, decoded(PODS, pod))
    clock.now += 1
    assert queue.take(0) is None


def relister(api: Any, clock: Clock, namespaces: tuple[str, ...] = ()) -> tuple[Relister, Cache, WorkQueue]:
    cache, queue = Cache(clock), WorkQueue(clock)
    intake = Intake(cache, queue)
    return Relister(api, cache, intake, seconds=600, namespaces=namespaces, clock=clock), cache, queue


def test_a_list_finds_everything_in_pages(api: Any, clock: Clock, raw_job: Make, raw_pod: Make) -> None:
    api.page_size = 2
    for number in range(5):
        api.put(JOBS, raw_job(f"j{number}", uid=f"u{number}"))
    api.put(PODS, raw_pod())
    lists, cache, _ = relister(api, clock)
    seconds: dict[str, float] = {}
    lists._observe_list = seconds.__setitem__
    api.before = lambda *call: setattr(clock, "now", clock.now + 2)
    assert lists.age() is None
    assert not lists.complete.is_set()
    lists.run_once()
    assert lists.complete.is_set()
    assert seconds == {stream.resource.plural: 2 for stream in STREAMS}
    assert len(cache.job_keys()) == 5
    assert [call[1] for call in api.calls] == [stream.resource.plural for stream in STREAMS]
    clock.now += 5
    assert lists.age() == 5


def test_what_a_list_lacks_is_gone_unless_it_is_newer(
    api: Any, clock: Clock, raw_job: Make, raw_batch_job: Make, raw_pod: Make
) -> None:
    lists, cache, _ = relister(api, clock)
    intake = lists._intake
    for resource, raw in (
        (JOBS, raw_job("stays", uid="s")),
        (JOBS, raw_job()),
        (PODS, raw_pod()),
        (BATCH_JOBS, raw_batch_job()),
    ):
        intake.put(resource, decoded(resource, api.put(resource, raw)))
    # The stream is ahead of the list that is being read.
    intake.put(JOBS, decoded(JOBS, raw_job("fresh", uid="f", version=10_000)))
    for key in [key for key in api.objects if key[2] not in ("stays", "flowers")]:
        del api.objects[key]
    lists.run_once()
    found = cache.snapshot(KEY, Limits())
    assert found is not None
    assert (found.pods, found.batch_jobs) == ((), ())
    del api.objects[("mptrainingjobs", "team", "flowers")]
    lists.run_once()
    assert {key.name for key in cache.job_keys()} == {"stays", "fresh"}


def test_one_object_that_cannot_be_read_stops_no_list(
    api: Any, clock: Clock, raw_job: Make, raw_pod: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not treated as deleted: its last readable state is kept."""
    lists, cache, _ = relister(api, clock)
    api.put(JOBS, raw_job())
    api.put(PODS, raw_pod())
    lists.run_once()
    api.put(PODS, {**raw_pod(), "status": {"phase": "Failed", "conditions": [{}]}})
    api.put(PODS, raw_pod("flowers-1-1-abcde", uid="pod-1", index=1))
    lists.run_once()
    found = cache.snapshot(KEY, Limits())
    assert found is not None
    assert {(each.uid, each.phase) for each in found.pods} == {("pod-0", "Running"), ("pod-1", "Running")}
    assert "one of the pods is skipped: team/flowers-1-0-abcde" in caplog.text


def test_a_leader_decides_from_a_list_that_began_when_it_led(
    api: Any, clock: Clock, raw_job: Make, raw_batch_job: Make, raw_pod: Make
) -> None:
    """The previous list is inconsistent: the previous leader wrote between its Jobs and its MPTrainingJobs."""
    lists, cache, _ = relister(api, clock)

    def writes(verb: str, plural: str, name: str) -> None:
        if plural == "mptrainingjobs":
            api.before = lambda *_: None
            api.put(BATCH_JOBS, raw_batch_job("flowers-2", attempt=2))
            api.put(JOBS, raw_job(status={"phase": "Running", "currentAttempt": 2}))

    api.before = writes
    lists.run_once()
    torn = cache.snapshot(KEY, Limits())
    assert torn is not None
    assert (torn.batch_job(2), torn.status and torn.status.current_attempt) == (None, 2)
    assert lists.age() == 0
    assert lists.list_until_complete(threading.Event())
    whole = cache.snapshot(KEY, Limits())
    assert whole is not None
    assert whole.batch_job(2) is not None


def test_a_list_that_is_needed_is_retried_until_it_succeeds(
    api: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return self.is_set()

    lists, _, _ = relister(api, clock)
    api.refuse("list", PODS, ApiProblem(500, "InternalError", "etcd"))
    api.refuse("list", PODS, ZeroDivisionError("ours"))
    assert lists.list_until_complete(Impatient())
    assert lists.complete.is_set()
    assert "etcd" in caplog.text
    assert "ours" in caplog.text
    stopped = threading.Event()
    stopped.set()
    assert not lists.list_until_complete(stopped)


@pytest.mark.parametrize(("age", "pause"), [(0, 60), (50, 10), (58, 5), (580, 5), (598, 2), (700, 0)])
def test_a_stream_that_restarted_leads_to_a_list_however_fresh_the_last_one_is(
    api: Any, clock: Clock, age: float, pause: float
) -> None:
    lists, _, _ = relister(api, clock)
    lists.run_once()
    clock.now += age
    assert lists.seconds_until_relist() == pause
    listed = len(api.calls)
    lists._stopping.wait = lambda timeout=None: lists._stopping.is_set()  # type: ignore[method-assign]
    lists.start()
    until = time.monotonic() + 60
    while len(api.calls) < listed + 1 and time.monotonic() < until:
        time.sleep(0.005)
    # The thread begins with a list of its own.
    listed = len(api.calls)
    lists.request_relist()
    while len(api.calls) < listed + 1 and time.monotonic() < until:
        time.sleep(0.005)
    lists.stop()
    lists._thread.join(60)
    assert len(api.calls) >= listed + 1


@pytest.mark.parametrize("decides", [True, False])
def test_a_standby_lists_no_jobs_and_pods_again(api: Any, clock: Clock, decides: bool) -> None:
    """Its watches are enough until it leads; the lists of every replica would cost the API server as much."""
    lists, _, _ = relister(api, clock)
    lists._decides = lambda: decides
    lists.run_once()
    first = len(api.calls)
    lists._requested.set()
    lists._stopping.wait = lambda timeout=None: lists._stopping.is_set()  # type: ignore[method-assign]
    lists._on_listed = lists.stop
    lists._run()
    expected = [stream.resource.plural for stream in STREAMS] if decides else ["mptrainingjobs"]
    assert [call[1] for call in api.calls[first:]] == expected


def test_a_resource_that_is_served_again_is_reported(api: Any, clock: Clock) -> None:
    lists, _, _ = relister(api, clock)
    told: list[int] = []
    lists._on_served_again = lambda: told.append(len(api.calls))
    lists.run_once()
    api.refuse("list", JOBS, ApiProblem(404, "NotFound", "404 page not found"))
    api.refuse("list", BATCH_JOBS, ApiProblem(500, "InternalError", "etcd"))
    for _ in range(2):
        with pytest.raises(ApiProblem):
            lists.run_once()
    assert told == []
    lists.run_once()
    lists.run_once()
    assert len(told) == 1


def test_of_some_namespaces_only_those_are_listed(api: Any, clock: Clock, raw_job: Make) -> None:
    for namespace in ("a", "b", "c"):
        api.put(JOBS, raw_job(namespace=namespace, uid=namespace))
    lists, cache, _ = relister(api, clock, ("a", "b"))
    lists.run_once()
    assert {key.namespace for key in cache.job_keys()} == {"a", "b"}
    assert len(api.calls) == 2 * len(STREAMS)


def test_a_missing_resource_is_logged_in_one_line(api: Any, raw_job: Make, caplog: pytest.LogCaptureFixture) -> None:
    api.refuse("list", JOBS, ApiProblem(404, "NotFound", "404 page not found"))
    lists, _, _ = relister(api, time)  # type: ignore[arg-type]
    lists._clock = time.monotonic
    lists.start()
    until = time.monotonic() + 60
    while not caplog.records and time.monotonic() < until:
        time.sleep(0.005)
    lists.stop()
    lists._thread.join(60)
    assert CRD_MISSING in caplog.text
    assert "manifests/crd.yaml" in caplog.text
    assert not caplog.records[0].exc_info
