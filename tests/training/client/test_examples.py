"""The example without data of its own trains unchanged, with its code in `source/` beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "manifests" / "examples"


@pytest.mark.test_all
def test_the_script_example_trains_on_this_machine(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("runs"))
    # From another folder: paths are relative to the job file's.
    command = [sys.executable, "-m", "mptraining", "run", "examples/cpu-script.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "  run folder  examples/runs/digits-script\n" in done.stdout
    result = json.loads((folder / "runs" / "digits-script" / "result.json").read_text())
    assert (result["reason"], result["step"]) == ("Succeeded", 36)
    assert result["metrics"]["val_accuracy"] > 0.5
