"""Errors as one line with a next step and the right outcome: TensorFlow's, and storage that does not respond."""

from __future__ import annotations

import io
import re
import socket
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from mptraining_api import events, outcomes
from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import Diverged, InvalidData, Problem, StorageUnavailable
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import gcs_clients, storage
from mptraining_trainer.report.errors import report_storage_retries, to_problem, unreachable_storage_as_invalid_data
from mptraining_trainer.report.telemetry import Telemetry
from tests.jobs import resolved_job


def job(workers: int = 1, *, function: bool = False) -> ResolvedJob:
    program = {"program": {"function": {"entryPoint": "model:build"}}} if function else {}
    return resolved_job(workers=workers, **program)


def error(kind: Any, message: str) -> Any:
    return kind(None, None, message)


invalid = partial(error, tf.errors.InvalidArgumentError)


# TensorFlow's wording: the location, then the cause, then the location again.
GRAPH = "Graph execution error:\n\nDetected at node X defined at (most recent call last):\n{}\n\t [[{{{{node X}}}}]]"
LABEL = "Received a label value of 12 which is outside the valid range of [0, 10)."
NO_KERNEL = "A deterministic GPU implementation of FooOp is not available."
LOST = "Collective ops is aborted by: The following tasks are unhealthy (stopped sending heartbeats)"


@pytest.mark.parametrize(
    ("raised", "workers", "reason", "message"),
    [
        (error(tf.errors.UnavailableError, GRAPH.format(LOST)), 2, "PeerLost", LOST),
        (error(tf.errors.AbortedError, "RecvBuf expects a different step"), 2, "PeerLost", "a different step"),
        (error(tf.errors.DeadlineExceededError, "Barrier timed out"), 2, "PeerLost", "Barrier timed out"),
        (RuntimeError("Connection reset by peer"), 2, "PeerLost", "whole gang starts again"),
        (RuntimeError("my own mistake"), 2, "ProgramFailed", "RuntimeError: my own mistake"),
        (error(tf.errors.UnavailableError, "no such thing"), 1, "ProgramFailed", "UnavailableError: no such thing"),
        (error(tf.errors.ResourceExhaustedError, "OOM when allocating tensor"), 1, "ProgramFailed", "Lower training"),
        (MemoryError(), 1, "ProgramFailed", "MemoryError. Lower training.batchSize"),
        (invalid("{{node __wrapped__IteratorGetNext}} Invalid PNG"), 1, "InvalidData", "PNG.*mptj records verify"),
        (invalid(GRAPH.format(f"{LABEL}  Values: 1")), 1, "InvalidData", f"^spec.data.label: {re.escape(LABEL)} Give"),
        (error(tf.errors.UnimplementedError, NO_KERNEL), 1, "InvalidProgram", "FooOp.*training.deterministic: Never"),
        (ValueError("odd"), 1, "ProgramFailed", "^ValueError: odd$"),
    ],
)
def test_each_error_has_its_outcome(raised: Exception, workers: int, reason: str, message: str) -> None:
    problem = to_problem(raised, job(workers))
    assert problem.reason == reason
    assert outcomes.by_reason(problem.reason).reason == reason
    problem_line = str(problem)
    assert "\n" not in problem_line
    assert "Graph execution error" not in problem_line
    assert re.search(message if "^" in message or ".*" in message else re.escape(message), problem_line)


def test_an_error_that_tensorflow_found_while_tracing_the_users_model_is_the_programs() -> None:
    raised = ValueError("in user code:\n\n    File model.py, line 3, in call\n\n    ValueError: shapes do not fit")
    problem = to_problem(raised, job(function=True))
    assert (problem.reason, problem.found) == ("InvalidProgram", "ValueError: shapes do not fit")


def test_a_problem_inside_another_error_is_reported_and_a_long_message_cut() -> None:
    cause = Diverged("step 3", "no number")
    around = RuntimeError("around it")
    around.__cause__ = cause
    assert to_problem(around, job()) is cause
    assert len(to_problem(ValueError("x" * 5000), job()).found) < 600


SEAT = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="a")
SILENT = StorageUnavailable("gs://bucket/run", "the bucket cannot be reached (Connection refused)")


def test_retries_are_reported_once_in_ten_seconds() -> None:
    clock, said = [0.0], io.StringIO()
    with report_storage_retries(Telemetry(SEAT, None, stream=said, now=lambda: clock[0])):
        for at in (0.0, 1.0, 9.9, 10.0, 12.0):
            clock[0] = at
            gcs_clients.endpoint().report_retry("gs://bucket/run", "HTTP 503")
    gcs_clients.endpoint().report_retry("gs://bucket/run", "HTTP 503 after the block")
    lines = [events.parse(line) for line in said.getvalue().splitlines()]
    assert [(line.level, line.topic, line.message) for line in lines if isinstance(line, events.Notice)] == [
        ("Warning", "StorageRetried", "gs://bucket/run: HTTP 503; trying again"),
        ("Warning", "StorageRetried", "gs://bucket/run: HTTP 503; trying again (2 new tries since the last line)"),
    ]


def test_a_service_that_never_answered_the_first_attempt_is_a_mistake_and_no_other_problem(tmp_path: Path) -> None:
    found = unreachable_storage_as_invalid_data(SILENT, SEAT, has_responded=False)
    assert isinstance(found, InvalidData)
    assert str(found).startswith(f"{SILENT.where}: {SILENT.found}. It never answered")
    later = SEAT.model_copy(update={"attempt": 2})
    full = StorageUnavailable(str(tmp_path), "the disk is full")
    other = Problem("", "something else")
    for problem, identity in ((SILENT, later), (full, SEAT), (other, SEAT)):
        assert unreachable_storage_as_invalid_data(problem, identity, has_responded=False) is problem
    assert unreachable_storage_as_invalid_data(SILENT, SEAT, has_responded=True) is SILENT


def test_events_that_a_bucket_refuses_are_in_the_next_part(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = [0.0], io.StringIO()
    telemetry = Telemetry(SEAT, f"{bucket}/run", stream=said, now=lambda: clock[0], part_seconds=0.05)
    with socket.socket() as closed, monkeypatch.context() as away:
        closed.bind(("127.0.0.1", 0))
        away.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{closed.getsockname()[1]}")
        with report_storage_retries(telemetry):
            telemetry.notice("One", "said while the bucket was away")
            while "EventsNotKept" not in said.getvalue():
                threading.Event().wait(0.02)
    telemetry.notice("Two", "said later")
    telemetry.close()
    parts = storage.list_objects(f"{bucket}/run/events")
    assert "".join(storage.read(part.uri).decode() for part in parts) == said.getvalue()
    assert [topic in said.getvalue() for topic in ("One", "StorageRetried", "EventsNotKept", "Two")] == [True] * 4
