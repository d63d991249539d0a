"""Notifications: the Events that are one, what is posted, retries, and a receiver that hangs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mptraining_api import outcomes
from mptraining_api.problems import InvalidSpec
from mptraining_api.status import Attempt, EventRecord, JobStatus, Phase
from mptraining_operator.jobs.notifier import LONGEST_QUEUE, Notifier, occasions
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.snapshot import Snapshot
from mptraining_operator.runtime.values import Key
from mptraining_operator.settings import NotificationSettings
from tests.testbed.http_stub import Handler, HttpStub

MESSAGE = 'worker 0: "flowers"\n\\ is no folder'


def ended(outcome: outcomes.Outcome) -> JobStatus:
    status = JobStatus(current_attempt=1, attempts=[Attempt(number=1)])
    return conditions.with_finished(status, outcome, MESSAGE, 0.0, 1)


def restarting(outcome: outcomes.Outcome, *before: outcomes.Outcome) -> JobStatus:
    found = [Attempt(number=number, outcome=each.reason) for number, each in enumerate((*before, outcome), start=1)]
    status = JobStatus(current_attempt=len(found), attempts=found)
    return conditions.with_waiting(status, Phase.RESTARTING, outcome.reason, MESSAGE, 0.0, 1)


@pytest.mark.parametrize(
    ("status", "reason", "found"),
    [
        (ended(outcomes.SUCCEEDED), "Succeeded", {"Complete"}),
        (ended(outcomes.PROGRAM_FAILED), "ProgramFailed", {"Failed"}),
        (ended(outcomes.NO_PROGRESS), "NoProgress", {"Failed", "NoProgress"}),
        (ended(outcomes.PROGRAM_FAILED), "StatusUnreadable", set()),
        (restarting(outcomes.PROGRAM_FAILED), "Restarting", set()),
        (restarting(outcomes.NO_PROGRESS, outcomes.PREEMPTED), "Restarting", {"NoProgress"}),
        (restarting(outcomes.NO_PROGRESS, outcomes.NO_PROGRESS), "Restarting", set()),
        (JobStatus(), "Restarting", set()),
    ],
)
def test_a_job_that_ends_or_stalls_for_the_first_time_is_an_occasion(
    status: JobStatus, reason: str, found: set[str]
) -> None:
    assert occasions(status, EventRecord(reason, MESSAGE)) == found


@contextmanager
def notifying(
    respond: Callable[[int, Handler], object], **settings: Any
) -> Iterator[tuple[HttpStub, Callable[[JobStatus], None]]]:
    """Yield a receiver on this machine, and a function that records the end of a job with that status."""
    stopping = threading.Event()
    with HttpStub(respond) as server:
        chosen = NotificationSettings(url="${HOOK}/T0/${TOKEN}", **settings)
        notifier = Notifier(chosen, {"HOOK": server.address, "TOKEN": "s3cret"}, first_pause=0.01)
        notifier.start(stopping)

        def notify(status: JobStatus) -> None:
            running = conditions.condition(status, "Running")
            assert running is not None
            snapshot = Snapshot(Key("team", "flowers"), "uid", 1, 0.0, None, status)
            notifier.notify(snapshot, EventRecord(running.reason, MESSAGE))

        yield server, notify
        stopping.set()


def received(server: HttpStub, count: int) -> list[tuple[str, Any]]:
    with server.arrived:
        assert server.arrived.wait_for(lambda: len(server.requests) >= count, timeout=10)
    return [(request.path, json.loads(request.body)) for request in server.requests]


def test_the_events_of_the_settings_are_posted_with_the_message_escaped() -> None:
    template = '{"where": {"job": "{namespace}/{job}"}, "text": "{phase} by {reason}: {message}"}'
    with notifying(lambda _, handler: handler.answer(204), template=template, events=("Failed",)) as (server, notify):
        notify(ended(outcomes.SUCCEEDED))
        notify(ended(outcomes.INVALID_DATA))
        text = f"Failed by InvalidData: {MESSAGE}"
        assert received(server, 1) == [("/T0/s3cret", {"where": {"job": "team/flowers"}, "text": text})]


@pytest.mark.parametrize(("first", "requests"), [(503, 3), (429, 3), (404, 2)])
def test_an_answer_of_a_busy_receiver_is_retried_and_no_log_has_the_url(
    first: int, requests: int, caplog: pytest.LogCaptureFixture
) -> None:
    with notifying(lambda number, handler: handler.answer(200 if number else first)) as (server, notify):
        notify(ended(outcomes.SUCCEEDED))
        notify(ended(outcomes.PROGRAM_FAILED))
        texts = [body["text"].split(" (")[0] for _, body in received(server, requests)]
    assert texts == ["team/flowers: Succeeded"] * (requests - 1) + ["team/flowers: Failed"]
    assert f"status {first}" in caplog.text
    assert "s3cret" not in caplog.text


def test_a_receiver_that_hangs_blocks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    hangs = threading.Event()
    with notifying(lambda _, handler: hangs.wait(10) and handler.answer(200)) as (server, notify):
        notify(ended(outcomes.SUCCEEDED))
        received(server, 1)
        began = time.monotonic()
        for _ in range(LONGEST_QUEUE + 1):
            notify(ended(outcomes.SUCCEEDED))
        assert time.monotonic() - began < 5
        hangs.set()
    assert "a notification was dropped" in caplog.text


def test_a_url_whose_variable_is_not_set_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidSpec, match=r"^notifications.url: no variable TOKEN. Set it in extraEnv"):
        Notifier(NotificationSettings(url="https://${HOST}/${TOKEN}"), {"HOST": "hooks.example"})
