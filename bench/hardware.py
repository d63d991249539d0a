"""`python -m bench.hardware --gpus 1 4 8`: the speedup by mixed precision and more GPUs, on a machine that has them.

Trains ResNet50 on synthetic images through `mptj run --local`, in turn: float32 on one GPU, mixed on one, mixed on each
larger number. The goals are those that the project has set itself: mixed precision 3 times as fast on one GPU with
Tensor Cores; 4 GPUs 3.8 times and 8 GPUs 7.3 times as fast as one. One JSON line a figure; progress on standard error.

`--cpu` runs the same code on logical CPU devices with a small network, as a test; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.figures import Figure, figure, progress, publish
from bench.rounds import ROOT, environment
from bench.trainer.jobs import document
from mptraining_records.convert.convert import convert

# Goals: ratios of examples per second, with `--batch` examples for each replica.
_MIXED = 3.0
_SCALING = {2: 1.9, 4: 3.8, 8: 7.3}


@dataclass(frozen=True)
class Machine:
    """The training and its devices; `side` in pixels, `batch` for each replica."""

    accelerator: str
    application: dict[str, Any]
    mixed: str
    side: int
    batch: int
    steps: int
    images: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hardware", description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1], metavar="N", help="numbers of GPUs, such as 1 4 8")
    parser.add_argument("--accelerator", default="nvidia-tesla-v100", help="its name in the catalogue")
    parser.add_argument("--batch", type=int, default=128, help="examples for each GPU")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu", action="store_true", help="on logical CPU devices: a test of this program")
    arguments = parser.parse_args()
    resnet = {"name": "ResNet50", "weights": "none", "classes": 1000}
    machine = Machine(arguments.accelerator, resnet, "mixed_float16", 224, arguments.batch, arguments.steps, 2048)
    if arguments.cpu:
        machine = Machine("cpu", {"name": "cnn", "classes": 10}, "mixed_bfloat16", 16, 8, 20, 64)
    for one in measure(machine, sorted(set(arguments.gpus)), rounds=arguments.rounds):
        publish(one)


def measure(machine: Machine, counts: list[int], *, rounds: int) -> list[Figure]:
    """Measure examples per second: mixed over float32 on one device, and each number of devices over one."""
    setups = {("float32", 1), (machine.mixed, 1), *((machine.mixed, count) for count in counts)}
    speeds: dict[tuple[str, int], list[float]] = {setup: [] for setup in sorted(setups)}
    with tempfile.TemporaryDirectory(prefix="mptraining-bench-") as name:
        folder = Path(name)
        pattern = _images(folder, machine)
        # The first round fills caches and does not count.
        for number in range(rounds + 1):
            for (policy, count), found in speeds.items():
                found.append(_speed(machine, folder, f"{policy}-{count}-{number}", pattern, policy, count))
                progress(f"  round {number} of {rounds}: {policy} on {count}: {found[-1]:.0f} examples/s")
    warm = {setup: found[1:] for setup, found in speeds.items()}
    network = machine.application["name"]
    figures = [
        figure(
            f"trainer.{network}.{machine.mixed}.examples_per_second",
            warm[machine.mixed, 1],
            warm["float32", 1],
            unit="examples/s",
            against="float32 on one device",
            least=_MIXED,
        )
    ]
    for count in counts:
        if count > 1:
            figures.append(
                figure(
                    f"trainer.{network}.{count}_devices.examples_per_second",
                    warm[machine.mixed, count],
                    warm[machine.mixed, 1],
                    unit="examples/s",
                    against="one device",
                    least=_SCALING.get(count, 0.9 * count),
                )
            )
    return figures


def _images(folder: Path, machine: Machine) -> str:
    """Write noise, so that no decoder is measured; raw bytes in TFRecords, kept in memory by the trainer."""
    numbers = np.random.default_rng(7)
    images = numbers.integers(0, 256, (machine.images, machine.side, machine.side, 3)).astype(np.uint8)
    np.savez(folder / "train.npz", image=images, label=numbers.integers(0, 10, machine.images))
    convert(str(folder / "train.npz"), str(folder / "records"), keep_order=True)
    return str(folder / "records" / "train-*.tfrecord")


def _speed(machine: Machine, folder: Path, name: str, pattern: str, policy: str, count: int) -> float:
    written = document(
        "hardware", train=pattern, batch=machine.batch, training={"totalSteps": machine.steps}, replicas=count
    )
    written["spec"]["accelerator"]["type"] = machine.accelerator
    written["spec"]["program"] = {"application": machine.application}
    written["spec"]["precision"] = {"policy": policy}
    job, output = folder / f"{name}.yaml", folder / name
    job.write_text(yaml.safe_dump(written), encoding="utf-8")
    command = [sys.executable, "-m", "mptraining", "run", str(job), "--local", "--output", str(output)]
    # Unlike the rest of this folder, which hides GPUs.
    visible = environment() if machine.accelerator == "cpu" else {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, env=visible, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        progress(done.stdout[-2000:] + done.stderr[-2000:])
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    result = json.loads((output / "result.json").read_text())
    fell_back = machine.accelerator != "cpu" and result["nativeBfloat16"] is not None
    if fell_back or result["replicasInSync"] != count:
        what = "CPUs" if fell_back else "devices"
        raise SystemExit(f"{count} x {machine.accelerator} was asked for and {result['replicasInSync']} {what} trained")
    return float(result["examplesPerSecond"])


if __name__ == "__main__":
    main()
