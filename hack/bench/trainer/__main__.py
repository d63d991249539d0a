"""`make bench BENCH=trainer`: the cost of the training loop, against Keras' own `fit` and a hand-written tf.function.

Also the gain of a mixed policy and of a second worker, and the time to the first step.

One JSON line for each figure on standard output; progress on standard error. The exit code is 0 whether goals are met
or not: a benchmark measures, and a noisy machine breaks no build.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from hack.bench.figures import progress, publish
from hack.bench.trainer import first_step, speed, workers


@dataclass(frozen=True)
class Effort:
    """The number and duration of measurements; seconds are those of one round of one contender."""

    rounds: int
    mlp_seconds: float
    resnet_seconds: float
    policy_seconds: float
    examples: int
    worker_steps: int
    few: bool = False


FULL = Effort(rounds=7, mlp_seconds=0.3, resnet_seconds=0.6, policy_seconds=2.0, examples=10_000, worker_steps=2000)
# Tests that every kind of figure is produced, not its value; each process costs seconds to start.
QUICK = Effort(
    rounds=1,
    mlp_seconds=0.01,
    resnet_seconds=0.01,
    policy_seconds=0.01,
    examples=200,
    worker_steps=10,
    few=True,
)

FIGURES = (
    *("mlp", "mlp-replicas", "resnet", "resnet-replicas", "first-step"),
    *("wide-mlp", "wide-resnet", "workers"),
)
# The others run the same code on a larger model.
QUICK_FIGURES = ("mlp", "mlp-replicas", "first-step", "wide-mlp", "workers")


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
        publish(first_step.measure(rounds=effort.rounds, examples=effort.examples))
    elif name.startswith("wide-"):
        wide: speed.WideTask = "wide-mlp" if name == "wide-mlp" else "wide-resnet"
        publish(speed.measure_policies(wide, rounds=effort.rounds, seconds=effort.policy_seconds))
    elif name == "workers":
        publish(workers.measure(rounds=effort.rounds, steps=effort.worker_steps, examples=effort.examples))
    else:
        task: speed.TaskName = "mlp" if name.startswith("mlp") else "resnet"
        seconds = effort.mlp_seconds if task == "mlp" else effort.resnet_seconds
        replicas = 2 if name.endswith("-replicas") else 1
        for measured in speed.measure(task, replicas, rounds=effort.rounds, seconds=seconds, few=effort.few):
            publish(measured)


if __name__ == "__main__":
    main()
