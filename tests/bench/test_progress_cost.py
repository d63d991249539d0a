"""`bench.operator.progress_cost` still produces every figure, from a handful of jobs; values depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.left_out import leave_out
from tests.testbed import missing
from tests.testbed.binaries import CONTROL_PLANE

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.cluster
@pytest.mark.soak
def test_every_figure_is_produced() -> None:
    if absent := missing(CONTROL_PLANE):
        leave_out(absent)
    command = [sys.executable, "-m", "bench.operator.progress_cost", "--jobs", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["operation"] for each in figures if "operation" in each] == ["review", "report", "read", "write"]
    assert sum("a_minute" in each for each in figures) == 3
