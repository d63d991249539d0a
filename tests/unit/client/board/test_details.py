"""The page of one run, from run folders with a story."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.board.sources import folder_source
from mptraining.board.state import Board
from mptraining_api.events import Event, Finished, Notice, Recovered, Saved
from mptraining_api.run_folder import events_file
from mptraining_storage import storage
from tests.testbed.served_board import served
from tests.testbed.sweep_folders import write_sweep

RunIn = Callable[..., Path]
AttemptEvents = Callable[..., list[Event]]
ABOUT: dict[str, Any] = {"attempt": 1, "incarnation": "a-b", "worker": 0}


def lines(events: list[Event]) -> str:
    return "".join(event.to_json() + "\n" for event in events)


def shown(folder: Path | str, now: float = 2000.0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the answers of /api/runs and of /api/run for the only run."""
    board = Board([folder_source(str(folder))], clock=lambda: now)
    board.refresh()
    (run,) = board.readers()
    return board.runs(), board.run(run) or {}


def test_a_run_that_was_interrupted_and_resumed(run_in: RunIn, attempt_events: AttemptEvents) -> None:
    folder = run_in(steps=0, done=False)
    first = [*attempt_events(steps=8), Finished(time=1009, reason="Preempted", exit_code=75, message="spot", **ABOUT)]
    second = attempt_events(steps=12, first=4, attempt=2, begin=1100.0)
    (folder / events_file(1, "a-b", 0, 0)).write_text(lines(first))
    (folder / events_file(2, "a-b", 0, 0)).write_text(lines(second))
    runs, found = shown(folder, now=1109.0)
    (row,) = runs["runs"]
    assert (row["state"], row["values"]["restarts"]) == ("Running", 1)
    one, two = found["attempts"]
    assert (one["number"], one["firstStep"], one["lastStep"], one["outcome"]) == (1, 0, 8, "Preempted")
    assert (one["start"], one["end"], one["message"]) == (1000, 1009, "spot")
    # Steps 5 to 8, of a second each, were trained again; the last second trained nothing.
    assert one["lostSeconds"] == 4
    assert (two["firstStep"], two["lastStep"], two["outcome"], two["lostSeconds"]) == (4, 12, None, 0)


def test_everything_of_a_run_that_diverged(run_in: RunIn) -> None:
    folder = run_in(steps=20, done=False)
    text = "step 18: the loss is not finite; it began with the output of layer 'dense_1' (float16), whose weights"
    told: list[Event] = [
        Saved(time=1011, step=10, uri="checkpoints/10", bytes=1000, seconds=0.5, **ABOUT),
        Notice(time=1012, level="Warning", topic="InputBound", message="waits for data", **ABOUT),
        Recovered(time=1021, from_step=18, to_step=10, precision="float32", message=text, **ABOUT),
    ]
    with (folder / events_file(1, "a-b", 0, 0)).open("a") as file:
        file.write(lines(told))
    other = Notice(time=1013, topic="Other", message="of worker 1", **(ABOUT | {"worker": 1}))
    (folder / events_file(1, "a-b", 1, 0)).write_text(lines([other]))
    _, found = shown(folder)
    assert [(each["topic"], each["worker"]) for each in found["events"]] == [
        ("Recovered", 0), ("Other", 1), ("InputBound", 0), ("Saved", 0), ("Started", 0),
    ]  # fmt: skip
    assert [(each["level"], each["message"]) for each in found["events"]][:1] == [("Warning", text)]
    names = [chart["names"] for chart in found["charts"][0]["charts"]]
    assert names == [["loss", "val_loss"], ["val_accuracy"]]
    assert {"what", "value", "reason"} == set(found["decisions"][0])
    assert found["configuration"]["training.epochs"] == 5
    assert found["configuration"]["program.application.name"] == "mlp"
    assert not any(key.startswith("choices") for key in found["configuration"])


