"""KerasTuner's distributed mode: an unmodified script on one oracle and two tuners, whose oracle is killed once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mptraining_api.launch import INDEX
from tests.training.tuner_script import BEST, tuner_script

pytest.importorskip("keras_tuner", reason="keras-tuner is not installed")
# A start of TensorFlow takes seconds, on a busy machine tens of them.
PATIENCE = 900.0
pytestmark = pytest.mark.timeout(3 * PATIENCE)

TRIALS = 6
SCRIPT = tuner_script(trials=TRIALS) + BEST
JOB = """
apiVersion: mptraining.dev/v1alpha1
kind: MPTrainingJob
metadata: {name: tune}
spec:
  accelerator: {type: cpu}
  nodes: 3
  program: {script: {path: tune.py, tuner: KerasTuner}}
  output: {uri: run}
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mptraining", "run", "job.yaml", "--local"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def worker(parent: int, index: int) -> int:
    """Return the process id of the worker that `mptj run` with that process id has started."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            own = int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if own and f"{INDEX}={index}".encode() in (process / "environ").read_bytes().split(b"\0"):
                return int(process.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError(f"no worker {index}")


def ended_trials(folder: Path) -> dict[str, str]:
    """Return the text of each trial that the oracle has stored as completed."""
    oracle = folder / "run" / "tuner" / "my_dir" / "hello" / "oracle.json"
    names = json.loads(oracle.read_text())["end_order"] if oracle.exists() else []
    return {name: (oracle.parent / f"trial_{name}" / "trial.json").read_text() for name in names}


def test_a_search_continues_after_its_oracle_was_killed(tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(JOB)
    first = start(tmp_path)
    try:
        end = time.monotonic() + PATIENCE
        while len(ended_trials(tmp_path)) < 2:
            assert first.poll() is None, first.communicate()[0]
            assert time.monotonic() < end, "no trial ended"
            time.sleep(0.2)
        os.kill(worker(first.pid, 0), signal.SIGKILL)
        printed, _ = first.communicate(timeout=PATIENCE)
    finally:
        first.kill()
    assert first.returncode == 128 + signal.SIGKILL, printed
    kept = ended_trials(tmp_path)
    assert 2 <= len(kept) < TRIALS

    second = start(tmp_path)
    try:
        printed, _ = second.communicate(timeout=PATIENCE)
    finally:
        second.kill()
    assert second.returncode == 0, printed
    after = ended_trials(tmp_path)
    assert len(after) == TRIALS
    assert {name: after[name] for name in kept} == kept, "a trial that had ended does not run again"
    # What follows the search runs once, where the oracle is; it has the weights that the tuners have stored.
    best = min(json.loads(trial)["score"] for trial in after.values())
    (line,) = [line for line in printed.splitlines() if line.startswith("BEST")]
    assert float(line.removeprefix("BEST ")) == pytest.approx(best, rel=1e-4)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"]["val_loss"] == pytest.approx(best)
    assert (tmp_path / "run" / "model" / "model.keras").exists()
    workers = {path.name.split("-")[-2] for path in (tmp_path / "run" / "events").glob("2-*.jsonl")}
    assert workers == {"0", "1", "2"}
