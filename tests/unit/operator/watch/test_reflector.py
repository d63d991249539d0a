"""Reflectors over a scripted API server: where a watch begins, where it resumes, and when it lists again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mptraining_api.kubernetes_api import PODS, ApiProblem, Resource
from mptraining_operator.plan.snapshot import Key, Limits
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache
from mptraining_operator.watch.informer import CHILD_STREAMS, Intake
from mptraining_operator.watch.reflector import Reflector
from mptraining_operator.watch.work_queue import WorkQueue
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job, raw_pod

KEY = Key("team", "flowers")
POD_STREAM = next(stream for stream in CHILD_STREAMS if stream.resource == PODS)


class Watches:
    """Replaces Cluster; each watch yields one script of events, or raises the error at its end."""

    def __init__(self, *scripts: list[dict[str, Any] | Exception]) -> None:
        self.scripts = list(scripts)
        self.versions: list[str] = []

    def watch(self, resource: Resource, namespace: str | None, version: str, **selectors: str) -> Iterator[bytes]:
        assert (resource, selectors) == (PODS, {"labelSelector": "mptraining.dev/job"})
        self.versions.append(version)
        for each in self.scripts.pop(0):
            if isinstance(each, Exception):
                raise each
            yield json.dumps(each).encode()


def event(type: str, raw: dict[str, Any]) -> dict[str, Any]:
    return {"type": type, "object": raw}


class Bench:
    def __init__(self, clock: Clock, *scripts: list[dict[str, Any] | Exception]) -> None:
        self.cache, self.queue = Cache(clock), WorkQueue(clock)
        self.cache.put_job(parse.job(raw_job()))
        self.watches = Watches(*scripts)
        self.lists = 0
        intake = Intake(self.cache, self.queue)
        self.reflector = Reflector(self.watches, intake, POD_STREAM, None, self._list, clock)  # type: ignore[arg-type]
        self.reflector._version = "100"

    def _list(self) -> int:
        self.lists += 1
        return 500

    def pods(self) -> dict[str, str]:
        found = self.cache.snapshot(KEY, Limits())
        assert found is not None
        return {pod.uid: pod.phase for pod in found.pods}


def test_events_reach_the_cache_and_the_next_watch_begins_after_the_last(clock: Clock) -> None:
    bookmark = event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "140", "creationTimestamp": None}})
    bench = Bench(
        clock,
        [
            event("ADDED", raw_pod(version=101, phase="Pending")),
            event("MODIFIED", raw_pod(version=102)),
            event("ADDED", raw_pod("flowers-1-1-x", uid="pod-1", version=103)),
        ],
        [event("DELETED", raw_pod(version=120)), bookmark],
        [],
    )
    bench.reflector.watch_once()
    assert bench.pods() == {"pod-0": "Running", "pod-1": "Running"}
    assert bench.queue.depth() == 0, "children change in bursts"
    clock.now += 1
    assert bench.queue.take(0) == KEY
    bench.reflector.watch_once()
    assert bench.pods() == {"pod-1": "Running"}
    bench.reflector.watch_once()
    assert bench.watches.versions == ["100", "103", "140"]
    assert bench.lists == 0


@pytest.mark.parametrize("in_stream", [True, False])
@pytest.mark.parametrize(("code", "reason", "lists"), [(410, "Expired", 1), (504, "Timeout", 1), (0, "NoAnswer", 0)])
def test_only_a_version_that_the_server_does_not_have_leads_to_a_list(
    clock: Clock, in_stream: bool, code: int, reason: str, lists: int
) -> None:
    status = {"kind": "Status", "code": code, "reason": reason, "message": "resource version"}
    gone: dict[str, Any] | Exception = event("ERROR", status) if in_stream else ApiProblem(code, reason, "version")
    bench = Bench(clock, [event("ADDED", raw_pod(version=101)), gone], [])
    with pytest.raises(ApiProblem, match="version"):
        bench.reflector.watch_once()
    bench.reflector.watch_once()
    assert (bench.lists, bench.watches.versions) == (lists, ["100", "500" if lists else "101"])


def test_after_a_minute_without_a_bookmark_the_resource_is_listed(clock: Clock) -> None:
    """With a version of before the restore of an etcd backup, the API server answers 200 and is silent."""

    class Silent(Watches):
        def watch(self, *arguments: Any, **selectors: str) -> Iterator[bytes]:
            yield from super().watch(*arguments, **selectors)
            if len(self.versions) == 1:
                clock.now += 90
                raise ApiProblem(0, "NoAnswer", "Read timed out")

    bench = Bench(clock)
    watches = Silent([event("ADDED", raw_pod(version=101))], [])
    bench.reflector._cluster = watches  # type: ignore[assignment]
    with pytest.raises(ApiProblem):
        bench.reflector.watch_once()
    bench.reflector.watch_once()
    assert (bench.lists, watches.versions) == (1, ["100", "500"])


def test_one_object_that_cannot_be_read_stops_no_watch(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    malformed = {**raw_pod(version=101), "status": {"conditions": [{}]}}
    bench = Bench(clock, [event("ADDED", malformed), event("ADDED", raw_pod(uid="pod-1", version=102))])
    bench.reflector.watch_once()
    assert bench.pods() == {"pod-1": "Running"}
    assert "one of the pods is skipped" in caplog.text


def test_a_watch_that_ends_is_begun_again_until_the_operator_stops(clock: Clock) -> None:
    bench = Bench(clock)
    scripts: list[int] = []

    def watch_once() -> None:
        scripts.append(1)
        if len(scripts) == 2:
            bench.reflector.stop()
        if len(scripts) == 1:
            raise ZeroDivisionError("ours")

    bench.reflector.watch_once = watch_once  # type: ignore[method-assign]
    bench.reflector._stopping.wait = lambda timeout=None: False  # type: ignore[method-assign]
    bench.reflector.start(7)
    bench.reflector._thread.join(60)
    assert len(scripts) == 2
    assert not bench.reflector.alive