def test_logs_are_read_in_pieces_at_whole_characters(run_in: RunIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from mptraining.board import server

    monkeypatch.setattr(server, "LOG_BYTES", 7)
    monkeypatch.setattr(server, "LOG_TAIL", 4)
    folder = run_in()
    (folder / "logs").mkdir()
    log = folder / "logs" / "1-0.log"
    log.write_text("größer als nötig €\n")
    with served(folder.parent) as board:
        (run,) = board.get("/api/runs")["runs"]
        path, text, offset, end = f"/api/logs/{run['id']}/1-0.log", "", 0, False
        while not end:
            answer = board.get(f"{path}?offset={offset}")
            text, offset, end = text + answer["text"], answer["offset"], answer["end"]
        assert text == log.read_text()
        assert board.get(f"{path}?offset={offset}") == {"text": "", "offset": offset, "end": True}
        assert board.get(f"{path}?offset=-1")["text"] == "€\n"
        for wrong in ("offset=x", "offset=-2", "offset=nan"):
            assert board.request(f"{path}?{wrong}").status == 400


def test_requests_that_make_no_sense_are_explained(run_in: RunIn) -> None:
    with served(run_in().parent) as board:
        (run,) = board.get("/api/runs")["runs"]
        series = f"/api/series?run={run['id']}"
        unknown = ("/api/run/none", f"/api/job/{run['id']}", "/api/series?run=none&name=loss")
        wrong = [series, *(f"{series}&name=loss&{each}" for each in ("x=time", "pixels=0"))]
        for path in (*unknown, *wrong):
            answer = board.request(path)
            assert (answer.status, "error" in json.loads(answer.body)) == (404 if path in unknown else 400, True), path
        both = board.get(f"{series}&name=loss&name=val_loss&x=epoch")
        assert [chart["name"] for chart in both["charts"]] == ["loss", "val_loss"]
        assert board.get(f"{series}&name=absent")["charts"][0]["series"] == []


def test_a_bucket_is_read_like_a_folder(run_in: RunIn, attempt_events: AttemptEvents, bucket: str) -> None:
    folder = run_in(steps=20, done=False)
    for path in (each for each in folder.rglob("*") if each.is_file()):
        storage.write(f"{bucket}/sweep/one/{path.relative_to(folder)}", path.read_bytes())
    storage.write(f"{bucket}/logs/other.txt", b"no run")
    board = Board([folder_source(bucket)], clock=lambda: 1021.0)
    board.refresh()
    (row,) = board.runs()["runs"]
    assert (row["name"], row["state"], row["progress"]["step"]) == ("sweep/one", "Running", 20)
    assert row["values"]["best:loss"] == 1 / 20
    version = board.version
    board.refresh()
    assert board.version == version
    told = attempt_events(steps=22)[21:]
    storage.write(f"{bucket}/sweep/one/{events_file(1, 'a-b', 0, 1)}", lines(told).encode())
    board.refresh()
    assert board.changes_since(version) == (version + 1, [row["id"]])
    assert board.readers()[row["id"]].curves().step.tolist() == list(range(1, 23))
    # A bucket that does not answer keeps the rows, and says so.
    (source,) = board.sources
    source.where = "gs://no-such-bucket-of-anybody"
    board.refresh()
    found = board.runs()
    assert len(found["runs"]) == 1
    assert "no-such-bucket" in str(found["sources"][0]["problem"])


def test_sweeps_below_the_folder_and_one_in_detail(tmp_path: Path) -> None:
    write_sweep(tmp_path / "team" / "digits", start=1_800_000_000, running=(24,))
    with served(tmp_path) as board:
        (found,) = board.get("/api/sweeps")["sweeps"]
        assert (found["name"], found["counts"]["ended"], found["phase"]) == ("digits", 23, "Interrupted")
        detail = board.get(f"/api/sweep/{found['id']}")
        assert [each["title"] for each in detail["columns"]] == [
            "learning_rate",
            "batchSize.global",
            "width",
            "val_accuracy",
            "time",
        ]
        first, last = detail["trials"][0], detail["trials"][-1]
        assert first["values"].keys() == {each["key"] for each in detail["columns"]}
        assert (last["state"], last["run"]) == ("Running", None)
        assert "objective" not in last["values"]
        assert {each["title"] for each in board.get(f"/api/importance/{found['id']}")} >= {"learning_rate"}
        assert board.request("/api/sweep/none").status == 404


def test_a_damaged_sweep_is_a_problem_of_its_source(tmp_path: Path) -> None:
    write_sweep(tmp_path / "digits", start=1_800_000_000)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sweep.json").write_text("{")
    with served(tmp_path) as board:
        assert [each["name"] for each in board.get("/api/sweeps")["sweeps"]] == ["digits"]
        (source,) = board.get("/api/runs")["sources"]
        assert "broken/sweep.json: is no sweep" in source["problem"]
