"""Lists that replace what the watches have missed."""

from __future__ import annotations

import copy
import itertools
import threading
import time
from typing import Any

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, PODS, ApiProblem, Resource
from mptraining_operator.plan.snapshot import Key, Limits, Snapshot
from mptraining_operator.watch.cache import Cache
from mptraining_operator.watch.informer import CRD_MISSING, STREAMS, Intake, Relister
from mptraining_operator.watch.work_queue import WorkQueue
from tests.fakes import Clock
from tests.unit.operator.api_objects import decoded, raw_batch_job, raw_job, raw_pod
from tests.unit.operator.controller.reconciled_job import KEY


class Lists(Relister):
    """The relister of an API server in memory, with the cache that it fills."""

    def __init__(self, api: Any, clock: Any, namespaces: tuple[str, ...] = ()) -> None:
        self.cache = Cache(clock)
        self.intake = Intake(self.cache, WorkQueue(clock))
        super().__init__(api, self.intake, seconds=600, namespaces=namespaces, clock=clock)

    @property
    def flowers(self) -> Snapshot:
        found = self.cache.snapshot(KEY, Limits())
        assert found is not None
        return found

    @property
    def names(self) -> set[str]:
        return {key.name for key in self.cache.job_keys()}

    @property
    def job_namespaces(self) -> set[str]:
        return {key.namespace for key in self.cache.job_keys()}

    def arrive(self, resource: Resource, raw: dict[str, Any]) -> None:
        """Let a watch report an object."""
        self.intake.put(resource, decoded(resource, raw))


@pytest.fixture
def lists(api: Any, clock: Clock) -> Lists:
    return Lists(api, clock)


def test_a_list_finds_everything_in_pages(lists: Lists, api: Any, clock: Clock) -> None:
    api.page_size = 2
    for number in range(5):
        api.put(JOBS, raw_job(f"j{number}", uid=f"u{number}"))
    api.put(PODS, raw_pod())
    seconds: dict[str, float] = {}
    lists._observe_list = seconds.__setitem__
    api.before = lambda *call: setattr(clock, "now", clock.now + 2)
    assert lists.age() is None
    assert not lists.complete.is_set()
    lists.run_once()
    assert lists.complete.is_set()
    assert seconds == {stream.resource.plural: 2 for stream in STREAMS}
    assert len(lists.names) == 5
    assert [call[1] for call in api.calls] == [stream.resource.plural for stream in STREAMS]
    clock.now += 5
    assert lists.age() == 5


def test_what_a_list_lacks_is_gone_unless_it_is_newer(lists: Lists, api: Any) -> None:
    for resource, raw in (
        (JOBS, raw_job("stays", uid="s")),
        (JOBS, raw_job()),
        (PODS, raw_pod()),
        (BATCH_JOBS, raw_batch_job()),
    ):
        lists.arrive(resource, api.put(resource, raw))
    # The stream is ahead of the list that is being read.
    fresh = raw_job("fresh", uid="f", version=10_000)
    api.before = lambda verb, plural, name: plural == "mptrainingjobs" and lists.arrive(JOBS, fresh)
    for key in [key for key in api.objects if key[2] not in ("stays", "flowers")]:
        del api.objects[key]
    lists.run_once()
    found = lists.flowers
    assert (found.pods, found.batch_jobs) == ((), ())
    assert lists.names == {"stays", "flowers", "fresh"}
    api.before = lambda *call: None
    del api.objects[("mptrainingjobs", "team", "flowers")]
    lists.run_once()
    assert lists.names == {"stays"}


