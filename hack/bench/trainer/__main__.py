"""`make bench BENCH=trainer`: the cost of the training loop, against Keras' own `fit` and a hand-written tf.function.

Also the cost of saving and of op determinism, and the gain of a mixed policy and a second worker.

One JSON line for each figure on standard output; progress on standard error. The exit code is 0 whether goals are met
or not: a benchmark measures, and a noisy machine breaks no build.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from hack.bench.figures import progress, publish
from hack.bench.trainer import determinism, first_step, saving, speed, telemetry_and_checkpoints, workers
from hack.bench.trainer.telemetry_and_checkpoints import Interval


@dataclass(frozen=True)
class Effort:
    """The number and duration of measurements; seconds are those of one round of one contender."""

    speed_rounds: int
    mlp_seconds: float
    resnet_seconds: float
    keeping_rounds: int
    intervals: tuple[tuple[Interval, float], ...]
    first_step_rounds: int
    examples: int
    policy_rounds: int
    policy_seconds: float
    saving_rounds: int
    worker_rounds: int
    worker_steps: int
    overlap_rounds: int
    overlap_steps: int
    few: bool = False


FULL = Effort(
    speed_rounds=7,
    mlp_seconds=0.3,
    resnet_seconds=0.6,
    # More and shorter rounds where a difference of 3% must be visible.
    keeping_rounds=9,
    intervals=tuple(zip(telemetry_and_checkpoints.INTERVALS, (0.8, 2.0), strict=True)),
    first_step_rounds=7,
    examples=10_000,
    policy_rounds=7,
    policy_seconds=2.0,
    saving_rounds=9,
    worker_rounds=7,
    worker_steps=2000,
    overlap_rounds=7,
    overlap_steps=80,
)
# Tests that every kind of figure is produced, not its value; each process costs seconds to start.
QUICK = Effort(
    speed_rounds=1,
    mlp_seconds=0.01,
    resnet_seconds=0.01,
    keeping_rounds=1,
    intervals=((Interval("mlp", 32), 0.01),),
    first_step_rounds=1,
    examples=200,
    policy_rounds=1,
    policy_seconds=0.01,
    saving_rounds=1,
    worker_rounds=1,
    worker_steps=10,
    overlap_rounds=1,
    overlap_steps=4,
    few=True,
)

FIGURES = (
    *("mlp", "mlp-replicas", "resnet", "resnet-replicas", "keeping", "first-step"),
    *("wide-mlp", "wide-resnet", "saving", "workers", "determinism"),
)
# The others run the same code on a larger model.
QUICK_FIGURES = ("mlp", "mlp-replicas", "keeping", "first-step", "wide-mlp", "saving", "workers", "determinism")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.trainer", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one tiny round of each: a test of the benchmark")
    parser.add_argument("--only", choices=FIGURES, action="append", help="these figures alone; repeatable")
    arguments = parser.parse_args()
    effort, began = QUICK if arguments.quick else FULL, time.monotonic()
    for name in arguments.only or (QUICK_FIGURES if arguments.quick else FIGURES):
        _figures(name, effort)
        progress(f"{time.monotonic() - began:.0f} s so far")


def _figures(name: str, effort: Effort) -> None:
    if name == "first-step":
        publish(first_step.measure(rounds=effort.first_step_rounds, examples=effort.examples))
    elif name == "keeping":
        for interval, seconds in effort.intervals:
            publish(telemetry_and_checkpoints.measure(interval, rounds=effort.keeping_rounds, seconds=seconds))
    elif name.startswith("wide-"):
        wide: speed.WideTask = "wide-mlp" if name == "wide-mlp" else "wide-resnet"
        publish(speed.measure_policies(wide, rounds=effort.policy_rounds, seconds=effort.policy_seconds))
    elif name == "saving":
        for one in saving.measure(rounds=effort.saving_rounds, task="mlp" if effort.few else "large-mlp"):
            publish(one)
    elif name == "determinism":
        for one in determinism.measure(rounds=effort.overlap_rounds, steps=effort.overlap_steps):
            publish(one)
    elif name == "workers":
        publish(workers.measure(rounds=effort.worker_rounds, steps=effort.worker_steps, examples=effort.examples))
    else:
        task: speed.TaskName = "mlp" if name.startswith("mlp") else "resnet"
        seconds = effort.mlp_seconds if task == "mlp" else effort.resnet_seconds
        replicas = 2 if name.endswith("-replicas") else 1
        for one in speed.measure(task, replicas, rounds=effort.speed_rounds, seconds=seconds, few=effort.few):
            publish(one)


if __name__ == "__main__":
    main()
