"""Stages that the Makefile runs at the same time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STAGES = """
include Makefile
.PHONY: slow failing
slow: ; @sleep 0.2
failing: ; @exit 1
check: ; $(call side_by_side,{stages})
"""


@pytest.mark.parametrize("stages", ["slow failing", "failing slow"])
def test_a_stage_that_fails_before_another_has_ended_fails_all(stages: str, tmp_path: Path) -> None:
    makefile = tmp_path / "Makefile"
    makefile.write_text(STAGES.replace("{stages}", stages), encoding="utf-8")
    command = ["make", "--file", str(makefile), f"MAKE=make --file {makefile}", "check"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "slow | passed in" in ended.stdout
    assert ended.returncode == 2, ended.stdout + ended.stderr
