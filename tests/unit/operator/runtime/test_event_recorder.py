"""Events about jobs: the same message once, and no caller ever waits for a write."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from mptraining_api.kubernetes_api import EVENTS, ApiProblem
from mptraining_api.status import EventRecord
from mptraining_operator.runtime.event_recorder import (
    JOB_BURST,
    JOB_REFILL_SECONDS,
    LONGEST_MESSAGE,
    LONGEST_QUEUE,
    EventRecorder,
)
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.values import Key
from tests.fakes import Clock


class Recorder(EventRecorder):
    """Records about the job `flowers`, or about one of many others; `dropped` lists the reasons."""

    def __init__(self, api: Any, clock: Clock) -> None:
        self.api = api
        self.dropped: list[str] = []
        metrics = Metrics(monotonic=clock)
        metrics.count_dropped_event = self.dropped.append
        super().__init__(api, host="op-0", clock=clock, metrics=metrics)

    def say(
        self, reason: str, message: str, type: Literal["Normal", "Warning"] = "Normal", *, other: int | None = None
    ) -> None:
        key, uid = Key("team", "flowers"), "job-1"
        if other is not None:
            key, uid = Key("team", f"job-{other}"), f"uid-{other}"
        self.record("MPTrainingJob", key, uid, EventRecord(reason, message, type))

    def write(self, reason: str, message: str) -> None:
        self.say(reason, message)
        self.write_next()

    @property
    def event(self) -> dict[str, Any]:
        (event,) = [raw for key, raw in self.api.objects.items() if key[0] == "events"]
        return dict(event)

    @property
    def verbs(self) -> list[str]:
        return [call[0] for call in self.api.calls]


@pytest.fixture
def recorder(api: Any, clock: Clock) -> Recorder:
    return Recorder(api, clock)


def test_an_event_is_about_the_job(recorder: Recorder) -> None:
    recorder.say("Restarting", "x" * 5000, "Warning")
    assert recorder.verbs == []
    assert [recorder.write_next(), recorder.write_next()] == [True, False]
    event = recorder.event
    assert event["metadata"]["namespace"] == "team"
    assert event["metadata"]["name"].startswith("flowers.")
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("MPTrainingJob", "flowers", "job-1")
    assert about["apiVersion"] == "mptraining.dev/v1alpha1"
    assert (event["reason"], event["type"], event["count"]) == ("Restarting", "Warning", 1)
    assert len(event["message"]) == LONGEST_MESSAGE
    assert event["source"] == {"component": "mptraining-operator", "host": "op-0"}


def test_repeated_events_are_counted(recorder: Recorder, clock: Clock) -> None:
    recorder.write("Pending", "waiting")
    recorder.write("Pending", "waiting")
    assert recorder.verbs == ["create"]
    clock.now += 301
    recorder.write("Pending", "waiting")
    assert recorder.verbs == ["create", "patch"]
    assert recorder.event["count"] == 2
    recorder.write("Pending", "other words")
    assert len(recorder.api.objects) == 2


def test_an_event_that_expired_is_created_again(recorder: Recorder, clock: Clock) -> None:
    recorder.write("Pending", "waiting")
    recorder.api.objects.clear()
    clock.now += 3600
    recorder.write("Pending", "waiting")
    assert recorder.verbs == ["create", "patch", "create"]


def test_an_event_of_the_previous_leader_is_not_repeated(api: Any, clock: Clock) -> None:
    for _ in range(2):
        Recorder(api, clock).write("Started", "attempt 1")
    assert len(api.objects) == 1


def test_refused_events_raise_no_error(recorder: Recorder) -> None:
    recorder.api.refuse("create", EVENTS, ApiProblem(403, "Forbidden", "no"))
    recorder.write("Started", "attempt 1")
    assert recorder.api.objects == {}
    recorder.write("Started", "attempt 1")
    assert len(recorder.api.objects) == 1


def test_the_failure_after_thousands_of_starts_is_the_next_event(recorder: Recorder) -> None:
    for number in range(LONGEST_QUEUE + 5):
        recorder.say("Started", "attempt 1", other=number)
    assert recorder.dropped == ["QueueFull"] * 5
    recorder.say("ProgramFailed", "no", "Warning")
    assert recorder.write_next()
    assert recorder.event["reason"] == "ProgramFailed"


def test_a_job_with_many_events_is_limited_and_its_warnings_apart(recorder: Recorder, clock: Clock) -> None:
    for number in range(JOB_BURST + 3):
        recorder.say("Many", str(number))
    assert recorder.dropped == ["RateLimited"] * 3
    recorder.say("ProgramFailed", "no", "Warning")
    recorder.say("Started", "attempt 1", other=2)
    assert len(recorder.dropped) == 3
    clock.now += JOB_REFILL_SECONDS
    recorder.say("Many", "one more")
    recorder.say("Many", "and one too many")
    assert len(recorder.dropped) == 4


def test_a_repeated_message_costs_no_token(recorder: Recorder) -> None:
    for _ in range(JOB_BURST * 2):
        recorder.write("Pending", "waiting")
    assert (recorder.dropped, len(recorder.api.objects)) == ([], 1)


def test_the_thread_writes_the_rest_before_it_ends(recorder: Recorder) -> None:
    recorder.start()
    for number in range(5):
        recorder.say("Left", str(number))
    recorder.stop(5)
    assert len(recorder.api.objects) == 5
