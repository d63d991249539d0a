"""Runs whose number of workers changes at every attempt."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mptraining_api import events
from tests.soak.kill_and_resume import counting_program
from tests.soak.kill_and_resume.faults import Fault
from tests.soak.kill_and_resume.rounds import attempt

RECORDS, BATCH, EPOCHS = counting_program.RECORDS, 24, 5
STEPS_PER_EPOCH = RECORDS // BATCH
SIZES = (2, 3, 4, 1)
# In the middle of an epoch, and no multiples of the checkpoints' steps.
KILLED_AT = (27, 48, 73)


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


def run(
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
    spec = {
        "accelerator": {"type": "cpu"},
        "elastic": {"min": min(SIZES), "max": max(SIZES)},
        "precision": {"policy": "float32"},
        "program": {"function": {"entryPoint": f"counting_program:{program}"}},
        "training": {"epochs": EPOCHS, "batchSize": {"global": BATCH}, "seed": seed, "stepsPerExecution": 1},
    }
    for number, size in enumerate(sizes, start=1):
        last = number == len(sizes)
        # The chief of one attempt, the last worker of the next one.
        lost = 0 if number % 2 else size - 1
        hit = {} if last else {lost: Fault(signal.SIGKILL, killed_at[number - 1])}
        codes = attempt(spec, data, folder, number, hit, workers=size)
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
