"""kopf as a source of events: the resources that it watches, the ones that it ignores, the receiver of its events."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import queue
from collections import Counter
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from kopf._cogs.clients import watching
from kopf._core.reactor import orchestration, queueing

from mptraining_operator.plan.snapshot import Key
from mptraining_operator.watch import kopf_streams
from mptraining_operator.watch.cache import Cache
from mptraining_operator.watch.informer import Intake
from mptraining_operator.watch.work_queue import WorkQueue
from tests.unit.operator.api_objects import raw_job


def test_events_go_to_the_intake(clock: Any) -> None:
    cache, queue = Cache(clock), WorkQueue(clock)
    restarts: list[bool] = []
    arrives = kopf_streams.receiver(Intake(cache, queue), lambda: restarts.append(True))
    for type, raw in ((None, raw_job()), ("MODIFIED", raw_job(version=11, generation=2))):
        arrives(type, raw)
        assert (len(restarts), queue.take(0)) == (1, Key("team", "flowers"))
        queue.done(Key("team", "flowers"))
    arrives("DELETED", raw_job(version=12))
    assert cache.job_keys() == ()


def test_events_of_kopf_s_watch_go_to_the_intake_without_a_task_for_each_object(
    clock: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache, begun = Cache(clock), []
    events = [
        {"type": None, "object": raw_job()},
        watching.Bookmark.LISTED,
        {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}},
        {"type": "MODIFIED", "object": {"metadata": {}}},
        {"type": "ADDED", "object": raw_job("second", uid="job-2")},
    ]

    async def infinite_watch(**_: Any) -> AsyncIterator[Any]:
        for event in events:
            yield event
        await asyncio.Event().wait()

    async def kopfs(**given: Any) -> None:
        begun.append(given["resource"].plural)

    async def run() -> None:
        for plural in ("mptrainingjobs", "customresourcedefinitions"):
            resource = SimpleNamespace(plural=plural)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_watcher(resource), 0.2)

    monkeypatch.setattr(watching, "infinite_watch", infinite_watch)
    monkeypatch.setattr(queueing, "watcher", kopfs)
    receive = kopf_streams.receiver(Intake(cache, WorkQueue(clock)), lambda: None)
    with kopf_streams.without_tasks(receive):
        asyncio.run(run())
    assert {key.name for key in cache.job_keys()} == {"flowers", "second"}
    assert begun == ["customresourcedefinitions"]
    assert "one of the mptrainingjobs is skipped" in caplog.text
    assert queueing.watcher is kopfs


async def _watcher(resource: Any, namespace: str | None = None) -> None:
    await queueing.watcher(settings=None, resource=resource, namespace=namespace, processor=None)  # type: ignore[arg-type]


def test_a_watch_that_is_refused_or_silent_begins_again_and_ends_no_other(
    clock: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(clock)
    begun: Counter[str] = Counter()

    async def infinite_watch(*, namespace: str, **_: Any) -> AsyncIterator[Any]:
        begun[namespace] += 1
        if namespace == "forbidden" and begun[namespace] < 3:
            raise PermissionError("mptrainingjobs is forbidden")
        if namespace != "silent" or begun[namespace] == 2:
            yield {"type": None, "object": raw_job(uid=namespace, namespace=namespace)}
        await asyncio.Event().wait()

    async def run() -> None:
        resource = SimpleNamespace(plural="mptrainingjobs")
        watches = [asyncio.create_task(_watcher(resource, name)) for name in ("forbidden", "silent", "well")]
        while len(cache.job_keys()) < len(watches):
            await asyncio.sleep(0.01)
        assert not any(watch.done() for watch in watches)
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)

    monkeypatch.setattr(watching, "infinite_watch", infinite_watch)
    monkeypatch.setattr(kopf_streams, "_FIRST_PAUSE", 0.01)
    receive = kopf_streams.receiver(Intake(cache, WorkQueue(clock)), lambda: None)
    with kopf_streams.without_tasks(receive, silent_seconds=0.5):
        asyncio.run(asyncio.wait_for(run(), 60))
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert "in namespace forbidden ended: mptrainingjobs is forbidden" in caplog.text


def test_the_names_of_kopf_that_are_replaced_exist() -> None:
    """They are private; a version of kopf without them would watch nothing, or be slow."""
    wanted = "namespace settings resource processor operator_paused operator_indexed resource_indexed"
    assert set(inspect.signature(queueing.watcher).parameters) == set(wanted.split())
    watched = inspect.signature(watching.infinite_watch).parameters
    assert watched.keys() >= {"namespace", "settings", "resource", "operator_paused"}
    assert orchestration.queueing is queueing


def test_events_and_lists_after_the_first_are_counted(clock: Any) -> None:
    events: list[str] = []
    restarts: list[str] = []
    intake = Intake(Cache(clock), WorkQueue(clock))
    receive = kopf_streams.receiver(intake, lambda: None, events.append, restarts.append)
    # The list at kopf's start, a change, and the list after the watch ended with an error.
    types = (None, None, "MODIFIED", None, None, "MODIFIED")
    for version, type in enumerate(types, 10):
        receive(type, raw_job(version=version))
    assert events == ["mptrainingjobs"] * len(types)
    assert restarts == ["mptrainingjobs"]


def test_the_stream_begins_when_its_resource_is_served_and_end_on_stop(clock: Any, monkeypatch: Any) -> None:
    """kopf reads the served resources once, when it starts."""
    answers: list[bool | Exception] = [False, ConnectionError("away"), True, True, True]
    began: queue.SimpleQueue[int] = queue.SimpleQueue()

    def served() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def operator(*, stop_flag: asyncio.Event, **_: Any) -> None:
        began.put(len(answers))
        await stop_flag.wait()

    monkeypatch.setattr(kopf_streams, "_TICK", 0.01)
    monkeypatch.setattr(kopf_streams, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(kopf_streams.kopf, "operator", operator)
    intake = Intake(Cache(clock), WorkQueue(clock))
    restarts: list[str] = []
    streams = kopf_streams.WatchStreams(
        intake, namespaces=(), on_listed=lambda: None, served=served, on_restart=restarts.append
    )
    streams.start()
    assert began.get(timeout=240) == 2
    assert restarts == []
    streams._end()
    assert began.get(timeout=240) == 1
    assert restarts == ["mptrainingjobs"]
    assert streams.seconds_since_tick() < 60
    streams.stop(60)
    assert not streams._thread.is_alive()
    assert streams.seconds_since_tick() == math.inf
    streams.stop()
