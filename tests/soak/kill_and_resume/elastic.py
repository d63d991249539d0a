"""Runs whose number of workers changes at every attempt, and what of them may differ from a run of one size.

python -m tests.soak.kill_and_resume.elastic      # every order of 1, 2, 3 and 4 workers
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mptraining_api import events
from mptraining_api.launch import INCARNATION, INDEX, PROGRESS_SECONDS, SOURCE_FOLDER, launch
from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_records.convert.convert import convert
from tests.soak.kill_and_resume import counting_program
from tests.soak.kill_and_resume.faults import Fault
from tests.soak.kill_and_resume.rounds import free_hosts
from tests.testbed.forks import Forks

RECORDS, VALIDATION, BATCH, EPOCHS, SAVE_EVERY = counting_program.RECORDS, 240, 24, 5, 5
STEPS_PER_EPOCH = RECORDS // BATCH
SIZES = (2, 3, 4, 1)
# In the middle of an epoch, and no multiples of the checkpoints' steps.
KILLED_AT = (27, 48, 73)
PATIENCE = 600.0
# The metrics whose values after training are compared.
COMPARED = ("val_accuracy", "val_loss")


@dataclass
class ElasticRun:
    """Metrics at the end of each epoch, from every attempt that ended it, and the exported weights."""

    codes: list[list[int]] = field(default_factory=list)
    # The workers of each Started event, and its first step.
    started: list[tuple[int, int]] = field(default_factory=list)
    epochs: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    # The loss of the epoch so far, at each reported step.
    losses: dict[int, float] = field(default_factory=dict)
    weights: list[Any] = field(default_factory=list)

    def curve(self, metric: str) -> list[float]:
        """Return the metric at the end of each epoch, as its last attempt reported it."""
        return [self.epochs[epoch][-1][metric] for epoch in sorted(self.epochs)]


def make_data(folder: Path) -> None:
    """Write the records, each with its number, and the program's source beside them."""
    numbers = np.random.default_rng(11)
    for name, count in (("train", RECORDS), ("validation", VALIDATION)):
        images = numbers.normal(size=(count, 6, 6, 1)).astype(np.float32)
        labels = images.reshape(count, 3, -1).sum(axis=2).argmax(axis=1)
        np.savez(folder / f"{name}.npz", image=images, label=labels, number=np.arange(count))
        convert(str(folder / f"{name}.npz"), str(folder), name=name, keep_order=True)
    shutil.copy(counting_program.__file__, folder / "counting_program.py")


def run(
    forks: Forks,
    data: Path,
    folder: Path,
    sizes: Sequence[int],
    killed_at: Sequence[int] = (),
    *,
    program: str = "plain",
    seed: int = 7,
) -> ElasticRun:
    """Train with `sizes[i]` workers in attempt i + 1, of which one worker is killed at step `killed_at[i]`."""
    folder.mkdir(parents=True)
    done = ElasticRun()
    for number, size in enumerate(sizes, start=1):
        last = number == len(sizes)
        # The chief of one attempt, the last worker of the next one.
        lost = 0 if number % 2 else size - 1
        hit = {} if last else {lost: Fault(signal.SIGKILL, killed_at[number - 1])}
        codes = _attempt(forks, data, folder, number, size, hit, program, seed)
        done.codes.append(codes)
        expected = [0 if last else -signal.SIGKILL if worker in hit else 76 for worker in range(size)]
        if codes != expected:
            said = (folder / f"{number}-0.err").read_text()[-2000:]
            raise AssertionError(f"attempt {number} of {size} workers: {codes} instead of {expected}\n{said}")
        _read(done, folder / f"{number}-0.out", size)
    with np.load(folder / "run" / "model" / "weights.npz") as exported:
        done.weights = [exported[name] for name in sorted(exported)]
    return done


