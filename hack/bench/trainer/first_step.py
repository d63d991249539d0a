"""Figure 3: from the start of `mptj run` to the first training step, against a plain Keras script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from hack.bench.figures import Figure, figure, progress
from hack.bench.trainer.jobs import document
from hack.bench.trainer.rounds import ENVIRONMENT
from mptraining_records.convert.convert import convert

ROOT = Path(__file__).resolve().parents[3]
# Enough that the reading of records is visible, since both read the first minutes of a data set.
_EXAMPLES = 10_000
_BATCH = 64
_MOST = 1.3


def measure(*, rounds: int) -> Figure:
    """Measure seconds to the first step on the same records, in turn, after one round of each that does not count."""
    progress(f"time to the first step, {_EXAMPLES} records")
    with tempfile.TemporaryDirectory(prefix="mptraining-bench-") as name:
        folder = Path(name)
        pattern = _records(folder)
        job = folder / "job.yaml"
        written = document("first-step", train=pattern, batch=_BATCH, training={"totalSteps": 1, "seed": 7})
        job.write_text(yaml.safe_dump(written), encoding="utf-8")
        ours, theirs = [], []
        for number in range(rounds + 1):
            ours.append(_with_mptj(job, folder / f"run-{number}"))
            theirs.append(_with_plain_script(pattern))
            progress(f"  round {number} of {rounds}: mptj run {ours[-1]:.2f} s, plain {theirs[-1]:.2f} s")
    return figure(
        "trainer.seconds_to_first_step",
        ours[1:],
        theirs[1:],
        unit="s",
        against="plain Keras script",
        most=_MOST,
    )


def _records(folder: Path) -> str:
    """Write random images as TFRecords; return their pattern."""
    numbers = np.random.default_rng(7)
    images = numbers.integers(0, 256, (_EXAMPLES, 28, 28, 1)).astype(np.uint8)
    np.savez(folder / "train.npz", image=images, label=numbers.integers(0, 10, _EXAMPLES))
    convert(str(folder / "train.npz"), str(folder / "records"), keep_order=True)
    return str(folder / "records" / "train-*.tfrecord")


def _with_mptj(job: Path, output: Path) -> float:
    """Return the seconds until the worker reports the Progress of its first step."""
    began = time.time()
    _run([sys.executable, "-m", "mptraining", "run", str(job), "--run-folder", str(output)])
    lines = [line for file in (output / "events").iterdir() for line in file.read_text().splitlines()]
    return float(next(event["time"] for event in map(json.loads, lines) if event["kind"] == "Progress")) - began


def _with_plain_script(pattern: str) -> float:
    began = time.time()
    printed = _run([sys.executable, str(ROOT / "hack" / "bench" / "trainer" / "plain_script.py"), pattern])
    return float(printed.split()[-1]) - began


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        progress(done.stdout[-2000:] + done.stderr[-2000:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return done.stdout