def test_one_object_that_cannot_be_read_stops_no_list(lists: Lists, api: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is not treated as deleted: its last readable state is kept."""
    api.put(JOBS, raw_job())
    api.put(PODS, raw_pod())
    lists.run_once()
    api.put(PODS, {**raw_pod(), "status": {"phase": "Failed", "conditions": [{}]}})
    api.put(PODS, raw_pod("flowers-1-1-abcde", uid="pod-1", index=1))
    lists.run_once()
    found = lists.flowers
    assert {(each.uid, each.phase) for each in found.pods} == {("pod-0", "Running"), ("pod-1", "Running")}
    assert "one of the pods is skipped: team/flowers-1-0-abcde" in caplog.text


def test_a_leader_decides_from_a_list_that_began_when_it_led(lists: Lists, api: Any) -> None:
    """The previous list is inconsistent: the previous leader wrote between its Jobs and its MPTrainingJobs."""

    def writes(verb: str, plural: str, name: str) -> None:
        if plural == "mptrainingjobs":
            api.before = lambda *_: None
            api.put(BATCH_JOBS, raw_batch_job("flowers-2", attempt=2))
            api.put(JOBS, raw_job(status={"phase": "Running", "currentAttempt": 2}))

    api.before = writes
    lists.run_once()
    torn = lists.flowers
    assert (torn.batch_job(2), torn.status and torn.status.current_attempt) == (None, 2)
    assert lists.age() == 0
    assert lists.list_until_complete(threading.Event())
    assert lists.flowers.batch_job(2) is not None


def test_a_list_that_is_needed_is_retried_until_it_succeeds(
    lists: Lists, api: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return self.is_set()

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
def test_a_stream_that_restarted_waits_a_little_for_others(
    lists: Lists, clock: Clock, age: float, pause: float
) -> None:
    lists.run_once()
    clock.now += age
    assert lists.seconds_until_relist() == pause


def test_a_stream_that_restarted_leads_to_a_list(api: Any) -> None:
    lists = Lists(api, time.monotonic)
    listed = threading.Semaphore(0)
    lists._on_listed = listed.release
    lists.start()
    assert listed.acquire(timeout=60), "the thread begins with a list"
    lists._stopping.wait = lambda timeout=None: lists._stopping.is_set()  # type: ignore[method-assign]
    lists.request_relist()
    assert listed.acquire(timeout=60)
    lists.stop()
    lists._thread.join(60)


@pytest.mark.parametrize("decides", [True, False])
def test_a_standby_lists_no_jobs_and_pods_again(lists: Lists, api: Any, decides: bool) -> None:
    """Its watches are enough until it leads; the lists of every replica would cost the API server as much."""
    lists._decides = lambda: decides
    lists.run_once()
    first = len(api.calls)
    lists._requested.set()
    lists._stopping.wait = lambda timeout=None: lists._stopping.is_set()  # type: ignore[method-assign]
    lists._on_listed = lists.stop
    lists._run()
    expected = [stream.resource.plural for stream in STREAMS] if decides else ["mptrainingjobs"]
    assert [call[1] for call in api.calls[first:]] == expected


FORBIDDEN = ApiProblem(403, "Forbidden", 'pods is forbidden: cannot list resource "pods" in the namespace')


@pytest.mark.parametrize(
    "problem",
    [
        FORBIDDEN,
        ApiProblem(404, "NotFound", "not found"),
        ApiProblem(401, "Unauthorized", "Unauthorized"),
        ApiProblem(429, "TooManyRequests", "slow down", retry_after=1),
        ApiProblem(0, "NoAnswer", "Read timed out"),
    ],
)
def test_a_namespace_that_cannot_be_listed_delays_no_other(
    api: Any, clock: Clock, problem: ApiProblem, caplog: pytest.LogCaptureFixture
) -> None:
    for namespace in ("a", "b", "c"):
        api.put(JOBS, raw_job(namespace=namespace, uid=namespace))
    lists = Lists(api, clock, ("a", "b", "c"))
    available: list[dict[str, str]] = []
    lists._on_available = lambda: available.append(lists.unavailable())
    api.refused["b"] = problem
    assert lists.list_until_complete(threading.Event())
    assert lists.complete.is_set()
    assert lists.job_namespaces == {"a", "c"}
    assert [lists.is_unknown(namespace) for namespace in ("a", "b", "c")] == [False, True, False]
    assert lists.unavailable() == {"b": problem.reason}
    assert len([record for record in caplog.records if "namespace b" in record.message]) == 1
    lists.run_once(namespaces=("b",))
    assert len([record for record in caplog.records if "namespace b" in record.message]) == 1
    assert available == []
    api.refused.clear()
    lists.run_once(namespaces=("b",))
    assert available == [{}]
    assert not lists.is_unknown("b")
    assert lists.job_namespaces == {"a", "b", "c"}


@pytest.mark.parametrize(("problem", "unknown"), [(FORBIDDEN, True), (ApiProblem(500, "InternalError", "etcd"), False)])
def test_a_later_list_that_fails_leaves_what_the_watches_report(
    api: Any, clock: Clock, problem: ApiProblem, unknown: bool
) -> None:
    api.put(JOBS, raw_job(namespace="b", uid="b"))
    lists = Lists(api, clock, ("a", "b"))
    lists.run_once()
    api.refused["b"] = problem
    lists.run_once()
    assert lists.is_unknown("b") is unknown
    assert len(lists.names) == 1


def test_without_any_namespace_the_replica_is_not_ready(api: Any, clock: Clock) -> None:
    lists = Lists(api, clock, ("a", "b"))
    api.refused = dict.fromkeys(("a", "b"), FORBIDDEN)
    with pytest.raises(ApiProblem, match="forbidden"):
        lists.run_once()
    assert not lists.complete.is_set()


def test_a_list_after_the_restore_of_a_backup_replaces_what_was_known(lists: Lists, api: Any) -> None:
    """Versions have gone back: a deleted job with its children exists again, one created since then does not."""
    api._versions = itertools.count(100)
    for resource, raw in ((JOBS, raw_job()), (BATCH_JOBS, raw_batch_job()), (PODS, raw_pod())):
        api.put(resource, raw)
    backup = copy.deepcopy(api.objects)
    api.put(JOBS, raw_job("stays", uid="s"))
    lists.run_once()
    api._versions = itertools.count(5000)
    api.objects.clear()
    api.put(JOBS, raw_job("stays", uid="s", generation=2))
    api.put(JOBS, raw_job("later", uid="l"))
    lists.run_once()
    assert lists.names == {"stays", "later"}
    api.objects = backup
    api._versions = itertools.count(200)
    api.put(JOBS, raw_job("stays", uid="s"))
    lists.run_once()
    assert lists.names == {"flowers", "stays"}
    found = lists.flowers
    assert (len(found.batch_jobs), len(found.pods)) == (1, 1)
    # Updates from now on count, though their versions are lower than those of before the restore.
    lists.arrive(PODS, raw_pod(version=300, phase="Failed"))
    lists.arrive(JOBS, raw_job("stays", uid="s", version=301, generation=2))
    found = lists.flowers
    assert [pod.phase for pod in found.pods] == ["Failed"]
    stays = lists.cache.stored(Key("team", "stays"))
    assert stays is not None
    assert stays.generation == 2


def test_an_update_that_arrives_during_a_list_is_kept(lists: Lists, api: Any) -> None:
    api._versions = itertools.count(100)
    api.put(JOBS, raw_job())

    def arrives(verb: str, plural: str, name: str) -> None:
        if plural == "mptrainingjobs":
            lists.arrive(JOBS, raw_job(version=900, generation=2))
            lists.arrive(JOBS, raw_job("deleted", uid="d", version=50))

    api.before = arrives
    lists.run_once()
    stored = lists.cache.stored(KEY)
    assert stored is not None
    assert stored.generation == 2
    # A watch that is late about a deleted job also reports its deletion; the next list would.
    api.before = lambda *call: None
    lists.run_once()
    assert lists.names == {"flowers"}


def test_a_missing_resource_is_logged_in_one_line(api: Any, caplog: pytest.LogCaptureFixture) -> None:
    api.refuse("list", JOBS, ApiProblem(404, "NotFound", "404 page not found"))
    lists = Lists(api, time.monotonic)
    lists.start()
    until = time.monotonic() + 60
    while not caplog.records and time.monotonic() < until:
        time.sleep(0.005)
    lists.stop()
    lists._thread.join(60)
    assert CRD_MISSING in caplog.text
    assert "files/crd.yaml" in caplog.text
    assert not caplog.records[0].exc_info
