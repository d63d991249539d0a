"""Figure 6: two workers on this machine against one, through `mptj run` as a user starts them."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from hack.bench.figures import Figure, figure, progress
from hack.bench.rounds import ROOT, environment
from hack.bench.trainer.first_step import records
from hack.bench.trainer.jobs import document

_BATCH = 64
# Two workers do the work of two batches a step on the same cores: half as many steps is no loss at all.
_LEAST = 0.5


def measure(*, rounds: int, steps: int, examples: int) -> Figure:
    """Measure steps per second by `result.json`, each worker with its own batch, in turn."""
    progress("two workers against one")
    with tempfile.TemporaryDirectory(prefix="mptraining-bench-") as name:
        folder = Path(name)
        pattern = records(folder, examples)
        speeds: dict[int, list[float]] = {1: [], 2: []}
        for number in range(rounds):
            for nodes, found in speeds.items():
                found.append(_speed(folder, f"{nodes}-{number}", pattern, nodes, steps))
            progress(f"  round {number + 1} of {rounds}: {speeds[1][-1]:.0f} and {speeds[2][-1]:.0f} steps/s")
    return figure(
        "trainer.mlp.2_workers.steps_per_second",
        speeds[2],
        speeds[1],
        unit="steps/s",
        against="one worker, with half the examples a step",
        least=_LEAST,
    )


def _speed(folder: Path, name: str, pattern: str, nodes: int, steps: int) -> float:
    written = document("workers", train=pattern, batch=_BATCH, training={"totalSteps": steps, "seed": 7})
    written["spec"]["nodes"] = nodes
    job, output = folder / f"{name}.yaml", folder / name
    job.write_text(yaml.safe_dump(written), encoding="utf-8")
    command = [sys.executable, "-m", "mptraining", "run", str(job), "--local", "--output", str(output)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        progress(done.stdout[-2000:] + done.stderr[-2000:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return 1.0 / float(json.loads((output / "result.json").read_text())["stepSeconds"])
