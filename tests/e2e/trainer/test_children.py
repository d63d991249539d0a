"""What a script may do with processes, threads and signals: a job prints what plain Python prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mptraining_api import events
from tests.e2e.trainer import children
from tests.testbed.attempts import PATIENCE, Start


def rows(output: str) -> dict[str, str]:
    """Return the lines of each row, with those of its children."""
    found, below = {}, ""
    for line in output.splitlines():
        if line.startswith("  child"):
            below = line
        elif line.startswith("ROW"):
            name, _, value = line.removeprefix("ROW ").partition(" |")
            found[name], below = value + below, ""
    return found


def test_a_job_prints_what_plain_python_prints(start: Start) -> None:
    plain = subprocess.Popen(
        [sys.executable, children.__file__], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    spec = {"accelerator": {"type": "cpu"}, "program": {"script": {"path": "children.py"}}}
    job = start(spec, source=Path(children.__file__).parent)
    expected = rows(plain.communicate(timeout=PATIENCE)[0])
    assert job.wait() == [0], job.errors()
    assert rows(job.outputs[0].read_text()) == expected
    assert expected.keys() == {*children.ROWS, "fit in the last thread", "atexit"}
    assert len(job.all(events.Started)) == len(job.all(events.Finished)) == 1
    assert [event.step for event in job.all(events.Saved)] == [4, 8, 12, 16, 20, 24, 28, 32]
