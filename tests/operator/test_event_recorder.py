"""Events about jobs: the same message once, and no caller ever waits for a write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mptraining_api.kubernetes_api import EVENTS, ApiProblem
from mptraining_operator.event_recorder import LONGEST_MESSAGE, LONGEST_QUEUE, EventRecorder
from mptraining_operator.plan.actions import EventRecord
from mptraining_operator.plan.snapshot import Key, Limits, Snapshot
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache
from tests.fakes import Clock


@pytest.fixture
def snapshot(raw_job: Callable[..., dict[str, Any]], clock: Clock) -> Snapshot:
    cache = Cache(clock)
    cache.put_job(parse.job(raw_job()))
    found = cache.snapshot(Key("team", "flowers"), Limits())
    assert found is not None
    return found


def test_an_event_is_about_the_job(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    announcer = EventRecorder(api, host="op-0", clock=clock)
    announcer.record(snapshot, EventRecord("Restarting", "x" * 5000, "Warning"))
    assert api.calls == []
    assert announcer.write_next()
    assert not announcer.write_next()
    (event,) = [raw for key, raw in api.objects.items() if key[0] == "events"]
    assert event["metadata"]["namespace"] == "team"
    assert event["metadata"]["name"].startswith("flowers.")
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("MPTrainingJob", "flowers", "job-1")
    assert about["apiVersion"] == "mptraining.dev/v1alpha1"
    assert (event["reason"], event["type"], event["count"]) == ("Restarting", "Warning", 1)
    assert len(event["message"]) == LONGEST_MESSAGE
    assert event["source"] == {"component": "mptraining-operator", "host": "op-0"}


def test_repeated_events_are_counted(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    announcer = EventRecorder(api, host="op-0", clock=clock)

    def say(message: str = "waiting") -> None:
        announcer.record(snapshot, EventRecord("Pending", message))
        announcer.write_next()

    say()
    say()
    assert [call[0] for call in api.calls] == ["create"]
    clock.now += 301
    say()
    assert [call[0] for call in api.calls] == ["create", "patch"]
    (event,) = [raw for key, raw in api.objects.items() if key[0] == "events"]
    assert event["count"] == 2
    say("other words")
    assert len(api.objects) == 2


def test_an_event_that_expired_is_created_again(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    announcer = EventRecorder(api, host="op-0", clock=clock)
    announcer.record(snapshot, EventRecord("Pending", "waiting"))
    announcer.write_next()
    api.objects.clear()
    clock.now += 3600
    announcer.record(snapshot, EventRecord("Pending", "waiting"))
    announcer.write_next()
    assert [call[0] for call in api.calls] == ["create", "patch", "create"]


def test_an_event_of_the_previous_leader_is_not_repeated(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    for _ in range(2):
        announcer = EventRecorder(api, host="op-0", clock=clock)
        announcer.record(snapshot, EventRecord("Started", "attempt 1"))
        assert announcer.write_next()
    assert len(api.objects) == 1


def test_refused_events_raise_no_error(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    api.refuse("create", EVENTS, ApiProblem(403, "Forbidden", "no"))
    announcer = EventRecorder(api, host="op-0", clock=clock)
    announcer.record(snapshot, EventRecord("Started", "attempt 1"))
    assert announcer.write_next()
    announcer.record(snapshot, EventRecord("Started", "attempt 1"))
    assert announcer.write_next()
    assert len(api.objects) == 1


def test_too_many_are_dropped_rather_than_waited_for(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    announcer = EventRecorder(api, host="op-0", clock=clock)
    for number in range(LONGEST_QUEUE + 5):
        announcer.record(snapshot, EventRecord("Many", str(number)))
    assert announcer.dropped == 5


def test_the_thread_writes_the_rest_before_it_ends(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    announcer = EventRecorder(api, host="op-0", clock=clock)
    announcer.start()
    for number in range(5):
        announcer.record(snapshot, EventRecord("Left", str(number)))
    announcer.stop(5)
    assert len(api.objects) == 5


def test_a_recorder_that_was_never_started_can_be_stopped(api: Any, clock: Clock) -> None:
    """SIGTERM may arrive in the operator's first moment."""
    EventRecorder(api, host="op-0", clock=clock).stop()
