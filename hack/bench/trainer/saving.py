"""Figure 5: the pause of the loop for a checkpoint of 200 MB, and the time in which a restart reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from hack.bench.figures import Figure, figure, progress
from hack.bench.rounds import ROOT, environment

# The default is a checkpoint an epoch: here of 60,000 examples, as many as MNIST has, in batches of 32.
EPOCH = 1875


def measure(*, rounds: int, task: str = "large-mlp") -> Iterator[Figure]:
    """Measure against a copy of the state in memory, an epoch without a save, and reading the same files."""
    progress(f"{task}: saving and restoring its state")
    done = subprocess.run(
        [sys.executable, "-m", "hack.bench.trainer.saving_child", str(rounds), task],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        progress(done.stderr[-4000:])
        raise RuntimeError(f"hack.bench.trainer.saving_child ended with {done.returncode}")
    found = json.loads(done.stdout)
    progress(f"  the state is {found['bytes'][0] / 1e6:.0f} MB")
    yield figure(
        "trainer.save.stands_still_seconds",
        found["save"],
        found["copy"],
        unit="s",
        against="a copy of the state in memory",
        most=1.5,
    )
    yield figure(
        "trainer.save.seconds_per_step",
        [step + save / EPOCH for step, save in zip(found["step"], found["save"], strict=True)],
        found["step"],
        unit="s/step",
        against=f"without saves, an epoch being {EPOCH} steps",
        most=1.03,
    )
    # This figure has no goal: a restore should cost little more than reading its files.
    yield figure(
        "trainer.resume_seconds",
        found["restore"],
        found["read"],
        unit="s",
        against="reading the files and their checksums",
        most=3.0,
    )
