"""kopf as the watch of primary resources: an operator of kopf for each namespace, of what is known there."""

from __future__ import annotations

import asyncio
import queue
import time
from types import SimpleNamespace
from typing import Any

import kopf
import pytest

from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.jobs.watch.streams import JobStream
from mptraining_operator.runtime import kopf_streams
from mptraining_operator.runtime.informer import Stream
from mptraining_operator.runtime.kopf_streams import KopfStreams
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue
from mptraining_operator.sweeps.cache import SweepCache, SweepStream
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job
from tests.unit.operator.sweeps.swept import document

KEY = Key("team", "flowers")


class Bench:
    """kopf's streams of jobs and sweeps; `known` are (plural, namespace), `requests` counts the lists asked for."""

    def __init__(self, clock: Any, *namespaces: str | None, known: set[tuple[str, str | None]]) -> None:
        self.jobs, self.queue = Cache(clock), WorkQueue(clock)
        self.sweeps = SweepCache()
        self.streams = (JobStream(self.jobs, self.queue), SweepStream(self.sweeps, self.queue))
        self.known = known
        self.requests = 0
        self.listed: list[str | None] = []
        informer: Any = SimpleNamespace(
            namespaces=namespaces or (None,),
            is_known=self._is_known,
            request_list=self._request_list,
            list_primary=self.listed.append,
        )
        self.metrics = Metrics(monotonic=clock)
        self.kopf = KopfStreams(self.streams, informer, self.metrics, clock)

    def _is_known(self, streams: tuple[Stream, ...], namespace: str | None) -> bool:
        return all((stream.resource.plural, namespace) in self.known for stream in streams)

    def _request_list(self) -> None:
        self.requests += 1


JOBS = ("mptrainingjobs", None)
SWEEPS = ("mptrainingsweeps", None)


def test_objects_go_to_the_streams_and_a_malformed_one_stops_nothing(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(clock, known=set())
    jobs, sweeps = bench.streams
    for type, raw in ((None, raw_job()), ("MODIFIED", raw_job(version=11, generation=2))):
        kopf_streams.receive(jobs, type, raw)
        assert bench.queue.take(0) == KEY
        bench.queue.done(KEY)
    kopf_streams.receive(jobs, "MODIFIED", {"metadata": {}})
    assert "an event about one of the mptrainingjobs is skipped" in caplog.text
    raw = document()
    raw["metadata"] |= {"uid": "sweep-1", "resourceVersion": "12"}
    kopf_streams.receive(sweeps, "ADDED", raw)
    assert bench.sweeps.key_of("sweep-1") == Key("team", "lr")
    kopf_streams.receive(jobs, "DELETED", raw_job(version=12))
    assert bench.jobs.jobs() == ()


def test_a_list_of_kopf_asks_for_one_that_has_the_deletions_and_later_ones_are_counted(clock: Clock) -> None:
    bench = Bench(clock, known={JOBS})
    handle = bench.kopf._handler(bench.streams[0])
    # The list at kopf's start, a change, and the list after the watch ended with an error.
    for version, change in enumerate((None, None, "MODIFIED", None, None, "MODIFIED"), 10):
        asyncio.run(handle(event={"type": change, "object": raw_job(version=version)}))
    assert bench.requests == 4
    text = bench.metrics.text().decode()
    assert 'mptraining_watch_restarts_total{resource="mptrainingjobs"} 1.0' in text
    assert 'mptraining_watch_last_event_age_seconds{resource="mptrainingjobs"} 0.0' in text


class Operators:
    """Replaces `kopf.operator`: reports where it runs and what it watches, and ends as the test says."""

    def __init__(self) -> None:
        self.began: queue.SimpleQueue[tuple[str | None, tuple[str, ...]]] = queue.SimpleQueue()
        self.errors: dict[str | None, list[Exception]] = {}

    async def __call__(
        self, *, registry: kopf.OperatorRegistry, stop_flag: asyncio.Event, namespaces: Any = (None,), **_: Any
    ) -> None:
        (namespace,) = namespaces
        handlers = registry._watching._handlers
        self.began.put((namespace, tuple(str(handler.id) for handler in handlers)))
        if self.errors.get(namespace):
            raise self.errors[namespace].pop(0)
        await stop_flag.wait()


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    operators = Operators()
    monkeypatch.setattr(kopf_streams, "_TICK", 0.01)
    monkeypatch.setattr(kopf_streams, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(kopf_streams.kopf, "operator", operators)
    return operators


def test_kopf_watches_what_is_known_and_begins_again_when_more_is(operators: Operators) -> None:
    """kopf reads the served resources once, when it starts, and would end with the error of one that is refused."""
    bench = Bench(time.monotonic, known=set())
    bench.kopf.start()
    with pytest.raises(queue.Empty):
        operators.began.get(timeout=0.1)
    bench.known.add(JOBS)
    assert operators.began.get(timeout=60) == (None, ("mptrainingjobs",))
    bench.known.add(SWEEPS)
    bench.kopf.restart()
    assert operators.began.get(timeout=60) == (None, ("mptrainingjobs", "mptrainingsweeps"))
    assert bench.kopf.seconds_since_tick() < 60
    bench.kopf.stop(60)
    assert not bench.kopf._thread.is_alive()


def test_an_error_in_one_namespace_ends_no_other(operators: Operators, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(time.monotonic, "a", "forbidden", known={("mptrainingjobs", "a"), ("mptrainingjobs", "forbidden")})
    operators.errors["forbidden"] = [PermissionError("mptrainingjobs is forbidden")] * 2
    bench.kopf.start()
    began = sorted(operators.began.get(timeout=60)[0] or "" for _ in range(4))
    assert began == ["a", "forbidden", "forbidden", "forbidden"]
    assert "of kopf in namespace forbidden ended and begin again in" in caplog.text
    assert bench.listed == ["forbidden"] * 2, "a resource that is gone is not watched again before it is listed"
    bench.kopf.stop(60)
    assert not bench.kopf._thread.is_alive()


def test_kopf_only_watches() -> None:
    settings = kopf.OperatorSettings()
    asyncio.run(kopf_streams._configure(settings))
    assert not settings.posting.enabled
    registry = Bench(time.monotonic, known=set()).kopf._registry(())
    assert not registry._changing._handlers
    assert not registry._spawning._handlers
