"""The background thread of logs and scalars: intervals, the last call, and errors."""

from __future__ import annotations

import threading

import pytest

from mptraining_api.problems import InvalidData
from mptraining_records.writers.background import BackgroundWriter


def test_it_writes_at_intervals_and_once_more_at_the_end() -> None:
    calls: list[bool] = []
    several = threading.Event()

    def write(last: bool) -> None:
        calls.append(last)
        if len(calls) == 3:
            several.set()

    writer = BackgroundWriter(write, "/runs/one", name="test", on_failure=pytest.fail, seconds=0.001)
    writer.close()
    assert calls == [], "it was not started"
    writer = BackgroundWriter(write, "/runs/one", name="test", on_failure=pytest.fail, seconds=0.001)
    writer.start()
    writer.start()
    assert several.wait(20)
    writer.close()
    assert (calls[-1], any(calls[:-1])) == (True, False)
    assert [each.name for each in threading.enumerate()].count("test") == 0


@pytest.mark.parametrize(
    ("error", "message"),
    [(InvalidData("gs://a", "no permission"), "gs://a: no permission"), (KeyError("x"), "KeyError: 'x'")],
)
def test_an_error_is_reported_once_and_does_not_end_the_thread(error: Exception, message: str) -> None:
    told: list[str] = []
    calls: list[bool] = []

    def write(last: bool) -> None:
        calls.append(last)
        raise error

    writer = BackgroundWriter(write, "/runs/one", name="test", on_failure=told.append, seconds=0.001)
    writer.start()
    while len(calls) < 3:
        threading.Event().wait(0.001)
    writer.close()
    assert told == [message]


def test_closing_gives_up_after_a_time() -> None:
    stuck = threading.Event()
    writer = BackgroundWriter(
        lambda _: bool(stuck.wait(20)) and None, "/runs/one", name="test", on_failure=pytest.fail, seconds=0.001
    )
    writer.start()
    writer.close(0.05)
    assert "test" in [each.name for each in threading.enumerate()]
    stuck.set()
