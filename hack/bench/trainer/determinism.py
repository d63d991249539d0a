"""The cost of op determinism for the input pipeline, through the real trainer on a CPU.

Jobs run by `mptj run --local`, in turn. Each example goes through a map function, and a step waits about as long as a
batch of them takes, as a host waits for a GPU: overlapped, a step takes as long as one of the two, else as both.

    Never      `training.deterministic: Never`
    Always     `training.deterministic: Always`
    tensorflow the same over `tf.data.Dataset.from_generator`, which loses its asynchrony under determinism
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hack.bench.figures import Figure, figure, progress
from hack.bench.rounds import ROOT, environment
from mptraining_records.convert.convert import convert

_SIDE, _BATCH, _EXAMPLES = 224, 32, 512
# The permitted time of a step with determinism, as a multiple of the time without.
_MOST = 1.05
_CONTENDERS = {"Never": ("Never", "own"), "Always": ("Always", "own"), "tensorflow": ("Always", "tensorflow")}


def measure(*, rounds: int, steps: int) -> list[Figure]:
    """Measure seconds a step by `result.json`: with determinism against without, ours and TensorFlow's own source."""
    progress("the input pipeline under op determinism")
    with tempfile.TemporaryDirectory(prefix="mptraining-bench-") as name:
        folder = Path(name)
        pattern = _images(folder)
        # The pipeline alone: its time is the wait that the step then simulates.
        alone = _seconds(folder, "alone", pattern, "Never", "own", 0.0, steps)
        progress(f"  the pipeline alone: {alone * 1e3:.1f} ms a batch; the step waits as long")
        taken: dict[str, list[float]] = {contender: [] for contender in _CONTENDERS}
        for number in range(rounds):
            for contender, (deterministic, source) in _CONTENDERS.items():
                run = f"{contender}-{number}"
                taken[contender].append(_seconds(folder, run, pattern, deterministic, source, alone, steps))
            times = ", ".join(f"{contender} {found[-1] * 1e3:.1f}" for contender, found in taken.items())
            progress(f"  round {number + 1} of {rounds}: {times} ms a step")
    both = [2 * alone] * rounds
    return [
        figure(
            "trainer.deterministic.seconds_per_step",
            taken["Always"],
            taken["Never"],
            unit="s",
            against="training.deterministic: Never",
            most=_MOST,
        ),
        figure(
            "trainer.deterministic.seconds_per_step",
            taken["Always"],
            taken["tensorflow"],
            unit="s",
            against="the same over tf.data.Dataset.from_generator",
            most=1.0,
        ),
        figure(
            "trainer.deterministic.seconds_per_step",
            taken["Always"],
            both,
            unit="s",
            against="pipeline and step one after the other",
            most=0.75,
        ),
    ]


def _images(folder: Path) -> str:
    numbers = np.random.default_rng(7)
    images = numbers.integers(0, 256, (_EXAMPLES, _SIDE, _SIDE, 3)).astype(np.uint8)
    np.savez(folder / "train.npz", image=images, label=numbers.integers(0, 10, _EXAMPLES))
    convert(str(folder / "train.npz"), str(folder / "records"), keep_order=True)
    return str(folder / "records" / "train-*.tfrecord")


def _seconds(folder: Path, name: str, pattern: str, deterministic: str, source: str, wait: float, steps: int) -> float:
    """Return the seconds a step of one job, by its `result.json`."""
    written = _document(pattern, deterministic, source, wait, steps)
    job, output = folder / f"{name}.yaml", folder / name
    job.write_text(yaml.safe_dump(written), encoding="utf-8")
    command = [sys.executable, "-m", "mptraining", "run", str(job), "--local", "--output", str(output)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command, env={**environment(), "PYTHONPATH": path}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        progress(done.stdout[-2000:] + done.stderr[-2000:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    return float(json.loads((output / "result.json").read_text())["stepSeconds"])


def _document(pattern: str, deterministic: str, source: str, wait: float, steps: int) -> dict[str, Any]:
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": "overlap"},
        "spec": {
            "accelerator": {"type": "cpu", "countPerNode": 1},
            "program": {
                "function": {
                    "entryPoint": "hack.bench.trainer.overlap_program:build",
                    "arguments": {"seconds": wait, "source": source},
                }
            },
            # Read and mapped in every pass, as for data that does not fit into memory.
            "data": {"train": [pattern], "cache": "None", "preprocess": "hack.bench.trainer.overlap_program:augment"},
            "training": {
                "totalSteps": steps,
                "batchSize": {"perReplica": _BATCH},
                "deterministic": deterministic,
                "seed": 7,
            },
        },
    }
