"""Figure 2: the cost of telemetry and checkpoints together for a job on a local disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hack.bench.figures import Figure, figure, progress
from hack.bench.rounds import interleaved

_MOST = 1.03


@dataclass(frozen=True)
class Interval:
    """`epoch` steps between two checkpoints."""

    task: Literal["mlp", "resnet"]
    epoch: int


# MLP: an epoch of 60,000 examples, as many as MNIST has; the default is a checkpoint after each.
# ResNet: an interval that jobs with long epochs set (checkpoint.everySteps: 500).
INTERVALS = (Interval("mlp", 1875), Interval("resnet", 500))


def measure(interval: Interval, *, rounds: int, seconds: float) -> Figure:
    """Measure seconds a step with telemetry and checkpoints over those without."""
    progress(f"{interval.task}: a checkpoint every {interval.epoch} steps and telemetry, against neither")
    measured = interleaved(
        "course",
        {
            name: {"task": interval.task, "epoch": interval.epoch, "keeps": keeps}
            for name, keeps in (("kept", True), ("nothing kept", False))
        },
        rounds=rounds,
        seconds=seconds,
    )
    kept, nothing = measured["kept"], measured["nothing kept"]
    return figure(
        f"trainer.{interval.task}.keeping_seconds_per_step",
        [1 / each.speed for each in kept],
        [1 / each.speed for each in nothing],
        unit="s/step",
        against="without telemetry and checkpoints",
        most=_MOST,
        cpu=([each.cpu_per_step for each in kept], [each.cpu_per_step for each in nothing]),
    )
