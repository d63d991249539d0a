"""The report on a signal: it contains state and stacks, whatever is stuck, and never ends the process."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mptraining_operator.__main__ import JsonLines
from mptraining_operator.monitoring import diagnostics as diagnostics_module
from mptraining_operator.monitoring.diagnostics import Diagnostics, thread_stacks


class Stuck:
    """A thread that holds a lock until the test ends."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.holds = threading.Event()
        self.thread = threading.Thread(target=self.hold_the_lock, name="worker-3", daemon=True)
        self.thread.start()
        assert self.holds.wait(60)

    def hold_the_lock(self) -> None:
        with self.lock:
            self.holds.set()
            self.released.wait()

    def read(self) -> int:
        with self.lock:
            return 1


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    found = Stuck()
    yield found
    found.released.set()
    found.thread.join(60)


def written(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The lines of the log, parsed."""
    return [json.loads(JsonLines().format(record)) for record in caplog.records]


def test_the_report_has_every_part_and_the_stack_of_every_thread(
    caplog: pytest.LogCaptureFixture, stuck: Stuck
) -> None:
    parts: dict[str, Callable[[], Any]] = {
        "queue": lambda: {"depth": 2, "next": {"team/flowers": 0.5}},
        "lease": lambda: {"leading": True},
    }
    caplog.set_level(logging.INFO)
    Diagnostics(parts, monotonic=time.monotonic, seconds=60).report()
    first, *threads = written(caplog)
    assert first["queue"] == {"depth": 2, "next": {"team/flowers": 0.5}}
    assert first["lease"] == {"leading": True}
    stacks = {line["message"]: line["stack"] for line in threads}
    assert any(name.startswith("thread MainThread") for name in stacks)
    assert "hold_the_lock" in stacks[f"thread worker-3 ({stuck.thread.ident})"]


def test_a_part_whose_lock_is_held_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture, stuck: Stuck) -> None:
    parts: dict[str, Callable[[], Any]] = {"queue": stuck.read, "cache": lambda: {"jobs": 3}}
    caplog.set_level(logging.INFO)
    report = Diagnostics(parts, monotonic=time.monotonic, seconds=0.05)
    report.report()
    report.report()
    lines = [line for line in written(caplog) if "cache" in line]
    assert [line["cache"] for line in lines] == [{"jobs": 3}] * 2
    assert all("no answer" in line["queue"] for line in lines)
    # The second report waits for the reader of the first one, and starts no other.
    readers = [name for name in thread_stacks() if name.startswith("diagnostics queue")]
    assert len(readers) == 1


def test_a_part_that_fails_is_reported_as_its_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    Diagnostics({"cache": lambda: 1 // 0, "lease": lambda: 1}, monotonic=time.monotonic, seconds=60).report()
    (line,) = [line for line in written(caplog) if "cache" in line]
    assert line["cache"].startswith("ZeroDivisionError")
    assert line["lease"] == 1


def test_the_report_is_written_at_any_log_level(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        Diagnostics({}, monotonic=time.monotonic, seconds=60).report()
    finally:
        root.setLevel(before)
    assert any("state of the operator" in record.getMessage() for record in caplog.records)


def test_each_signal_leads_to_a_report_in_another_thread_also_after_one_that_failed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[str] = []

    def part() -> int:
        reports.append(threading.current_thread().name)
        return 1

    def broken() -> dict[str, str]:
        monkeypatch.undo()
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(diagnostics_module, "thread_stacks", broken)
    caplog.set_level(logging.INFO)
    before = signal.getsignal(signal.SIGUSR1)
    diagnostics = Diagnostics({"part": part}, monotonic=time.monotonic, seconds=60)
    try:
        diagnostics.install()
        diagnostics.start()
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGUSR1)
            until = time.monotonic() + 60
            while len(reports) < count and time.monotonic() < until:
                time.sleep(0.005)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert reports == ["diagnostics part", "diagnostics part"]
    assert "ours" in caplog.text
