"""A settings file that changes while the operator runs: two settings are taken over, the others are named."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from mptraining_operator.settings import OperatorSettings
from mptraining_operator.settings_reload import LIVE, SettingsReload


class Bench:
    def __init__(self, folder: Path, text: str = "") -> None:
        self.file = folder / "settings.yaml"
        self.file.write_text(text)
        self.changes: list[tuple[str, bool]] = []
        started = OperatorSettings.load(self.file)
        self.reload = SettingsReload(
            self.file, started, lambda found: self.changes.append((found.log_level, found.paused)), seconds=0.005
        )

    def write(self, text: str) -> None:
        self.file.write_text(text)
        self.reload.read()


@pytest.fixture
def bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Bench:
    caplog.set_level(logging.INFO)
    return Bench(tmp_path)


def test_the_log_level_and_the_pause_are_taken_over(bench: Bench) -> None:
    bench.write("logLevel: DEBUG\n")
    bench.write("logLevel: DEBUG\npaused: true\n")
    bench.write("")
    assert bench.changes == [("DEBUG", False), ("DEBUG", True), ("INFO", False)]


def test_a_file_that_does_not_change_does_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.reload.read()
    bench.reload.read()
    bench.write("# only a comment\n")
    assert bench.changes == []
    assert caplog.records == []


def test_other_changes_are_named_once_with_the_next_step(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.write("workers: 3\nlimits: {nodesPerJob: 4}\nlogLevel: ERROR\n")
    bench.reload.read()
    assert bench.changes == [("ERROR", False)]
    (line,) = [record.getMessage() for record in caplog.records if "restart" in record.getMessage()]
    assert "limits, workers: restart the Deployment" in line


def test_an_invalid_file_changes_nothing_and_is_reported_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.write("paused: true\n")
    for _ in range(3):
        bench.write("paused: maybe\n")
    assert bench.changes == [("INFO", True)]
    (line,) = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert "paused" in line
    # It is repaired, and broken again in the same way.
    bench.write("paused: true\n")
    bench.write("paused: maybe\n")
    assert caplog.text.count("ignored") == 2
    bench.write("paused: false\n")
    assert bench.changes[-1] == ("INFO", False)


def test_a_file_that_is_missing_for_a_moment_is_read_again(bench: Bench) -> None:
    bench.file.unlink()
    bench.reload.read()
    bench.write("paused: true\n")
    assert bench.changes == [("INFO", True)]


def test_a_change_between_the_start_and_the_first_read_is_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "paused: true\n")
    bench.write("")
    assert bench.changes == [("INFO", False)]


def test_live_settings_exist() -> None:
    assert set(LIVE) <= OperatorSettings.model_fields.keys()


def test_the_thread_reads_again_and_again_and_survives_errors(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: OperatorSettings) -> None:
        bench.reload._on_change = lambda found: bench.changes.append((found.log_level, found.paused))
        raise ZeroDivisionError("ours")

    bench.reload._on_change = fail
    bench.file.write_text("paused: true\n")
    bench.reload.start()
    until = time.monotonic() + 60
    while "ours" not in caplog.text and time.monotonic() < until:
        time.sleep(0.005)
    bench.file.write_text("paused: false\n")
    while not bench.changes and time.monotonic() < until:
        time.sleep(0.005)
    bench.reload.stop()
    bench.reload._thread.join(60)
    assert not bench.reload._thread.is_alive()
    assert bench.changes == [("INFO", False)]
