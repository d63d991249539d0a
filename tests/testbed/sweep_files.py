"""Sweeps as files and as values, and a trainer whose accuracy is a function of the learning rate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.sweeps.display import SweepDisplay
from mptraining.sweeps.start import open_sweep, run_sweep
from mptraining.sweeps.view import SweepView
from mptraining_api.sweep.spec import MPTrainingSweep
from mptraining_api.sweep.status import SweepStatus

SWEEP = """\
apiVersion: mptraining.dev/v1alpha1
kind: MPTrainingSweep
metadata: {name: flowers}
spec:
  objective: {metric: val_accuracy, direction: Maximize}
  algorithm: {name: ALGORITHM, seed: 7}
  parameters:
    - {path: training.optimizer.config.learning_rate, PARAMETER}
    - {path: training.batchSize.global, values: [32, 64]}
  trials: {max: TRIALS, maxFailed: 2}
  job:
    accelerator: {type: cpu}
    program: {application: {name: mlp, classes: 3}}
    data: {train: ["records/train-*.tfrecord"], validation: ["records/val-*.tfrecord"]}
    training: {epochs: 4, optimizer: {className: Adam}}
"""

# The trainer of every trial: best at a learning rate of 0.01, reported once for each epoch, with a run folder.
TRAINER = """
import math
job = json.load(open(os.environ["MPTRAINING_JOB_FILE"]))
folder = job["output"]
os.makedirs(folder + "/events", exist_ok=True)
json.dump(job, open(folder + "/job.json", "w"))
rate = job["training"]["optimizer"]["config"]["learning_rate"]
epochs = job["training"]["epochs"]
name = "val_accuracy"
value = 1 - abs(math.log10(rate) + 2) / 10 - 0.1 / epochs
file = open(f"{folder}/events/{attempt}-{incarnation}-{index}-0.jsonl", "w")
def both(kind, **fields):
    line = dict(mptraining=1, time=time.time(), attempt=attempt, incarnation=incarnation, worker=index, kind=kind)
    print(json.dumps(line | fields), file=file, flush=True)
    print(json.dumps(line | fields), flush=True)
def succeed():
    result = dict(version=1, name=job["name"], reason="Succeeded", exitCode=0, message="", attempt=attempt,
                  step=epochs, metrics={name: value}, strategy="", precision="float32", keras="", workers=1,
                  replicasInSync=1, globalBatchSize=32, stepSeconds=0.01, examplesPerSecond=1.0, inputBoundPercent=None,
                  trainingSeconds=1.0, seconds=2.0, peakMemoryBytes=1, skippedSteps=0, recoveries=0,
                  nativeBfloat16=None, notices=[], model=None)
    both("Progress", step=epochs, total_steps=epochs, epoch=epochs, metrics={name: value})
    both("Finished", reason="Succeeded", exit_code=0, message="", step=epochs, metrics={name: value})
    json.dump(result, open(folder + "/result.json.part", "w"))
    os.replace(folder + "/result.json.part", folder + "/result.json")
    sys.exit(0)
"""


def run(path: Path, command: tuple[str, str], **options: Any) -> tuple[int, SweepView]:
    """Run or continue the sweep in the working directory; return the exit code and what it shows."""
    return run_sweep(open_sweep(path, **options), command=command, display=SweepDisplay())


@pytest.fixture
def sweep_file(job_file: Callable[..., Path]) -> Callable[..., Path]:
    """Writes sweep.yaml beside the records of a job file."""

    def write(
        *,
        trials: int = 4,
        algorithm: str = "TPE",
        parameter: str = "logUniform: {low: 1e-4, high: 1e-1}",
        more: str = "",
    ) -> Path:
        path = job_file().parent / "sweep.yaml"
        text = SWEEP.replace("TRIALS", str(trials)).replace("ALGORITHM", algorithm).replace("PARAMETER", parameter)
        path.write_text(text.replace("  job:\n", f"{more}  job:\n"))
        return path

    return write


@pytest.fixture
def trainer(stub: Callable[[str], tuple[str, str]]) -> tuple[str, str]:
    return stub(TRAINER + "\nsucceed()")


def trial(number: int, rate: float, objective: float | None, **more: Any) -> dict[str, Any]:
    """Return a trial as in a status, one minute long and ended in the order of the numbers."""
    found = {
        "number": number,
        "job": f"flowers-{number}",
        "state": "Running" if objective is None else "Succeeded",
        "parameters": {"training.optimizer.config.learning_rate": rate, "training.batchSize.global": 32},
        "startTime": f"2026-01-01T00:{number:02d}:00Z",
    }
    if objective is not None:
        found |= {"objective": objective, "completionTime": f"2026-01-01T00:{number + 1:02d}:00Z"}
    return found | more


def view_of(trials: list[dict[str, Any]], **status: Any) -> SweepView:
    """Return the sweep of SWEEP with these trials; the best one is that with the largest objective."""
    from mptraining_api.sweep.spec import SWEEP_KIND
    from mptraining_api.validation.job_text import read_job_text

    text = SWEEP.replace("TRIALS", "20").replace("ALGORITHM", "TPE")
    text = text.replace("PARAMETER", "logUniform: {low: 1e-4, high: 1e-1}")
    document = read_job_text(text, file="sweep.yaml", kind=SWEEP_KIND).content
    ended = [each for each in trials if "objective" in each]
    best = max(ended, key=lambda each: each["objective"], default=None)
    found: dict[str, Any] = {
        "phase": "Running",
        "startTime": "2026-01-01T00:00:00Z",
        "succeeded": len(ended),
        "running": len(trials) - len(ended),
        "trials": trials,
    }
    if best is not None:
        found["best"] = {key: best[key] for key in ("number", "objective", "parameters")}
    return SweepView(MPTrainingSweep.parse(document), SweepStatus.read(json.dumps(found | status)), "runs/flowers")
