"""kopf as a source of events: the resources that it watches, the ones that it ignores, the receiver of its events."""

from __future__ import annotations

import asyncio
import math
import queue
from collections.abc import Callable
from typing import Any

from mptraining_api.kubernetes_api import JOBS
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.watch import kopf_streams
from mptraining_operator.watch.cache import Cache
from mptraining_operator.watch.informer import STREAMS, Intake
from mptraining_operator.watch.work_queue import WorkQueue

Make = Callable[..., dict[str, Any]]


def test_streams_are_narrow_and_nothing_is_written() -> None:
    settings = kopf_streams.settings()
    assert settings.watching.label_selectors["pods"] == "mptraining.dev/job"
    assert settings.watching.label_selectors["jobs"] == "mptraining.dev/job"
    assert "events" not in {stream.resource.plural for stream in STREAMS}, "a cluster's events are far too many"
    assert "mptrainingjobs" not in settings.watching.label_selectors
    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.scanning.disabled
    storage = settings.persistence.diffbase_storage
    assert storage.build(body={}) == {}  # type: ignore[arg-type]
    assert storage.fetch(body={}) is None  # type: ignore[arg-type]


def test_events_go_to_the_intake(clock: Any, raw_job: Make) -> None:
    cache, queue = Cache(clock), WorkQueue(clock)
    restarts: list[bool] = []
    handle = kopf_streams._handler(Intake(cache, queue), JOBS, lambda: restarts.append(True))

    def arrives(type: str | None, raw: dict[str, Any]) -> None:
        asyncio.run(handle(event={"type": type, "object": raw}, type=type, body=None))

    arrives(None, raw_job())
    assert (len(restarts), queue.take(0)) == (1, Key("team", "flowers"))
    queue.done(Key("team", "flowers"))
    arrives("MODIFIED", raw_job(version=11, generation=2))
    assert (len(restarts), queue.take(0)) == (1, Key("team", "flowers"))
    queue.done(Key("team", "flowers"))
    arrives("DELETED", raw_job(version=12))
    assert cache.job_keys() == ()


def test_events_and_lists_after_the_first_are_counted(clock: Any, raw_job: Make) -> None:
    events: list[str] = []
    restarts: list[str] = []
    intake = Intake(Cache(clock), WorkQueue(clock))
    handle = kopf_streams._handler(intake, JOBS, lambda: None, events.append, restarts.append)
    # The list at kopf's start, a change, and the list after the watch ended with an error.
    types = (None, None, "MODIFIED", None, None, "MODIFIED")
    for version, type in enumerate(types, 10):
        asyncio.run(handle(event={"type": type, "object": raw_job(version=version)}, type=type, body=None))
    assert events == ["mptrainingjobs"] * len(types)
    assert restarts == ["mptrainingjobs"]


def test_every_stream_has_a_handler(clock: Any) -> None:
    handlers = kopf_streams.registry(Intake(Cache(clock), WorkQueue(clock)), lambda: None)
    found = {handler.id for handler in handlers._watching.get_all_handlers()}
    assert found == {stream.resource.plural for stream in STREAMS}


def test_streams_begin_when_every_resource_is_served_and_end_on_stop(clock: Any, monkeypatch: Any) -> None:
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
        intake, namespaces=(), on_listed=lambda: None, all_served=served, on_restart=restarts.append
    )
    streams.start()
    assert began.get(timeout=240) == 2
    assert restarts == []
    streams.restart()
    assert began.get(timeout=240) == 1
    assert restarts == [stream.resource.plural for stream in STREAMS]
    assert streams.seconds_since_tick() < 60
    streams.stop(60)
    assert not streams._thread.is_alive()
    assert streams.seconds_since_tick() == math.inf
    streams.restart()