def _read(done: ElasticRun, output: Path, size: int) -> None:
    for event in filter(None, map(events.parse, output.read_text().splitlines())):
        if isinstance(event, events.Started):
            assert event.workers == size
            done.started.append((event.workers, event.first_step))
        elif isinstance(event, events.Progress):
            done.losses[event.step] = event.metrics["loss"]
            if event.step % STEPS_PER_EPOCH == 0 and "val_accuracy" in event.metrics:
                done.epochs.setdefault(event.step // STEPS_PER_EPOCH, []).append(dict(event.metrics))


def _attempt(
    forks: Forks, data: Path, folder: Path, number: int, size: int, hit: dict[int, Fault], program: str, seed: int
) -> list[int]:
    document = {
        "accelerator": {"type": "cpu"},
        "elastic": {"min": min(SIZES), "max": max(SIZES)},
        "precision": {"policy": "float32"},
        "program": {"function": {"entryPoint": f"counting_program:{program}"}},
        "data": {
            "train": [f"{data}/train-*.tfrecord"],
            "validation": [f"{data}/validation-*.tfrecord"],
            "label": "label",
            "shuffle": {"bufferSize": 100},
        },
        "training": {"epochs": EPOCHS, "batchSize": {"global": BATCH}, "seed": seed, "stepsPerExecution": 1},
        "checkpoint": {"everySteps": SAVE_EVERY},
        "output": {"uri": str(folder / "run")},
    }
    frozen = resolve(MPTrainingJob.parse({"metadata": {"name": "elastic"}, "spec": document}), ClusterSettings())
    job = for_attempt(frozen, nodes=size)
    job_file = folder / f"{number}.json"
    launched = launch(job, hosts=free_hosts(size), job_path=str(job_file), attempt=number, nodes=size)
    # As on a cluster: the file is the same for all attempts.
    job_file.write_text(frozen.to_json())
    environment = {**os.environ, **launched.environment, PROGRESS_SECONDS: "0", INCARNATION: f"i{number}"}
    environment[SOURCE_FOLDER] = str(data)
    processes = [
        forks.start(environment | {INDEX: str(index)}, folder / f"{number}-{index}.out", hit.get(index, Fault()))
        for index in range(size)
    ]
    return [forks.wait(process, PATIENCE) for process in processes]


@dataclass(frozen=True)
class Row:
    """One order of sizes against undisturbed runs; `ends` are the metrics of `COMPARED` after training."""

    sizes: Sequence[int]
    killed_at: Sequence[int]
    every_record_once: bool
    same_order: bool
    ends: Sequence[float]
    within: bool

    @property
    def as_expected(self) -> bool:
        return self.every_record_once and self.same_order and self.within


# Runs of one size without a fault, by the number of workers; the first of each has the seed of the compared runs.
Undisturbed = Mapping[int, Sequence[ElasticRun]]


def compare(one: ElasticRun, undisturbed: Undisturbed, sizes: Sequence[int], killed_at: Sequence[int]) -> Row:
    """Compare a run with those of one size: its ends must be between the least and the most of all sizes and seeds."""
    ended = [metrics for of_epoch in one.epochs.values() for metrics in of_epoch]
    ends = [one.curve(metric)[-1] for metric in COMPARED]
    fixed = [[each.curve(metric)[-1] for seeds in undisturbed.values() for each in seeds] for metric in COMPARED]
    return Row(
        sizes,
        killed_at,
        len(one.epochs) == EPOCHS and all(metrics["once"] == RECORDS for metrics in ended),
        one.curve("order") == undisturbed[1][0].curve("order"),
        ends,
        all(min(each) <= end <= max(each) for end, each in zip(ends, fixed, strict=True)),
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.kill_and_resume.elastic")
    parser.add_argument("--program", choices=("plain", "random"), default="random")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each size without a fault (5)")
    parser.add_argument("--seed", type=int, default=5, help="of the steps at which workers are killed (5)")
    given = parser.parse_args(arguments)
    draw = random.Random(given.seed)
    failed = False
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, Forks() as forks:
        folder = Path(name)
        make_data(folder)
        undisturbed = {
            size: [
                run(forks, folder, folder / f"{size}-seed-{seed}", (size,), program=given.program, seed=7 + seed)
                for seed in range(given.seeds)
            ]
            for size in sorted(SIZES)
        }
        for sizes in itertools.permutations(SIZES):
            killed_at = sorted(draw.sample(range(SAVE_EVERY + 1, STEPS_PER_EPOCH * (EPOCHS - 1)), 3))
            where = folder / "-".join(map(str, sizes))
            try:
                one = run(forks, folder, where, sizes, killed_at, program=given.program, seed=7)
            except (AssertionError, TimeoutError):
                traceback.print_exc()
                failed = True
                continue
            rows.append(compare(one, undisturbed, sizes, killed_at))
            print(rows[-1], flush=True)
    return int(failed or not all(each.as_expected for each in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
