"""`mptj` in this process, and in one of its own for tests of processes and signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mptraining.cli.main import main


@dataclass(frozen=True)
class Ended:
    """The end of a command, with the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(name="mptj")
def mptj_in_this_process(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Runs a command line through the entry point of `mptj`."""

    def call(*arguments: str) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as raised:
            main(arguments)
        printed = capsys.readouterr()
        assert isinstance(raised.value.code, int | None)
        return Ended(raised.value.code or 0, printed.out, printed.err)

    return call


def mptj(*arguments: str, environment: dict[str, str], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mptraining", *arguments]
    options: dict[str, Any] = {"env": environment, "cwd": folder, "timeout": 240}
    return subprocess.run(command, capture_output=True, check=False, text=True, **options)


def signals_as_in_a_terminal() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def started(job: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A local run that has printed READY and the trainer's process id, with that line read."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mptraining", "run", str(job)],
        env=environment,
        cwd=job.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # The tests themselves may run under nohup or in a background shell, which ignore the signals sent here.
        preexec_fn=signals_as_in_a_terminal,  # noqa: PLW1509
    )
    assert process.stdout
    for line in process.stdout:
        if line.startswith("READY"):
            return process
    raise AssertionError(process.communicate()[1])
