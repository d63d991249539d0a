"""A process's output, on standard output by whole lines and in the run folder, with clocks that the test sets."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mptraining_api import events
from mptraining_api.launch import WorkerIdentity
from mptraining_storage import storage
from mptraining_trainer.report.telemetry import Telemetry, WholeLines, as_whole_lines, peak_memory_bytes
from tests.fakes import Clock

SEAT = WorkerIdentity(index=1, hosts=("a:1", "b:1"), attempt=3, incarnation="pod")


def telemetry(output: str | None, stream: io.StringIO, clock: Clock | None = None) -> Telemetry:
    return Telemetry(SEAT, output, stream=stream, wall=lambda: 1234.56789, now=clock or Clock())


def saved(voice: Telemetry, step: int) -> None:
    voice.emit(events.Saved, step=step, uri="u", bytes=1, seconds=0.1)


def steps(text: str) -> list[int]:
    return [event.step for line in text.splitlines() if isinstance(event := events.parse(line), events.Saved)]


def test_an_event_has_worker_time_and_attempt(tmp_path: Path) -> None:
    stream = io.StringIO()
    saved(telemetry(str(tmp_path), stream), 7)
    event = events.parse(stream.getvalue())
    assert event == events.Saved(
        time=1234.568, attempt=3, incarnation="pod", worker=1, step=7, uri="u", bytes=1, seconds=0.1
    )
    assert (tmp_path / "events" / "3-pod-1-0.jsonl").read_text() == stream.getvalue()
    # A folder of another user is unchanged.
    other = telemetry(str(tmp_path / "other"), stream)
    other.disable_output()
    saved(other, 1)
    other.close()
    assert not (tmp_path / "other").exists()


def test_a_notice_is_written_once() -> None:
    stream = io.StringIO()
    voice = telemetry(None, stream)
    for message in ("one", "one", "two"):
        voice.notice("Topic", message, level="Warning")
    voice.notice("Topic", "only so that you know")
    assert voice.warnings == ["Topic: one", "Topic: two"], "a result lists what a user may want to fix"
    said = [events.parse(line) for line in stream.getvalue().splitlines()]
    assert [(one.level, one.topic, one.message) for one in said if isinstance(one, events.Notice)] == [
        ("Warning", "Topic", "one"),
        ("Warning", "Topic", "two"),
        ("Info", "Topic", "only so that you know"),
    ]


def test_seconds_count_from_the_first_event() -> None:
    clock = Clock()
    voice = telemetry(None, io.StringIO(), clock)
    clock.now += 2.5
    assert (voice.seconds(), voice.now()) == (2.5, 1_002.5)
    assert 50e6 < peak_memory_bytes() < 100e9, "of a process with TensorFlow"


def test_lines_of_several_threads_do_not_run_into_one_another(tmp_path: Path) -> None:
    """The thread that writes checkpoints prints while the loop does."""

    class Slow(io.StringIO):
        def write(self, text: str) -> int:
            threading.Event().wait(0.0005)
            return super().write(text)

    stream = Slow()
    voice = telemetry(str(tmp_path), stream)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [saved(voice, step) for step in range(20)], range(4)))
    assert sorted(steps(stream.getvalue())) == sorted([*range(20)] * 4)
    assert sorted(steps((tmp_path / "events" / "3-pod-1-0.jsonl").read_text())) == sorted([*range(20)] * 4)


def test_a_bucket_gets_parts(bucket: str) -> None:
    """An object cannot be appended to: a part at intervals, and the rest at the end."""
    voice = Telemetry(SEAT, f"{bucket}/run", stream=io.StringIO(), part_seconds=0.5)
    saved(voice, 1)
    assert storage.list_objects(f"{bucket}/run") == []
    while not (parts := storage.list_objects(f"{bucket}/run")):
        threading.Event().wait(0.02)
    saved(voice, 2)
    saved(voice, 3)
    voice.close()
    voice.close()
    parts = storage.list_objects(f"{bucket}/run")
    assert [part.uri for part in parts] == [f"{bucket}/run/events/3-pod-1-{part}.jsonl" for part in (0, 1)]
    assert [steps(storage.read(part.uri).decode()) for part in parts] == [[1], [2, 3]]


def finished(path: Path, message: str, metrics: dict[str, float]) -> tuple[events.Finished, events.Finished]:
    """Return the reported events, and the content of the termination log."""
    stream = io.StringIO()
    voice = Telemetry(SEAT, None, termination_log=str(path), stream=stream)
    voice.emit(events.Finished, reason="ProgramFailed", exit_code=1, message=message, metrics=metrics)
    said, kept = events.parse(stream.getvalue()), events.parse(path.read_text(encoding="utf-8"))
    assert isinstance(said, events.Finished)
    assert isinstance(kept, events.Finished)
    return said, kept


@pytest.mark.parametrize("character", ["a", "ä", '"', "\n", "花"])
@pytest.mark.parametrize("length", [20, 3000, 3900, 4000, 4090, 20_000])
def test_a_long_final_message_is_cut_and_stays_json(tmp_path: Path, character: str, length: int) -> None:
    metrics = {f"metric_{number}": number / 3 for number in range(50)}
    said, kept = finished(tmp_path / "log", character * length, metrics)
    assert len((tmp_path / "log").read_bytes()) <= 4096
    assert kept.message == said.message or (kept.message.endswith("…") and said.message.startswith(kept.message[:-1]))
    assert len(kept.message) >= min(length, 900)
    assert length > 20 or kept == said
    assert (kept.reason, kept.exit_code) == ("ProgramFailed", 1)


def test_an_unwritable_termination_log_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    voice = Telemetry(SEAT, None, termination_log=str(tmp_path / "no" / "log"), stream=stream)
    voice.emit(events.Finished, reason="Succeeded", exit_code=0, message="done")
    assert events.parse(stream.getvalue()) is not None
    assert "No such file" in capsys.readouterr().err


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(out: io.StringIO) -> WholeLines:
    return WholeLines(out)


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_a_print_of_several_parts_is_not_split_by_another_thread(out: io.StringIO, lines: WholeLines) -> None:
    lines.write("Epochs:")
    in_thread(lambda: print("of another", file=lines))
    lines.line("an event")
    print("", 3, file=lines)
    assert out.getvalue() == "of another\nan event\nEpochs: 3\n"


def test_a_line_that_was_flushed_before_its_end_is_ended_for_an_event(out: io.StringIO, lines: WholeLines) -> None:
    print("3/10 [===", end="", file=lines, flush=True)
    lines.line("an event")
    print("4/10 [====", end="\n", file=lines)
    assert out.getvalue() == "3/10 [===\nan event\n4/10 [====\n"


def test_lines_without_an_end_are_passed_on_when_they_are_long_flushed_or_of_an_ended_thread(
    out: io.StringIO, lines: WholeLines
) -> None:
    assert lines.write("one\ntwo\nthr") == 11
    assert out.getvalue() == "one\ntwo\n"
    lines.flush()
    assert out.getvalue() == "one\ntwo\nthr"
    lines.write("." * 10_000)
    assert out.getvalue() == "one\ntwo\nthr" + "." * 10_000
    in_thread(lambda: lines.write("last words"))
    lines.flush()
    assert out.getvalue().endswith(".last words")


def test_there_is_one_around_a_stream(lines: WholeLines) -> None:
    assert as_whole_lines(lines) is lines
