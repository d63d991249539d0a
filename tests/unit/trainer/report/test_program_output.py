"""What a program prints is in the run folder, without the values of Secrets and without Events."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from mptraining_api import events
from mptraining_api.launch import OUTPUT_KEPT, WorkerIdentity
from mptraining_storage.outbox import Outbox
from mptraining_trainer.report.program_output import ProgramOutput
from mptraining_trainer.report.secrets import SecretValues
from mptraining_trainer.report.telemetry import Telemetry

IDENTITY = WorkerIdentity(index=1, hosts=("a:1", "b:1"), attempt=3, incarnation="pod")
FILE = "logs/3-pod-1-0.log"


@contextmanager
def streams() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Replace the process's streams, which pytest does too, between a fixture and its test."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        yield out, err


def test_standard_output_and_error_are_copied_and_events_are_not(tmp_path: Path) -> None:
    with streams() as (out, err):
        output = ProgramOutput(IDENTITY, str(tmp_path), SecretValues({"TOKEN": "s3cret-value"}), {}, Outbox())
        telemetry = Telemetry(IDENTITY, None)
        output.start()
        print("hello")
        print("the token is s3cret-value, and more")
        print("no newline", end="")
        telemetry.emit(events.Saved, step=1, uri="u", bytes=1, seconds=0.1)
        print()
        logging.StreamHandler(sys.stderr).emit(logging.LogRecord("a", logging.INFO, "", 0, "a log line", (), None))
        output.close()
    kept = (tmp_path / FILE).read_text()
    assert kept.startswith("hello\nthe token is (the value of TOKEN), and more\n")
    assert "no newline\n" in kept
    assert "a log line\n" in kept
    assert "mptraining" not in kept
    assert out.getvalue().startswith("hello\nthe token is s3cret-value"), "the pod's log is the program's own"
    assert '"kind":"Saved"' in out.getvalue()
    assert "a log line\n" in err.getvalue()


def test_before_its_start_and_beside_a_parent_that_keeps_the_output_nothing_is_written(tmp_path: Path) -> None:
    for environment in ({}, {OUTPUT_KEPT: "1"}):
        with streams() as (out, err):
            output = ProgramOutput(IDENTITY, str(tmp_path), SecretValues({}), environment, Outbox())
            if environment:
                output.start()
            print("hello")
            output.close()
            assert (sys.stdout, sys.stderr) == (out, err)
    assert list(tmp_path.iterdir()) == []
