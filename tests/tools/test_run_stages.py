"""What `make test` prints before each stage, and stages that run at the same time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools.run_stages import ROOT, TYPICAL, descriptions, left, together


def test_every_stage_of_make_test_has_a_text_and_a_typical_time() -> None:
    makefile = Path(ROOT, "Makefile").read_text()
    (line,) = (line for line in makefile.splitlines() if line.startswith("STAGES := "))
    stages = line.removeprefix("STAGES := ").replace("+", " ").split()
    assert sorted(stages) == sorted(TYPICAL)
    assert set(stages) <= set(descriptions(makefile))


def test_the_time_that_is_left_counts_the_stages_to_come() -> None:
    expected = {"lint": 60.0, "test-unit": 150.0, "test-browser": 50.0}
    assert left([["lint"], ["test-unit"]], expected) == "about 4 minutes"
    assert left([["lint"]], expected) == "about 1 minute"
    assert left([["lint", "test-browser"], ["test-unit"]], expected) == "about 4 minutes"


def test_stages_of_a_group_run_at_the_same_time_and_each_is_printed_whole(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each waits for the other: one after the other, they would not end."""
    waits = (
        "import pathlib, sys, time; own, other = sys.argv[1:]\n"
        "print('begins', flush=True); pathlib.Path(own).touch()\n"
        "while not pathlib.Path(other).exists(): time.sleep(0.01)\n"
        "print('ends', file=sys.stderr); sys.exit(own.endswith('second'))\n"
    )
    files = {name: str(tmp_path / name) for name in ("first", "second")}
    commands = {
        name: [sys.executable, "-c", waits, files[name], files[other]]
        for name, other in (("first", "second"), ("second", "first"))
    }
    ended = together(commands, shown="first")
    assert {name: code for name, (code, _) in ended.items()} == {"first": 0, "second": 1}
    assert all(seconds > 0 for _, seconds in ended.values())
    printed = capfd.readouterr()
    assert "\n=== second failed:\nbegins\nends\n" in printed.out
    assert printed.err == "ends\n"
