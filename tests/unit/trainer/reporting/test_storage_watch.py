"""Storage that does not respond: reported at most every ten seconds, and a mistake only if it never responded."""

from __future__ import annotations

import io
import socket
import threading
from pathlib import Path

import pytest

from mptraining_api import events
from mptraining_api.launch import WorkerIdentity
from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_records.storage import gcs_clients, storage
from mptraining_trainer.reporting.errors import report_storage_retries, unreachable_storage_as_invalid_data
from mptraining_trainer.reporting.telemetry import Telemetry

SEAT = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=1, incarnation="a")
SILENT = StorageUnavailable("gs://bucket/run", "the bucket cannot be reached (Connection refused)")


def test_retries_are_reported_once_in_ten_seconds() -> None:
    clock, said = [0.0], io.StringIO()
    with report_storage_retries(Telemetry(SEAT, None, stream=said, monotonic=lambda: clock[0])):
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
    telemetry = Telemetry(SEAT, f"{bucket}/run", stream=said, monotonic=lambda: clock[0], part_seconds=0.05)
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
