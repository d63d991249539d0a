"""Folders of sweeps with trials that have ended, without running anything."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mptraining.sweeps.folder import SWEEP
from mptraining_api.status import format_time

RATE, BATCH, WIDTH = (
    "training.optimizer.config.learning_rate",
    "training.batchSize.global",
    "program.function.arguments.width",
)


def accuracy(rate: float, batch: int, width: int) -> float:
    """Return the objective of a trial: best at a rate of 0.003, and better in wide nets."""
    return round(0.97 - 0.12 * (math.log10(rate) + 2.5) ** 2 - 8 / width - batch / 20_000, 4)


def write_sweep(folder: Path, *, start: float, count: int = 24, running: Sequence[int] = ()) -> None:
    """Write sweep.json: `count` trials one minute apart; those in `running` have not ended, and 5 has failed."""
    trials = [_trial(number, folder, start, ended=number not in running) for number in range(1, count + 1)]
    scored = [trial for trial in trials if "objective" in trial]
    best = max(scored, key=lambda each: each["objective"])
    document = {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingSweep",
        "metadata": {"name": folder.name},
        "spec": {
            "objective": {"metric": "val_accuracy", "direction": "Maximize"},
            "algorithm": {"name": "TPE", "seed": 7},
            "parameters": [
                {"path": RATE, "logUniform": {"low": 1e-5, "high": 1e-1}},
                {"path": BATCH, "values": [64, 128, 256]},
                {"path": WIDTH, "int": {"low": 32, "high": 512, "step": 32}},
            ],
            "trials": {"max": 30},
            "job": {"output": {"uri": str(folder)}, "program": {"function": {"entryPoint": "wide_net:build"}}},
        },
        "status": {
            "phase": "Running",
            "startTime": format_time(start),
            "running": len(running),
            "succeeded": len(scored),
            "failed": count - len(scored) - len(running),
            "best": {key: best[key] for key in ("number", "objective", "parameters")},
            "trials": trials,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{SWEEP}.part"
    unfinished.write_text(json.dumps(document))
    unfinished.replace(folder / SWEEP)


def _trial(number: int, folder: Path, start: float, *, ended: bool) -> dict[str, Any]:
    # Low-discrepancy points, closer to the best rate as the sweep goes on.
    spread = 2.0 / (1 + number / 8)
    rate = 10 ** (-2.5 + spread * (2 * (number * 0.618 % 1) - 1))
    batch, width = (64, 128, 256)[number * 7 % 3], 32 * (1 + number * 5 % 16)
    found: dict[str, Any] = {
        "number": number,
        "job": f"{folder.name}-{number}",
        "state": "Running",
        "parameters": {RATE: rate, BATCH: batch, WIDTH: width},
        "startTime": format_time(start + 60 * number),
    }
    if not ended:
        return found
    found["completionTime"] = format_time(start + 60 * number + 50)
    if number == 5:
        return found | {"state": "Failed", "message": "Diverged: the loss is NaN at step 12"}
    return found | {"state": "Succeeded", "objective": accuracy(rate, batch, width)}
