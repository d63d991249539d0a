"""Lists and watches: each resource of each namespace by itself; a list replaces what the watches have missed."""

from __future__ import annotations

import copy
import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, PODS, ApiProblem, Resource
from mptraining_operator.jobs.plan.snapshot import Limits, Snapshot
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.jobs.watch.streams import BatchJobStream, JobStream, PodStream
from mptraining_operator.runtime.informer import Informer, Reflector, Source, Stream
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_batch_job, raw_job, raw_pod

KEY = Key("team", "flowers")
PLURALS = ["jobs", "pods", "mptrainingjobs"]


class Lists(Informer):
    """The informer of an API server in memory, with the cache that it fills."""

    def __init__(self, api: Any, clock: Any, namespaces: tuple[str, ...] = ()) -> None:
        self.cache, self.queue = Cache(clock), WorkQueue(clock)
        self.leads = True
        self.known: list[dict[str, str]] = []
        self.restored: list[bool] = []
        self.relists = threading.Semaphore(0)
        self.metrics = Metrics(monotonic=clock)
        streams = [stream(self.cache, self.queue) for stream in (JobStream, BatchJobStream, PodStream)]
        super().__init__(
            api,
            streams,
            namespaces,
            clock,
            self.metrics,
            leading=lambda: self.leads,
            on_known=lambda: self.known.append(self.unavailable()),
            on_restored=lambda: self.restored.append(True),
            on_relisted=self.relists.release,
        )

    @property
    def flowers(self) -> Snapshot:
        snapshot = self.cache.snapshot(KEY, Limits())
        assert snapshot is not None
        return snapshot

    @property
    def names(self) -> set[str]:
        return {job.key.name for job in self.cache.jobs()}

    def source(self, resource: Resource) -> Source:
        return next(source for source in self.sources if source.stream.resource == resource)

    def stream(self, resource: Resource) -> Stream:
        return self.source(resource).stream

    def arrive(self, resource: Resource, raw: dict[str, Any]) -> None:
        """Let a watch report an object."""
        self.stream(resource).put(self.stream(resource).of_mapping(raw))

    def knows(self, *namespaces: str) -> list[bool]:
        streams = [source.stream for source in self.sources]
        return [self.is_known(streams, namespace) for namespace in namespaces]


@pytest.fixture
def lists(api: Any, clock: Clock) -> Lists:
    return Lists(api, clock)


def test_a_list_finds_everything_in_pages_children_first(lists: Lists, api: Any, clock: Clock) -> None:
    api.page_size = 2
    for number in range(5):
        api.put(JOBS, raw_job(f"j{number}", uid=f"u{number}"))
    api.put(PODS, raw_pod())
    api.before = lambda *call: setattr(clock, "now", clock.now + 2)
    assert (lists.knows("team"), lists.answered.is_set()) == ([False], False)
    assert lists.list_due() == 596
    assert (lists.knows("team"), lists.answered.is_set()) == ([True], True)
    assert len(lists.names) == 5
    assert [call[1] for call in api.calls] == PLURALS
    assert lists.known == [{}]
    lines = lists.metrics.text().decode().splitlines()
    assert all(f'mptraining_list_seconds_sum{{resource="{plural}"}} 2.0' in lines for plural in PLURALS)


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
    lists.begin_term()
    flowers = lists.flowers
    assert (flowers.pods, flowers.batch_jobs) == ((), ())
    assert lists.names == {"stays", "flowers", "fresh"}
    api.before = lambda *call: None
    del api.objects[("mptrainingjobs", "team", "flowers")]
    lists.begin_term()
    assert lists.names == {"stays"}


