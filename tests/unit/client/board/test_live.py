"""A run that is training: its events reach the page within two seconds; the end of the server is announced."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mptraining.board import rows
from mptraining.board.rows import SILENT_SECONDS
from mptraining.board.sources import folder_source
from mptraining.board.state import Board
from mptraining.runs.facts import RunFacts
from mptraining.runs.reader import RunReader, run_id
from mptraining_api.run_folder import events_file
from tests.fakes import Clock
from tests.testbed.board_runs import BEGIN, progress, started, write_run
from tests.testbed.served_board import Served, served

RunIn = Callable[..., Path]
SECONDS = 2.0


def stream(board: Served) -> Iterator[tuple[str, Any]]:
    """Yield the server-sent events of a board."""
    with closing(http.client.HTTPConnection("127.0.0.1", board.port, timeout=10)) as connection:
        connection.request("GET", "/api/live", headers=board.headers)
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        kind = ""
        while line := answer.readline().decode().rstrip("\n"):
            assert line.startswith(":")
            assert answer.readline() == b"\n"
            break
        yield "connected", None
        while line := answer.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                yield kind, json.loads(value)


def until(events: Iterator[tuple[str, Any]], id: str) -> dict[str, Any]:
    return next(data for kind, data in events if kind == "runs" and id in data["changed"])


def test_new_points_and_new_runs_arrive_within_two_seconds(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "one", 0, 20, random.Random(0), finished=False)
    with served(tmp_path / "runs") as board:
        (first,) = board.get("/api/runs")["runs"]
        assert first["progress"]["step"] == 20
        live = stream(board)
        assert next(live) == ("connected", None)
        begin = time.monotonic()
        with (tmp_path / "runs" / "one" / events_file(1, "b", 0, 0)).open("a") as file:
            file.write(progress(time.time(), 21, 100, 0.25))
        changed = until(live, first["id"])
        assert time.monotonic() - begin < SECONDS
        after = board.get("/api/runs")
        assert after["version"] >= changed["version"]
        assert (after["runs"][0]["progress"]["step"], after["runs"][0]["state"]) == (21, "Running")
        assert after["runs"][0]["values"]["last:loss"] == 0.25
        drawn = board.get(f"/api/series?run={first['id']}&name=loss")
        assert (drawn["charts"][0]["series"][0]["x"][-1], drawn["charts"][0]["series"][0]["y"][-1]) == (21, 0.25)

        begin = time.monotonic()
        write_run(tmp_path / "runs" / "two", 1, 20, random.Random(1))
        until(live, run_id(str(tmp_path / "runs" / "two")))
        assert time.monotonic() - begin < SECONDS
        assert {each["name"] for each in board.get("/api/runs")["runs"]} == {"one", "two"}

        begin = time.monotonic()
        board.stop()
        assert ("bye", {}) in list(live)
        assert time.monotonic() - begin < SECONDS


def test_a_run_that_has_ended_and_is_resumed_runs_again(tmp_path: Path) -> None:
    """Its files are not listed as long as nothing is added to it."""
    write_run(tmp_path / "one", 0, 20, random.Random(0))
    source = folder_source(str(tmp_path))
    board = Board([source], clock=lambda: BEGIN + 50)
    board.refresh()
    (run,) = board.runs()["runs"]
    assert run["state"] == "Succeeded"
    assert [source.refresh() for _ in range(5)] == [set()] * 5
    text = started(BEGIN + 40, "float32", 40) + progress(BEGIN + 41, 21, 40, 0.25)
    (tmp_path / "one" / events_file(2, "c", 0, 0)).write_text(text.replace('"attempt":1', '"attempt":2'))
    board.refresh()
    (run,) = board.runs()["runs"]
    assert (run["state"], run["progress"]["step"], run["values"]["restarts"]) == ("Running", 21, 1)


def test_a_run_that_reports_nothing_any_more_is_unfinished(tmp_path: Path) -> None:
    """Its files do not change: the clock alone does."""
    write_run(tmp_path / "one", 0, 20, random.Random(0), finished=False)
    source = folder_source(str(tmp_path))
    source.refresh()
    (run,) = source.runs().values()
    clock = Clock(run.facts.launches[-1].last + 1)
    board = Board([source], clock=clock)
    board.refresh()
    assert board.runs()["runs"][0]["state"] == "Running"
    version = board.version
    clock.now += SILENT_SECONDS
    board.refresh()
    assert board.changes_since(version) == (version + 1, [run.run_id])
    assert board.runs()["runs"][0]["state"] == "Unfinished"


def test_a_deleted_run_is_gone(tmp_path: Path) -> None:
    write_run(tmp_path / "one", 0, 20, random.Random(0))
    board = Board([folder_source(str(tmp_path))])
    board.refresh()
    assert len(board.runs()["runs"]) == 1
    (tmp_path / "one").rename(tmp_path / ".trash")
    board.refresh()
    board.refresh()
    assert board.runs()["runs"] == []
    assert board.runs()["sources"] == [{"where": str(tmp_path), "problem": "no runs yet"}]


def test_best_values_are_computed_between_answers(tmp_path: Path) -> None:
    """The curves of long runs are read in the background, which a request interrupts."""
    for number in range(3):
        write_run(tmp_path / f"run-{number}", number, 400, random.Random(number))
    board = Board([folder_source(str(tmp_path))])
    board.start()
    try:
        with board.answering():
            board.wait_until_read()
            time.sleep(0.2)
            found = board.runs()["runs"]
            assert len(found) == 3
            assert not any("best:loss" in each["values"] for each in found)
        end = time.monotonic() + 20
        while time.monotonic() < end and not all("best:loss" in run["values"] for run in board.runs()["runs"]):
            time.sleep(0.05)
        version, changed = board.changes_since(0)
        assert (len(changed), version > 1) == (3, True)
        assert all(run["values"]["best:loss"] > 0 for run in board.runs()["runs"])
    finally:
        board.stop()


def test_a_run_that_cannot_be_shown_is_a_row_without_values(
    run_in: RunIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    board = Board([folder_source(str(run_in(steps=20, done=False)))])
    board.refresh()
    values = rows.values

    def fail(facts: RunFacts) -> dict[str, object]:
        if facts.launches:
            raise TypeError("unexpected")
        return values(facts)

    monkeypatch.setattr(rows, "values", fail)
    (row,) = board.runs()["runs"]
    assert (row["state"], row["values"]) == ("Unfinished", {})
    assert "cannot be shown" in caplog.text


def test_a_run_that_cannot_be_read_ends_no_background_reading(
    run_in: RunIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folders = [run_in(name, steps=600, done=False) for name in ("one", "two")]
    board = Board([folder_source(str(folder)) for folder in folders])
    curves = RunReader.curves
    first = []

    def fail_once(read: RunReader) -> object:
        if not first:
            first.append(read.run_id)
        if read.run_id == first[0]:
            raise OverflowError("unexpected")
        return curves(read)

    monkeypatch.setattr(RunReader, "curves", fail_once)
    monkeypatch.setattr("mptraining.board.state.QUIET_SECONDS", 0.0)
    board.start()
    try:
        end = time.monotonic() + 10
        while not any(reader.complete for reader in board.readers().values()):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        board.stop()
    assert "cannot be read" in caplog.text
