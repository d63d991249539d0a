"""`python -m bench.sweeps`: the best validation accuracy after 30 trials of TPE against random search, and the device
time in which Hyperband finds what random search finds.

Every trial is proposed, started, stopped and counted by `mptraining_api.sweep`; what a trial trains is a small net in
NumPy (`bench.sweeps.net`) on scikit-learn's digits, in this process and on one core. Device time is CPU time of
training. One JSON line for each figure on standard output, the values of each seed on standard error.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from threadpoolctl import threadpool_limits

from bench.figures import figure, progress, publish
from bench.sweeps.net import Digits, Net
from mptraining_api.sweep.actions import CreateJob, TrialJob
from mptraining_api.sweep.plan import plan
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import SweepStatus

EPOCHS = 27
TRIALS = 30
# Hyperband may start more trials than random search, which it compares after an epoch.
MOST_HYPERBAND_TRIALS = 300
ARGUMENTS = "program.function.arguments"
# Ranges of somebody who does not know the good ones.
PARAMETERS: list[dict[str, Any]] = [
    {"path": f"{ARGUMENTS}.rate", "logUniform": {"low": 1e-5, "high": 1.0}},
    {"path": f"{ARGUMENTS}.momentum", "uniform": {"low": 0.0, "high": 0.99}},
    {"path": f"{ARGUMENTS}.decay", "logUniform": {"low": 1e-6, "high": 1e-1}},
    {"path": f"{ARGUMENTS}.dropout", "uniform": {"low": 0.0, "high": 0.7}},
    {"path": f"{ARGUMENTS}.width", "int": {"low": 16, "high": 128, "step": 16}},
    {"path": f"{ARGUMENTS}.batch", "values": [32, 64, 128, 256]},
]


@dataclass
class Search:
    """One sweep that has ended: its status, the CPU seconds and the epochs of its trainings."""

    status: SweepStatus
    seconds: float
    epochs: int

    @property
    def best(self) -> float:
        return self.status.best.objective if self.status.best else math.nan


@dataclass
class Trainings:
    """The trainings of one sweep, in the place of a cluster; a trial's net is its run folder."""

    digits: Digits
    seed: int
    nets: dict[str, Net] = field(default_factory=dict)
    seconds: float = 0.0
    epochs: int = 0

    def run(self, document: dict[str, Any]) -> TrialJob:
        """Train as the job says, from where its run folder is."""
        spec, name = document["spec"], document["metadata"]["name"]
        arguments = spec["program"]["function"]["arguments"]
        folder = spec["output"]["uri"]
        net = self.nets.get(folder) or Net.create(arguments["width"], self.seed)
        began = time.process_time()
        trained = net.train(self.digits, arguments, epochs=spec["training"]["epochs"])
        accuracy = trained.accuracy(self.digits)
        self.seconds += time.process_time() - began
        self.epochs += trained.epochs - net.epochs
        self.nets[folder] = trained
        if math.isnan(accuracy):
            return TrialJob(name, "Failed", message="the weights are not finite")
        return TrialJob(name, "Succeeded", metrics={"val_accuracy": accuracy})


def search(algorithm: str, seed: int, digits: Digits, *, trials: int, target: float | None = None) -> Search:
    """Run one sweep, one trial at a time, to its end."""
    sweep = MPTrainingSweep.parse_document(
        {
            "apiVersion": "mptraining.dev/v1alpha1",
            "kind": "MPTrainingSweep",
            "metadata": {"name": "digits"},
            "spec": {
                "objective": {"metric": "val_accuracy", "direction": "Maximize"},
                "algorithm": {"name": algorithm, "seed": seed},
                "parameters": PARAMETERS,
                "trials": {"max": trials, "maxFailed": trials},
                "stop": {} if target is None else {"target": target},
                "job": {
                    "accelerator": {"type": "cpu"},
                    "program": {"function": {"entryPoint": "bench.sweeps.net:Net", "arguments": {}}},
                    "training": {"epochs": EPOCHS},
                    "output": {"uri": "digits"},
                },
            },
        }
    )
    trainings = Trainings(digits, seed)
    status: SweepStatus | None = None
    jobs: dict[str, TrialJob] = {}
    while status is None or status.completion_time is None:
        found = plan(sweep, status, jobs, 0.0)
        status = found.status
        for action in found.actions:
            if isinstance(action, CreateJob):
                jobs[action.name] = trainings.run(action.document)
    return Search(status, trainings.seconds, trainings.epochs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sweeps", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="seeds of each algorithm")
    parser.add_argument("--trials", type=int, default=TRIALS, help="trials of random search and TPE")
    chosen = parser.parse_args()
    digits = Digits.load()
    randoms, tpes, halved = list[Search](), list[Search](), list[Search]()
    with threadpool_limits(1):
        for seed in range(1, chosen.seeds + 1):
            randoms.append(search("Random", seed, digits, trials=chosen.trials))
            tpes.append(search("TPE", seed, digits, trials=chosen.trials))
            most = MOST_HYPERBAND_TRIALS * chosen.trials // TRIALS
            halved.append(search("Hyperband", seed, digits, trials=most, target=randoms[-1].best))
            for name, each in (("random", randoms[-1]), ("TPE", tpes[-1]), ("Hyperband", halved[-1])):
                count = len(each.status.trials or ())
                text = f"{each.best:.4f} after {count} trials, {each.epochs} epochs, {each.seconds:.1f} s"
                progress(f"seed {seed}: {name}: {text}")
    median = statistics.median(each.best for each in randoms)
    better = sum(each.best > median for each in tpes)
    spread = f"{min(each.best for each in randoms):.4f} to {max(each.best for each in randoms):.4f}"
    progress(f"random search: median {median:.4f}, {spread}")
    progress(f"TPE is above the median of random search, {median:.4f}, for {better} of {len(tpes)} seeds")
    missed = sum(mine.best < theirs.best for mine, theirs in zip(halved, randoms, strict=True))
    progress(f"Hyperband did not reach random search's best for {missed} of {len(halved)} seeds")
    publish(
        figure(
            "sweeps.digits.tpe.best_validation_accuracy",
            [each.best for each in tpes],
            [median] * len(tpes),
            unit="accuracy",
            against=f"median of random search, {chosen.trials} trials",
            # Better: one held-out digit of 360 is 0.0028.
            least=1.001,
        )
    )
    for name, unit, values in (
        ("device_seconds", "s", [(mine.seconds, theirs.seconds) for mine, theirs in zip(halved, randoms, strict=True)]),
        ("epochs", "epochs", [(mine.epochs, theirs.epochs) for mine, theirs in zip(halved, randoms, strict=True)]),
    ):
        publish(
            figure(
                f"sweeps.digits.hyperband.{name}_to_the_same_best",
                [float(mine) for mine, _ in values],
                [float(theirs) for _, theirs in values],
                unit=unit,
                against=f"random search, {chosen.trials} trials",
                most=0.5,
            )
        )


if __name__ == "__main__":
    main()
