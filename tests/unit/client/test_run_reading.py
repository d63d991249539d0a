"""Events read incrementally give at each moment the curves of what is there."""

from __future__ import annotations

import json
import math
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mptraining.board import rows
from mptraining.board.details import details
from mptraining.runs import event_files, load_run
from mptraining.runs.files import LocalFiles
from mptraining.runs.listing import local_run_folders
from mptraining.runs.reader import RunReader
from mptraining_api.events import Event, Finished, Notice, Progress, Recovered, Saved, Started, gauges, parse
from mptraining_api.run_folder import EVENTS, events_file, parse_events_name

RunIn = Callable[..., Path]
AttemptEvents = Callable[..., list[Event]]


ABOUT: dict[str, Any] = {"attempt": 1, "incarnation": "a-b", "worker": 0}


def story(seed: int) -> list[tuple[str, list[Event]]]:
    """Return events by file: attempts that resume at an earlier step, with rollbacks, in one or more parts."""
    draw = random.Random(seed)
    files: list[tuple[str, list[Event]]] = []
    now, step = 1000.0, 0
    for attempt in range(1, draw.randint(1, 4) + 1):
        about: dict[str, Any] = {"attempt": attempt, "incarnation": f"i-{attempt}", "worker": 0}
        step = draw.randint(0, step)
        started = {"strategy": "None", "precision": "float32", "keras": "Keras3", "tensorflow": "2", "devices": ()}
        started |= {"workers": 1, "replicas_in_sync": 1, "steps_per_epoch": 10, "total_steps": 99, "first_step": step}
        told: list[Event] = [
            Notice(time=now, topic="Waiting", message="for data", **about),
            Started(time=now + draw.random(), **started, **about),
        ]
        now += 1
        for _ in range(draw.randint(0, 60)):
            now += draw.random()
            step += draw.randint(1, 3)
            metrics = {"loss": draw.random()} | ({"val_loss": draw.random()} if draw.random() < 0.1 else {})
            rate = draw.random() if draw.random() < 0.5 else None
            told.append(
                Progress(time=now, step=step, epoch=1 + step // 10, metrics=metrics, learning_rate=rate, **about)
            )
            if draw.random() < 0.05:
                back = {"from_step": step, "to_step": draw.randint(0, step), "precision": "float32", "message": ""}
                told.append(Recovered(time=now + 0.01, **back, **about))
                step = int(back["to_step"])
                now += 0.1
        if draw.random() < 0.5:
            told.append(Finished(time=now + 0.1, reason="Preempted", exit_code=75, message="", step=step, **about))
        now += draw.randint(1, 500)
        cut = draw.randint(0, len(told))
        parts = [told[:cut], told[cut:]] if draw.random() < 0.5 else [told]
        files += [
            (events_file(attempt, f"i-{attempt}", 0, part), events) for part, events in enumerate(parts) if events
        ]
    return files


def lines(events: Sequence[Event]) -> bytes:
    return "".join(event.to_json() + "\n" for event in events).encode()


def reader(folder: Path) -> RunReader:
    return RunReader(LocalFiles(str(folder)), folder.name)


def append(folder: Path, content: bytes) -> None:
    with (folder / events_file(1, "a-b", 0, 0)).open("ab") as file:
        file.write(content)


def trained(folder: Path) -> list[tuple[float, Progress]]:
    """Return the Progress events that count, with the training time until each: read one by one, as a person would."""
    names = (parse_events_name(path.name) for path in (folder / EVENTS).iterdir())
    kept: list[tuple[float, Progress]] = []
    past = 0.0
    for attempt in sorted({name.attempt for name in names if name is not None}):
        parts = sorted((folder / EVENTS).glob(f"{attempt}-*"), key=lambda path: parse_events_name(path.name) or ())
        text = "".join(path.read_text(errors="replace") for path in parts)
        told = [event for line in text.splitlines() if (event := parse(line)) is not None]
        if not told:
            continue
        begin = next((event.time for event in told if isinstance(event, Started)), told[0].time)
        for event in told:
            if isinstance(event, Started | Recovered):
                back = event.first_step if isinstance(event, Started) else event.to_step
                kept = [(seconds, point) for seconds, point in kept if point.step <= back]
            if isinstance(event, Progress):
                kept.append((past + event.time - begin, event))
        past += told[-1].time - begin
    return kept


def is_whole(folder: Path, read: RunReader) -> None:
    expected, curves, history = trained(folder), read.curves(), load_run(str(folder)).history
    assert curves.step.tolist() == [point.step for _, point in expected] == [point.step for point in history.points]
    np.testing.assert_allclose(curves.seconds, [seconds for seconds, _ in expected], atol=1e-6)
    assert curves.total_seconds == pytest.approx(history.seconds or 0.0)
    for name in ("loss", "val_loss"):
        known = [(point.step, point.metrics[name]) for _, point in expected if name in point.metrics]
        assert list(zip(*curves.series(name), strict=True)) == known == history.series(name)
    best = read.facts.best or {}
    assert best.get("loss") == min((point.metrics["loss"] for _, point in expected), default=None)
    for (_, event), point in zip(expected, history.points, strict=True):
        assert (event.metrics, gauges(event), event.epoch) == (point.metrics, point.gauges, point.epoch)


@pytest.fixture
def tiny_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of a few kilobytes count as long ones."""
    for name, value in {"HEAD": 700, "TAIL": 900, "LONG": 2000, "SMALL": 1000}.items():
        monkeypatch.setattr(event_files, name, value)


@pytest.mark.parametrize("seed", range(12))
def test_curves_grow_with_the_files(tmp_path: Path, tiny_ends: None, seed: int) -> None:
    """Bytes arrive in pieces that tear lines; at each moment the curves are those of what is there."""
    draw = random.Random(seed)
    (tmp_path / EVENTS).mkdir()
    read = reader(tmp_path)
    for name, told in story(seed):
        content = lines(told)
        while content:
            size = draw.randint(1, 1500)
            with (tmp_path / name).open("ab") as file:
                file.write(content[:size])
            content = content[size:]
            read.refresh()
            if draw.random() < 0.3:
                is_whole(tmp_path, read)
    is_whole(tmp_path, read)
    whole = reader(tmp_path)
    assert whole.refresh()
    is_whole(tmp_path, whole)
    whole.forget()
    is_whole(tmp_path, whole)


def test_the_last_values_are_those_of_the_history(run_in: RunIn) -> None:
    """The last event has no validation metrics; a gauge such as lossScale is no metric, whatever its name says."""
    folder = run_in(steps=25, done=False)
    append(folder, lines([Progress(time=1030, step=26, epoch=1, metrics={"loss": 0.01}, loss_scale=2.0, **ABOUT)]))
    read = reader(folder)
    read.refresh()
    assert read.facts.last == load_run(str(folder)).metrics == {"loss": 0.01, "val_loss": 1.1 / 20, "val_accuracy": 0.8}
    assert set(read.facts.best or {}) == {"loss", "val_loss", "val_accuracy"}


@pytest.mark.parametrize("done", [False, True])
def test_a_metric_that_is_nan_is_a_value_of_the_row(run_in: RunIn, done: bool) -> None:
    metrics = {"loss": 0.01, "val_loss": math.nan}
    folder = run_in(steps=25, done=done, result={"metrics": metrics})
    append(folder, lines([Progress(time=1030, step=26, epoch=1, metrics=metrics, **ABOUT)]))
    read = reader(folder)
    read.refresh()
    values = json.loads(msgspec.json.encode(rows.row(read.facts, 0.0)))["values"]
    assert (values["last:loss"], values["last:val_loss"]) == (0.01, "NaN")
    assert values["best:val_loss"] == pytest.approx(1.1 / 20)
    assert math.isnan(read.curves().values["val_loss"].values[-1])


def test_only_what_is_new_is_read(run_in: RunIn, attempt_events: AttemptEvents) -> None:
    folder = run_in(steps=300, done=False)
    ranges: list[tuple[str, int, int]] = []

    class Counting(LocalFiles):
        def read(self, name: str, start: int, length: int) -> bytes:
            ranges.append((name, start, length))
            return super().read(name, start, length)

    read = RunReader(Counting(str(folder)), "plain")
    read.refresh()
    name = events_file(1, "a-b", 0, 0)
    size = (folder / name).stat().st_size
    assert sum(length for each, _, length in ranges if each == name) < size / 2
    read.curves()
    ranges.clear()
    assert not read.refresh()
    assert ranges == []
    new = lines(attempt_events(steps=301)[-1:])
    append(folder, new)
    assert read.refresh()
    assert ranges == [(name, size, len(new))]
    assert read.curves().step[-1] == 301
    # A file that was written again is read again.
    (folder / name).write_bytes(lines(attempt_events(steps=5)))
    assert read.refresh()
    is_whole(folder, read)


def test_lines_that_are_no_events_are_ignored_and_other_events_kept(
    run_in: RunIn, attempt_events: AttemptEvents
) -> None:
    folder = run_in(steps=0, done=False)
    told = attempt_events(steps=3)
    strange = b'{"mptraining": 1, "kind": "OfANewerVersion", "time": 1}\n\xff\xfe garbage\n\n{half\n["list"]\n'
    # The names of the contract's own models are read, too, and fields of a newer version.
    snake = told[-1].model_dump_json(by_alias=False).encode()
    newer = lines(told[2:3]).replace(b'"step"', b'"newField":{"a":1},"step"')
    saved = lines([Saved(time=1003, step=2, uri="checkpoints/2", bytes=10, seconds=0.5, **ABOUT)])
    (folder / events_file(1, "a-b", 0, 0)).write_bytes(lines(told[:2]) + strange + newer + snake + b"\n" + saved)
    read = reader(folder)
    read.refresh()
    is_whole(folder, read)
    assert read.curves().step.tolist() == [1, 2, 3]
    assert [type(event).__name__ for _, event in read.other_events()] == ["Started", "Saved"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("job.json", '{"program": "x"}'),
        ("job.json", '{"program": {"ensemble": {"members": 5}}}'),
        ("job.json", '{"training": {"optimizer": {"config": {"learning_rate": 1}}}, "learningRate": {"factor": "x"}}'),
        ("job.json", f'{{"training": {{"seed": 1{"0" * 400}}}}}'),
        ("job.json", "[" * 100_000),
        ("result.json", '{"attempt": 1, "metrics": "x"}'),
        ("result.json", f'{{"attempt": 1, "seconds": 1{"0" * 400}}}'),
    ],
)
def test_documents_of_other_types_do_not_hide_their_run(run_in: RunIn, name: str, content: str) -> None:
    folder = run_in(steps=20, done=False)
    (folder / name).write_text(content)
    read = reader(folder)
    read.refresh()
    row = json.loads(msgspec.json.encode(rows.row(read.facts, 0.0)))
    assert row["values"]["last:loss"] == 1 / 20
    assert details(read.facts, read, 0.0)["charts"]


HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"step":41', f'"step":{HUGE}'),
        ('"step":41', '"step":1' + "0" * 30),
        ('"epoch":', f'"epoch":{HUGE}'),
        ('"kind":', '"new":' + "[" * 100_000 + "]" * 100_000 + ',"kind":'),
    ],
)
@pytest.mark.parametrize("shown_before", [False, True])
def test_a_line_with_numbers_beyond_a_column_is_no_event(
    run_in: RunIn, attempt_events: AttemptEvents, old: str, new: str, shown_before: bool
) -> None:
    folder = run_in(steps=20, done=False)
    read = reader(folder)
    if shown_before:
        read.refresh()
        read.curves()
    line = attempt_events(steps=41)[-1].to_json()
    assert old in line
    append(folder, f"{line.replace(old, new)}\n".encode())
    read.refresh()
    assert read.curves().step[-1] == 20
    msgspec.json.encode(rows.row(read.facts, 0.0))


class SlowFiles(LocalFiles):
    """Files whose storage answers only when `open` is set."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.open = threading.Event()
        self.waits = threading.Event()

    def read(self, name: str, start: int, length: int) -> bytes:
        self.waits.set()
        assert self.open.wait(20)
        return super().read(name, start, length)


@pytest.mark.parametrize("method", ["refresh", "curves"])
def test_a_run_with_slow_storage_is_shown_as_it_was_read_last(
    run_in: RunIn, tiny_ends: None, attempt_events: Callable[..., list[Event]], method: str
) -> None:
    folder = run_in(steps=40, done=False)
    files = SlowFiles(str(folder))
    files.open.set()
    read = RunReader(files, folder.name)
    read.refresh()
    known, listed = read.facts, read.listed
    files.open.clear()
    files.waits.clear()
    if method == "refresh":
        append(folder, lines(attempt_events(steps=50)[41:]))
    reading = threading.Thread(target=getattr(read, method), daemon=True)
    reading.start()
    assert files.waits.wait(10)
    shown: list[object] = []

    def show() -> None:
        shown.append(read.facts)
        read.forget()
        shown.append(read.listed)

    showing = threading.Thread(target=show, daemon=True)
    showing.start()
    showing.join(5)
    assert shown == [known, listed]
    files.open.set()
    reading.join(10)
    assert read.facts is not known


def test_damaged_and_foreign_files_are_no_runs(tmp_path: Path, run_in: RunIn) -> None:
    folder = run_in()
    (folder / "result.json").write_text("{half")
    (folder / "job.json").write_text("[]")
    (tmp_path / "runs" / "notes" / "events").mkdir(parents=True)
    (tmp_path / "runs" / "notes" / "events" / "party.txt").touch()
    (tmp_path / "runs" / ".hidden").symlink_to(folder)
    assert list(local_run_folders(str(tmp_path / "runs"))) == [str(folder)]
    read = reader(folder)
    read.refresh()
    assert (read.resolved, read.result, (read.facts.launches[-1].progress or Progress).step) == (None, None, 30)
