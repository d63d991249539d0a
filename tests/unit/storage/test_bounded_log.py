"""The log of a program's output: complete while it is short, its beginning and end when it is long."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from mptraining_api.problems import StorageUnavailable
from mptraining_storage import storage
from mptraining_storage.bounded_log import BoundedLog, LogWriter


def name(part: int) -> str:
    return f"logs/1-a-0-{part}.log"


def text(folder: str) -> str:
    """Return the parts in their order, as a reader puts them together."""
    found = {each.uri.rpartition("/")[2]: each.uri for each in storage.list_objects(storage.join(folder, "logs"))}
    parts = sorted(found, key=lambda file: int(file.removesuffix(".log").removeprefix("1-a-0").lstrip("-") or 0))
    return "".join(storage.read(found[part]).decode() for part in parts)


def wait_for(found: object, folder: str) -> None:
    end = time.monotonic() + 60
    while text(folder) != found:
        assert time.monotonic() < end, text(folder)
        time.sleep(0.01)


def test_lines_are_in_the_file_while_the_program_runs(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), name, seconds=0.01)
    writer.start()
    writer.add("one\ntw")
    wait_for("one\n", str(tmp_path))
    writer.add("o\n")
    wait_for("one\ntwo\n", str(tmp_path))
    # Output without line ends, too.
    writer.add("x" * 300_000)
    long = ("x" * 8192 + "\n") * 36 + "x" * (300_000 - 36 * 8192) + "\n"
    wait_for("one\ntwo\n" + long, str(tmp_path))
    writer.add("no newline")
    writer.close()
    assert text(str(tmp_path)) == f"one\ntwo\n{long}no newline\n"


@pytest.mark.parametrize("where", ["local", "bucket"])
def test_of_a_long_output_both_ends_are_kept(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = str(tmp_path) if where == "local" else f"{request.getfixturevalue('bucket')}/run"
    log = BoundedLog(head_bytes=30, part_bytes=20, last_parts=2)
    lines = [f"line {number:03d}\n" for number in range(100)]
    writer = LogWriter(folder, name, seconds=0.005, log=log)
    writer.start()
    for number, line in enumerate(lines):
        writer.add(line)
        if number % 10 == 0:
            time.sleep(0.01)
    writer.close(60)
    kept = text(folder).splitlines(keepends=True)
    gap = next(line for line in kept if line.startswith("…"))
    at = kept.index(gap)
    assert kept[:at] == lines[:3]
    ends = kept[at + 1 :]
    assert ends == lines[-len(ends) :], "nothing between the gap and the end is missing"
    assert 20 <= len("".join(ends)) <= 40
    missing = len("".join(lines)) - len("".join(kept[:at])) - len("".join(ends))
    assert gap == f"… {missing:,} bytes of output are not kept here …\n"


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        # Of a progress bar its last state.
        (["1/3", "\r2/3", "\r", "3/3\n", "10%\b\b\b90%\r\n", "done\n"], "3/3\n90%\ndone\n"),
        (["the key is s3cr", "et-value\n"], "the key is (KEY)\n"),
        (["a\ud800b\n"], "a?b\n"),
    ],
    ids=["a progress bar", "a secret", "a character that cannot be encoded"],
)
def test_lines_as_they_are_kept(tmp_path: Path, output: list[str], kept: str) -> None:
    writer = LogWriter(str(tmp_path), name, seconds=0.01, redact=lambda text: text.replace("s3cret-value", "(KEY)"))
    for line in output:
        writer.add(line)
    writer.start()
    writer.close()
    assert text(str(tmp_path)) == kept


def test_a_bar_in_parts_does_not_grow_the_memory(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), name)
    for step in range(1000):
        writer.add(f"\r{step}/1000" + " " * 50)
        writer._take(last=False)
    assert len(writer._partial) < 100


def test_a_folder_that_cannot_be_written_is_reported_once_and_retried(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    said: list[str] = []
    writer = LogWriter(str(tmp_path), name, seconds=0.01, on_failure=said.append)
    writer.start()
    writer.add("kept in memory\n")
    end = time.monotonic() + 60
    while not said:
        assert time.monotonic() < end
        time.sleep(0.01)
    (tmp_path / "logs").unlink()
    wait_for("kept in memory\n", str(tmp_path))
    writer.close()
    assert len(said) == 1


def test_storage_that_never_answers_does_not_hold_a_program_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def never(*_: object, **__: object) -> None:
        answer.wait(60)
        raise StorageUnavailable("gs://b", "no answer")

    monkeypatch.setattr(storage, "write", never)
    writer = LogWriter("gs://b/run", name, seconds=0.01)
    writer.start()
    before = time.monotonic()
    for _ in range(2_000):
        writer.add("x" * 10_000 + "\n")
    writer.close(0.05)
    took = time.monotonic() - before
    waiting = sum(map(len, writer._pending))
    answer.set()
    writer.close(60)
    assert took < 10, "2,000 lines and the end"
    assert waiting < 6 << 20, "memory is bounded too"


def test_what_was_dropped_because_storage_is_slow_is_counted(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), name)
    for _ in range(100):
        writer.add("x" * 99_999 + "\n")
    writer.start()
    writer.close(60)
    kept = text(str(tmp_path))
    assert "bytes of output are not kept here" in kept