def test_one_object_that_cannot_be_read_stops_no_list(lists: Lists, api: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is not treated as deleted: its last readable state is kept."""
    api.put(JOBS, raw_job())
    api.put(PODS, raw_pod())
    lists.begin_term()
    api.put(PODS, {**raw_pod(), "status": {"phase": "Failed", "conditions": [{}]}})
    api.put(PODS, raw_pod("flowers-1-1-abcde", uid="pod-1", index=1))
    lists.begin_term()
    assert {(pod.uid, pod.phase) for pod in lists.flowers.pods} == {("pod-0", "Running"), ("pod-1", "Running")}
    assert "one of the pods is skipped: team/flowers-1-0-abcde" in caplog.text


def test_a_leader_decides_from_a_list_that_began_when_it_led(lists: Lists, api: Any) -> None:
    """The previous list is inconsistent: the previous leader wrote between its Jobs and its MPTrainingJobs."""

    def writes(verb: str, plural: str, name: str) -> None:
        if plural == "mptrainingjobs":
            api.before = lambda *_: None
            api.put(BATCH_JOBS, raw_batch_job("flowers-2", attempt=2))
            api.put(JOBS, raw_job(status={"phase": "Running", "currentAttempt": 2}))

    api.before = writes
    lists.list_due()
    torn = lists.flowers
    assert (torn.batch_job(2), torn.status and torn.status.current_attempt) == (None, 2)
    lists.begin_term()
    assert lists.flowers.batch_job(2) is not None


def test_a_standby_lists_nothing_again(lists: Lists, clock: Clock, api: Any) -> None:
    """Its watches are enough until it leads; the lists of every replica would cost the API server as much."""
    lists.leads = False
    assert lists.list_due() is None
    first = len(api.calls)
    clock.now += 601
    lists.request_list()
    assert (lists.list_due(), len(api.calls)) == (None, first)
    lists.leads = True
    assert lists.list_due() == 600
    assert [call[1] for call in api.calls[first:]] == PLURALS


@pytest.mark.parametrize(("age", "pause"), [(0, 60), (50, 10), (58, 5), (580, 5), (598, 2)])
def test_a_watch_that_began_again_waits_a_little_for_others(
    lists: Lists, clock: Clock, age: float, pause: float
) -> None:
    lists.list_due()
    clock.now += age
    lists.request_list()
    assert lists.list_due() == pause


def test_a_watch_that_began_again_leads_to_a_list(api: Any) -> None:
    lists = Lists(api, time.monotonic)
    lists.start()
    assert lists.relists.acquire(timeout=60), "the thread begins with a list"
    for source in lists.sources:
        source.listed_at, source.due = -100.0, 0.0
    lists.request_list()
    assert lists.relists.acquire(timeout=60)
    lists.stop()
    lists._thread.join(60)


FORBIDDEN = ApiProblem(403, "Forbidden", 'pods is forbidden: cannot list resource "pods" in the namespace')


@pytest.mark.parametrize(
    ("problem", "ready"),
    [
        (FORBIDDEN, True),
        (ApiProblem(404, "NotFound", "not found"), True),
        (ApiProblem(401, "Unauthorized", "Unauthorized"), False),
        (ApiProblem(429, "TooManyRequests", "slow down", retry_after=3), False),
        (ApiProblem(0, "NoAnswer", "Read timed out"), False),
    ],
)
def test_a_namespace_that_cannot_be_listed_delays_no_other(
    api: Any, clock: Clock, problem: ApiProblem, ready: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for namespace in "abc":
        api.put(JOBS, raw_job(namespace=namespace, uid=namespace))
    lists = Lists(api, clock, ("a", "b", "c"))
    api.refused["b"] = problem
    lists.begin_term()
    assert lists.answered.is_set() is ready, "a refusal is an answer"
    assert {job.key.namespace for job in lists.cache.jobs()} == {"a", "c"}
    assert lists.knows("a", "b", "c") == [True, False, True]
    assert lists.unavailable() == {"b": problem.reason}
    assert lists.list_due() == (problem.retry_after or 1)
    clock.now += 3
    lists.list_due()
    assert len([record for record in caplog.records if "namespace b" in record.message]) == 1
    api.refused.clear()
    clock.now += 4
    lists.list_due()
    assert lists.known[-1] == {}
    assert lists.knows("b") == [True]
    assert {job.key.namespace for job in lists.cache.jobs()} == {"a", "b", "c"}


def test_one_resource_that_cannot_be_listed_holds_only_those_who_need_it(lists: Lists, api: Any) -> None:
    api.refuse("list", PODS, FORBIDDEN)
    lists.begin_term()
    assert not lists.is_known([lists.stream(PODS), lists.stream(JOBS)], "team")
    assert lists.is_known([lists.stream(JOBS)], "team")
    assert lists.names == set()


@pytest.mark.parametrize(("problem", "known"), [(FORBIDDEN, False), (ApiProblem(500, "InternalError", "etcd"), True)])
def test_a_later_list_that_fails_leaves_what_the_watches_report(
    api: Any, clock: Clock, problem: ApiProblem, known: bool
) -> None:
    api.put(JOBS, raw_job(namespace="b", uid="b"))
    lists = Lists(api, clock, ("a", "b"))
    lists.begin_term()
    api.refused["b"] = problem
    clock.now += 600
    lists.list_due()
    assert lists.knows("a", "b") == [True, known]
    assert len(lists.names) == 1
    # A new term decides by a list of its own.
    lists.begin_term()
    assert lists.knows("a", "b") == [True, False]


def test_a_list_after_the_restore_of_a_backup_replaces_what_was_known(lists: Lists, api: Any) -> None:
    """Versions have gone back: a deleted job with its children exists again, one created since then does not."""
    api._versions = itertools.count(100)
    for resource, raw in ((JOBS, raw_job()), (BATCH_JOBS, raw_batch_job()), (PODS, raw_pod())):
        api.put(resource, raw)
    backup = copy.deepcopy(api.objects)
    api.put(JOBS, raw_job("stays", uid="s"))
    lists.begin_term()
    api._versions = itertools.count(5000)
    api.objects.clear()
    api.put(JOBS, raw_job("stays", uid="s", generation=2))
    api.put(JOBS, raw_job("later", uid="l"))
    lists.begin_term()
    assert lists.names == {"stays", "later"}
    api.objects = backup
    api._versions = itertools.count(200)
    api.put(JOBS, raw_job("stays", uid="s"))
    lists.begin_term()
    assert lists.names == {"flowers", "stays"}
    flowers = lists.flowers
    assert (len(flowers.batch_jobs), len(flowers.pods)) == (1, 1)
    # Updates from now on count, though their versions are lower than those of before the restore.
    lists.arrive(PODS, raw_pod(version=300, phase="Failed"))
    lists.arrive(JOBS, raw_job("stays", uid="s", version=301, generation=2))
    assert [pod.phase for pod in lists.flowers.pods] == ["Failed"]
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
    lists.begin_term()
    stored = lists.cache.stored(KEY)
    assert stored is not None
    assert stored.generation == 2
    # A watch that is late about a deleted job also reports its deletion; the next list would.
    api.before = lambda *call: None
    lists.begin_term()
    assert lists.names == {"flowers"}


def test_an_error_of_our_own_is_logged_and_the_thread_keeps_listing(
    api: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mptraining_operator.runtime.informer.LONGEST_PAUSE", 0.01)
    api.refuse("list", PODS, ZeroDivisionError("ours"))
    lists = Lists(api, time.monotonic)
    lists.start()
    assert lists.answered.wait(60)
    lists.stop()
    lists._thread.join(60)
    assert "ours" in caplog.text


def event(type: str, raw: dict[str, Any]) -> dict[str, Any]:
    return {"type": type, "object": raw}


Script = list[dict[str, Any] | Exception]


class Pods(Lists):
    """The reflector of pods after a list at version 100; each watch yields one script, or raises its error."""

    def __init__(self, api: Any, clock: Clock, *scripts: Script) -> None:
        super().__init__(api, clock)
        api.put(JOBS, raw_job())
        self.begin_term()
        api.calls.clear()
        self.scripts = list(scripts)
        self.versions: list[str] = []
        api.watch = self._watch
        reflector = self.source(PODS)
        assert isinstance(reflector, Reflector)
        self.reflector = reflector
        reflector._watched, reflector.version, reflector._list_first = "100", 100, False
        api._versions = itertools.count(500)

    def _watch(self, resource: Resource, namespace: str | None, version: str, **selectors: str) -> Iterator[bytes]:
        assert (resource, selectors) == (PODS, {"labelSelector": "mptraining.dev/job"})
        self.versions.append(version)
        for each in self.scripts.pop(0):
            if isinstance(each, Exception):
                raise each
            yield json.dumps(each).encode()

    @property
    def phases(self) -> dict[str, str]:
        return {pod.uid: pod.phase for pod in self.flowers.pods}


def test_events_reach_the_cache_and_the_next_watch_begins_after_the_last(api: Any, clock: Clock) -> None:
    bookmark = event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "140", "creationTimestamp": None}})
    pods = Pods(
        api,
        clock,
        [
            event("ADDED", raw_pod(version=101, phase="Pending")),
            event("MODIFIED", raw_pod(version=102)),
            event("ADDED", raw_pod("flowers-1-1-x", uid="pod-1", version=103)),
        ],
        [event("DELETED", raw_pod(version=120)), bookmark],
        [],
    )
    assert pods.queue.take(0) == KEY, "the job is new"
    pods.queue.done(KEY)
    pods.reflector.watch_once()
    assert pods.phases == {"pod-0": "Running", "pod-1": "Running"}
    assert pods.queue.depth() == 0, "children change in bursts"
    clock.now += 1
    assert pods.queue.take(0) == KEY
    pods.reflector.watch_once()
    assert pods.phases == {"pod-1": "Running"}
    pods.reflector.watch_once()
    assert pods.versions == ["100", "103", "140"]
    assert api.calls == []


@pytest.mark.parametrize("in_stream", [True, False])
@pytest.mark.parametrize(("code", "reason", "lists"), [(410, "Expired", 1), (504, "Timeout", 1), (0, "NoAnswer", 0)])
def test_only_a_version_that_the_server_does_not_have_leads_to_a_list(
    api: Any, clock: Clock, in_stream: bool, code: int, reason: str, lists: int
) -> None:
    status = {"kind": "Status", "code": code, "reason": reason, "message": "resource version"}
    gone: dict[str, Any] | Exception = event("ERROR", status) if in_stream else ApiProblem(code, reason, "version")
    pods = Pods(api, clock, [event("ADDED", raw_pod(version=101)), gone], [])
    with pytest.raises(ApiProblem, match="version"):
        pods.reflector.watch_once()
    pods.reflector.watch_once()
    assert (len(api.calls), pods.versions) == (lists, ["100", "500" if lists else "101"])
    assert pods.restored == []


def test_after_a_minute_without_a_bookmark_the_resource_is_listed_and_a_restore_is_noticed(
    api: Any, clock: Clock
) -> None:
    """With a version of before the restore of an etcd backup, the API server answers 200 and is silent."""
    pods = Pods(api, clock, [event("ADDED", raw_pod(version=101))], [])
    scripted = api.watch

    def silent(*arguments: Any, **selectors: str) -> Iterator[bytes]:
        yield from scripted(*arguments, **selectors)
        if len(pods.versions) == 1:
            clock.now += 90
            raise ApiProblem(0, "NoAnswer", "Read timed out")

    api.watch = silent
    api._versions = itertools.count(60)
    with pytest.raises(ApiProblem):
        pods.reflector.watch_once()
    pods.reflector.watch_once()
    assert (len(api.calls), pods.versions) == (1, ["100", "60"])
    # kopf, which is deaf as well, must begin with a list.
    assert pods.restored == [True]


def test_a_restore_that_a_list_notices_begins_the_watches_again(api: Any, clock: Clock) -> None:
    """The API server sends nothing up to the version that was watched from, and then sends later changes alone."""
    pods = Pods(api, clock, [event("ADDED", raw_pod(version=130))], [event("MODIFIED", raw_pod(version=131))], [])
    pods.reflector.watch_once()
    api._versions = itertools.count(60)
    api.put(PODS, raw_pod("flowers-1-1-x", uid="pod-1", version=59))
    pods.begin_term()
    api.put(PODS, raw_pod("flowers-1-1-x", uid="pod-1", version=61, phase="Failed"))
    pods.reflector.watch_once()
    assert pods.phases["pod-1"] == "Failed"
    assert pods.versions[0] == "100"
    assert int(pods.versions[1]) < 130


def test_one_object_that_cannot_be_read_stops_no_watch(
    api: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    malformed = {**raw_pod(version=101), "status": {"conditions": [{}]}}
    pods = Pods(api, clock, [event("ADDED", malformed), event("ADDED", raw_pod(uid="pod-1", version=102))])
    pods.reflector.watch_once()
    assert pods.phases == {"pod-1": "Running"}
    assert "one of the pods is skipped" in caplog.text


def test_a_watch_that_ends_is_begun_again_until_the_operator_stops(api: Any, clock: Clock) -> None:
    reflector = Pods(api, clock).reflector
    watches: list[int] = []

    def watch_once() -> None:
        watches.append(1)
        if len(watches) == 2:
            reflector.stop()
        if len(watches) == 1:
            raise ZeroDivisionError("ours")

    reflector.watch_once = watch_once  # type: ignore[method-assign]
    reflector._stopping.wait = lambda timeout=None: False  # type: ignore[method-assign]
    reflector.start()
    reflector._thread.join(60)
    assert len(watches) == 2
    assert reflector.ended
