"""Events about jobs: the same message once, and no caller ever waits for a write."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mptraining_api.kubernetes_api import EVENTS, ApiProblem
from mptraining_operator.event_recorder import (
    JOB_BURST,
    JOB_REFILL_SECONDS,
    LONGEST_MESSAGE,
    LONGEST_QUEUE,
    EventRecorder,
)
from mptraining_operator.plan.actions import EventRecord
from mptraining_operator.plan.snapshot import Key, Limits, Snapshot
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job


@pytest.fixture
def snapshot(clock: Clock) -> Snapshot:
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


def of_job(snapshot: Snapshot, number: int) -> Snapshot:
    return dataclasses.replace(snapshot, key=Key("team", f"job-{number}"), uid=f"uid-{number}")


def test_the_failure_after_thousands_of_starts_is_the_next_event(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    dropped: list[str] = []
    recorder = EventRecorder(api, host="op-0", clock=clock, count_dropped=dropped.append)
    for number in range(LONGEST_QUEUE + 5):
        recorder.record(of_job(snapshot, number), EventRecord("Started", "attempt 1"))
    assert dropped == ["QueueFull"] * 5
    recorder.record(snapshot, EventRecord("ProgramFailed", "no", "Warning"))
    assert recorder.write_next()
    (event,) = [raw for key, raw in api.objects.items() if key[0] == "events"]
    assert event["reason"] == "ProgramFailed"


def test_a_job_with_many_events_is_limited_and_its_warnings_apart(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    dropped: list[str] = []
    recorder = EventRecorder(api, host="op-0", clock=clock, count_dropped=dropped.append)
    for number in range(JOB_BURST + 3):
        recorder.record(snapshot, EventRecord("Many", str(number)))
    assert dropped == ["RateLimited"] * 3
    recorder.record(snapshot, EventRecord("ProgramFailed", "no", "Warning"))
    recorder.record(of_job(snapshot, 2), EventRecord("Started", "attempt 1"))
    assert len(dropped) == 3
    clock.now += JOB_REFILL_SECONDS
    recorder.record(snapshot, EventRecord("Many", "one more"))
    recorder.record(snapshot, EventRecord("Many", "and one too many"))
    assert len(dropped) == 4


def test_a_repeated_message_costs_no_token(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    dropped: list[str] = []
    recorder = EventRecorder(api, host="op-0", clock=clock, count_dropped=dropped.append)
    for _ in range(JOB_BURST * 2):
        recorder.record(snapshot, EventRecord("Pending", "waiting"))
        recorder.write_next()
    assert dropped == []
    assert len(api.objects) == 1


def test_the_thread_writes_the_rest_before_it_ends(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    announcer = EventRecorder(api, host="op-0", clock=clock)
    announcer.start()
    for number in range(5):
        announcer.record(snapshot, EventRecord("Left", str(number)))
    announcer.stop(5)
    assert len(api.objects) == 5


def test_an_event_that_expired_is_created_again(api: Any, clock: Clock, snapshot: Snapshot) -> None:
    announcer = EventRecorder(api, host="op-0", clock=clock)
    announcer.record(snapshot, EventRecord("Pending", "waiting"))
    announcer.write_next()
    api.objects.clear()
    clock.now += 3600
    announcer.record(snapshot, EventRecord("Pending", "waiting"))
    announcer.write_next()
    assert [call[0] for call in api.calls] == ["create", "patch", "create"]
