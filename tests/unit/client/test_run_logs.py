"""`mptj logs RUN_FOLDER`: the program's output, of the last attempt, of every worker, while it grows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from mptraining.cli.main import app
from mptraining.run_logs import follow_lines, log_lines
from mptraining_api.events import Finished
from mptraining_api.problems import InvalidData
from mptraining_api.run_folder import events_file, log_file
from mptraining_storage import storage
from tests.testbed.board_runs import write_run

UUID = "0f9a9b7c-1234-4321-8000-0123456789ab"


@pytest.fixture
def run(tmp_path: Path) -> str:
    for attempt, worker, part, text in (
        (1, 0, 0, "first attempt\n"),
        (2, 0, 0, "begin\n"),
        (2, 0, 1, "… 99 bytes of output are not kept here …\n"),
        (2, 0, 10, "end\n"),
        (2, 0, 9, "late\n"),
        (2, 1, 0, "another\n"),
    ):
        storage.write(str(tmp_path / log_file(attempt, UUID, worker, part)), text.encode())
    return str(tmp_path)


def test_the_parts_of_the_last_attempt_are_one_text(run: str) -> None:
    whole = ["begin", "… 99 bytes of output are not kept here …", "late", "end", "[worker 1] another"]
    assert list(log_lines(run)) == whole
    assert list(log_lines(run, worker=1)) == ["[worker 1] another"]
    shown = CliRunner().invoke(app, ["logs", run, "--attempt", "1"])
    assert (shown.exit_code, shown.stdout) == (0, "first attempt\n")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [({"worker": 7}, "no output of worker 7; expected one of 0, 1"), ({"attempt": 3}, "expected one of 1, 2")],
)
def test_what_there_is_is_named(run: str, tmp_path: Path, chosen: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        list(log_lines(run, **chosen))
    with pytest.raises(InvalidData, match="holds no program output"):
        list(log_lines(str(tmp_path / "logs")))


def test_following_shows_new_lines_until_worker_0_has_finished(tmp_path: Path) -> None:
    log = tmp_path / log_file(1, UUID, 0, 0)
    log.parent.mkdir()
    log.write_text("one\ntw")
    waits = 0

    def wait(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            with log.open("a") as file:
                file.write("o\n")
        if waits == 2:
            finished = Finished(
                time=1.0, attempt=1, incarnation=UUID, worker=0, reason="Succeeded", exit_code=0, message=""
            )
            storage.write(str(tmp_path / events_file(1, UUID, 0, 0)), (finished.to_json() + "\n").encode())
        if waits == 3:
            with log.open("a") as file:
                file.write("three\n")

    assert list(follow_lines(str(tmp_path), wait=wait)) == ["one", "two", "three"]


def test_the_output_of_a_worker_that_the_run_does_not_have_is_not_waited_for(tmp_path: Path) -> None:
    write_run(tmp_path, 0, 20, random.Random(0))
    for follow in ([], ["--follow"]):
        storage.write(str(tmp_path / log_file(1, UUID, 0, 0)), b"one\n")
        shown = CliRunner().invoke(app, ["logs", str(tmp_path), "--worker", "1", *follow])
        assert isinstance(shown.exception, InvalidData)
        assert "worker 1; expected" in str(shown.exception)
    # A job.json of another version tells nothing.
    (tmp_path / "job.json").write_text("{}")
    followed = follow_lines(str(tmp_path), worker=0, wait=lambda _: pytest.fail("it has finished"))
    assert next(followed) == "one"
