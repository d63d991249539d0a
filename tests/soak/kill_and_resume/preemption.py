"""The time from SIGTERM until the workers of a large model have saved their last step and exited: a spot VM has 15 s.

    python -m tests.soak.kill_and_resume.preemption                       1 GB of state, two workers, a local folder
    python -m tests.soak.kill_and_resume.preemption --output gs://bucket/folder

One JSON line a figure. The state is one frozen table beside a small trained layer: saving is measured,
not the step; `pace` bounds how many steps are executed at once (about a second).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mptraining_api import events
from mptraining_api.launch import INCARNATION, INDEX, PROGRESS_SECONDS, SOURCE_FOLDER, launch
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from tests.soak.kill_and_resume.faults import Fault
from tests.soak.kill_and_resume.rounds import free_hosts, make_data
from tests.testbed.forks import Forks

GOAL_SECONDS = 15.0
_PATIENCE = 300.0
PROGRAM = '''
import keras

class Table(keras.layers.Layer):
    """As many frozen numbers as `megabytes` are; the model depends on one of them."""

    def __init__(self, megabytes):
        super().__init__()
        self.rows = megabytes * 1024

    def build(self, shape):
        self.table = self.add_weight(shape=(self.rows, 256), initializer="ones", trainable=False, name="table")

    def call(self, inputs):
        return inputs * self.table[0, 0]

def build(megabytes):
    layers = keras.layers
    inputs = keras.Input((6, 6, 1))
    hidden = Table(megabytes)(layers.Flatten()(inputs))
    hidden = layers.BatchNormalization()(layers.Dense(64, activation="relu")(hidden))
    return {
        "model": keras.Model(inputs, layers.Dense(3, dtype="float32")(hidden)),
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "optimizer": keras.optimizers.Adam(),
    }
'''


def measure(folder: Path, *, megabytes: int, workers: int, told: int, output: str | None = None) -> dict[str, Any]:
    """Return the seconds from SIGTERM to worker `told` until all had exited, their exit codes and the step that was
    saved.
    """
    make_data(folder)
    (folder / "large_program.py").write_text(PROGRAM)
    spec = {
        "accelerator": {"type": "cpu"},
        "nodes": workers,
        "program": {"function": {"entryPoint": "large_program:build", "arguments": {"megabytes": megabytes}}},
        "data": {"train": [f"{folder}/train-*.tfrecord"], "label": "label"},
        "training": {"totalSteps": 10**6, "batchSize": {"global": 16}, "seed": 7},
        "checkpoint": {"everySteps": 10**6},
        "output": {"uri": output or str(folder / "run")},
    }
    job = resolve(MPTrainingJob.parse({"metadata": {"name": "large"}, "spec": spec}), ClusterSettings())
    job_file = folder / "job.json"
    launched = launch(job, hosts=free_hosts(workers), job_path=str(job_file), attempt=1)
    job_file.write_text(launched.job_file)
    environment = {**os.environ, **launched.environment, PROGRESS_SECONDS: "0.5", INCARNATION: "a"}
    environment[SOURCE_FOLDER] = str(folder)
    outputs = [folder / f"{index}.out" for index in range(workers)]
    with Forks() as forks:
        processes = [
            forks.start(environment | {INDEX: str(index)}, outputs[index], Fault()) for index in range(workers)
        ]
        _until_pace(outputs[0])
        os.kill(processes[told], signal.SIGTERM)
        began, at = time.monotonic(), time.time()
        seconds, codes = [], []
        for process in processes:
            codes.append(forks.wait(process, _PATIENCE))
            seconds.append(round(time.monotonic() - began, 2))
    said = [event for line in outputs[0].read_text().splitlines() if (event := events.parse(line)) is not None]
    saved = [event for event in said if isinstance(event, events.Saved)]
    return {
        "seconds": max(seconds),
        "codes": codes,
        "saved_step": saved[-1].step if saved else None,
        "saved_bytes": saved[-1].bytes if saved else None,
        "saved_after_seconds": round(saved[-1].time - at, 2) if saved else None,
        "finished_after_seconds": round(said[-1].time - at, 2),
        "writing_seconds": saved[-1].seconds if saved else None,
    }


def _until_pace(output: Path) -> None:
    """Wait until the length of an execution no longer changes."""
    end = time.monotonic() + _PATIENCE
    while not output.exists() or output.read_text().count('"Progress"') < 5:
        if time.monotonic() > end:
            raise TimeoutError(output.with_suffix(".err").read_text()[-2000:])
        time.sleep(0.1)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.kill_and_resume.preemption", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--told", type=int, default=1, help="the worker that gets SIGTERM (1)")
    parser.add_argument("--output", help="the run folder; default: a folder of its own on this machine")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(
            Path(folder), megabytes=given.megabytes, workers=given.workers, told=given.told, output=given.output
        )
    seconds = found.pop("seconds")
    name = f"preempted.{given.workers}_workers.{given.megabytes}_mb.seconds"
    print(json.dumps({"name": name, "value": seconds, "unit": "s", "goal": f"< {GOAL_SECONDS:.0f}", **found}))
    return int(found["codes"] != [75] * given.workers or seconds >= GOAL_SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
