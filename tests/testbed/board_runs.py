"""Synthetic run folders for the board: as many and as long as wanted, with the fields that curves need."""

from __future__ import annotations

import random
from pathlib import Path

from mptraining_api import run_folder
from mptraining_api.run_folder import Result
from tests.jobs import resolved_job
from tests.testbed.stub_trainer import RESULT

BEGIN = 1_750_000_000.0
_POLICIES = ("float32", "mixed_bfloat16")
_RATES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)


def write_run(folder: Path, number: int, points: int, draw: random.Random, *, finished: bool = True) -> None:
    """Write one run; unfinished, its last event is that of a step."""
    (folder / run_folder.EVENTS).mkdir(parents=True, exist_ok=True)
    policy, rate = _POLICIES[number % 2], _RATES[number // 2 % len(_RATES)]
    begin = BEGIN + 1000.0 * number
    training = {
        "epochs": 10,
        "batchSize": {"global": 64},
        "seed": number,
        "optimizer": {"className": "Adam", "config": {"learning_rate": rate}},
    }
    job = resolved_job(
        f"run-{number}",
        precision={"policy": policy},
        program={"application": {"name": "mlp", "classes": 10}},
        data={"train": ["records/train-*.tfrecord"], "validation": ["records/val-*.tfrecord"]},
        training=training,
    )
    (folder / run_folder.JOB).write_text(job.to_json())
    lines = [started(begin, policy, points)]
    loss = 2.5
    for step in range(1, points + 1):
        loss = 0.999 * loss + 0.001 * draw.random()
        noisy = loss * (0.9 + 0.2 * draw.random())
        lines.append(progress(begin + step, step, points, noisy, validation=step % max(1, points // 10) == 0))
    metrics = {"loss": noisy, "accuracy": 1 / (1 + noisy), "val_loss": noisy, "val_accuracy": 1 / (1 + noisy)}
    if finished:
        lines.append(
            _line(begin + points + 1, "Finished", f'"reason":"Succeeded","exitCode":0,"message":"","step":{points}')
        )
        result = {
            "name": f"run-{number}", "step": points, "metrics": metrics, "strategy": "None", "precision": policy,
            "step_seconds": 0.01, "examples_per_second": 6400.0, "training_seconds": float(points),
            "seconds": points + 1.0, "model": None,
        }  # fmt: skip
        (folder / run_folder.RESULT).write_text(Result(**(RESULT | result)).to_json())
    (folder / run_folder.events_file(1, "b", 0, 0)).write_text("".join(lines))


def _line(time: float, kind: str, fields: str) -> str:
    return f'{{"mptraining":1,"time":{time:.1f},"attempt":1,"incarnation":"b","worker":0,"kind":"{kind}",{fields}}}\n'


def started(time: float, policy: str, points: int) -> str:
    """Return the line of a Started event."""
    return _line(
        time,
        "Started",
        f'"strategy":"None","precision":"{policy}","keras":"Keras3","tensorflow":"2.21.0","devices":["/cpu:0"],'
        f'"workers":1,"replicasInSync":1,"globalBatchSize":64,"totalSteps":{points},"stepsPerEpoch":{points // 10}',
    )


def progress(time: float, step: int, points: int, loss: float, *, validation: bool = False) -> str:
    """Return the line of a Progress event."""
    accuracy = 1 / (1 + loss)
    metrics = f'"loss":{loss:.5f},"accuracy":{accuracy:.5f}'
    if validation:
        metrics += f',"val_loss":{1.1 * loss:.5f},"val_accuracy":{0.9 * accuracy:.5f}'
    epoch = 1 + (step - 1) * 10 // points
    fields = f'"step":{step},"totalSteps":{points},"epoch":{epoch},"metrics":{{{metrics}}},"stepSeconds":0.01,'
    return _line(time, "Progress", fields + f'"gradientNorm":{loss / 2:.4f}')
