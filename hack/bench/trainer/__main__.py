"""`make bench BENCH=trainer`: the cost of the training loop, against Keras' own `fit` and a hand-written tf.function.

Also the gain of a mixed policy, and the time to the first step.

One JSON line for each figure on standard output; progress on standard error. The exit code is 0 whether goals are met
or not: a benchmark measures, and a noisy machine breaks no build.
"""

from __future__ import annotations

import argparse

from hack.bench.figures import publish
from hack.bench.trainer import first_step, speed

ROUNDS = 7
# Seconds of one round of one contender.
SECONDS = {"mlp": 0.3, "resnet": 0.6, "wide-mlp": 2.0}
FIGURES = ("mlp", "mlp-replicas", "resnet", "resnet-replicas", "first-step", "wide-mlp")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hack.bench.trainer", description=__doc__)
    parser.add_argument("--only", choices=FIGURES, action="append", help="these figures alone; repeatable")
    arguments = parser.parse_args()
    for name in arguments.only or FIGURES:
        _figures(name)


def _figures(name: str) -> None:
    if name == "first-step":
        publish(first_step.measure(rounds=ROUNDS))
    elif name == "wide-mlp":
        publish(speed.measure_policies(rounds=ROUNDS, seconds=SECONDS[name]))
    else:
        task: speed.TaskName = "mlp" if name.startswith("mlp") else "resnet"
        replicas = 2 if name.endswith("-replicas") else 1
        for measured in speed.measure(task, replicas, rounds=ROUNDS, seconds=SECONDS[task]):
            publish(measured)


if __name__ == "__main__":
    main()
