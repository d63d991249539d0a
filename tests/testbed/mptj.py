"""`mptj` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path


def mptj(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mptraining", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=False, text=True, timeout=240)


def signals_as_in_a_terminal() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def started(job: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A local run that has printed READY and the trainer's process id, with that line read."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mptraining", "run", str(job), "--local"],
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
