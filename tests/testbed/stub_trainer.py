"""Job files, run folders and a stub of the trainer that only prints Events: real files and real processes, without
TensorFlow.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining_api import run_folder
from mptraining_api.events import Event, Progress, Started
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.run_folder import Result
from mptraining_api.spec import MPTrainingJob
from tests.jobs import parsed_job

ROOT = Path(__file__).parents[2]

JOB = """\
apiVersion: mptraining.dev/v1alpha1
kind: MPTrainingJob
metadata: {name: flowers}
spec:
  accelerator: {type: cpu}
  workers: WORKERS
  program: {application: {name: mlp, classes: 3}}
  data: {train: ["records/train-*.tfrecord"], validation: ["records/val-*.tfrecord"]}
  training: {epochs: EPOCHS, batchSize: {global: 64}}
"""

# The beginning of every stub: the launch contract's variables and a function that prints an event.
STUB_BEGINNING = """\
import json, os, signal, subprocess, sys, time
index = int(os.environ["JOB_COMPLETION_INDEX"])
attempt = int(os.environ["MPTRAINING_ATTEMPT"])
incarnation = os.environ["MPTRAINING_INCARNATION"]
def say(kind, **fields):
    print(json.dumps(dict(mptraining=1, time=time.time(), attempt=attempt, incarnation=incarnation,
                          worker=index, kind=kind, **fields)), flush=True)
def finish(reason, code, message="", **fields):
    say("Finished", reason=reason, exit_code=code, message=message, **fields)
    sys.exit(code)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def job_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes flowers.yaml into a folder of its own, with empty records for it."""

    def write(*, workers: int = 1, epochs: int = 5, name: str = "flowers") -> Path:
        path = tmp_path / "project" / "flowers.yaml"
        path.parent.mkdir(exist_ok=True)
        text = JOB.replace("WORKERS", str(workers)).replace("EPOCHS", str(epochs))
        path.write_text(text.replace("name: flowers", f"name: {name}"))
        for split in ("train", "val"):
            shard = path.parent / "records" / f"{split}-00000-of-00001.tfrecord"
            shard.parent.mkdir(exist_ok=True)
            shard.touch()
        return path

    return write


@pytest.fixture
def stub(tmp_path: Path) -> Callable[[str], tuple[str, str]]:
    """Returns a trainer's command that runs the given Python after the common beginning."""

    def write(code: str) -> tuple[str, str]:
        path = tmp_path / "stub.py"
        path.write_text(STUB_BEGINNING + textwrap.dedent(code))
        return sys.executable, str(path)

    return write


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Returns the environment of an `mptj` process; with `trainer`, `python -m mptraining_trainer` is that stub."""

    def make(trainer: str | None = None) -> dict[str, str]:
        roots = [str(ROOT / part) for part in ("api", "trainer", "client")]
        if trainer is not None:
            package = tmp_path / "stub" / "mptraining_trainer"
            package.mkdir(parents=True)
            (package / "__init__.py").touch()
            (package / "__main__.py").write_text(STUB_BEGINNING + textwrap.dedent(trainer))
            roots.insert(0, str(package.parent))
        return os.environ | {"PYTHONPATH": os.pathsep.join(roots), "PYTHONUNBUFFERED": "1"}

    return make


@pytest.fixture
def run_in(tmp_path: Path) -> Callable[..., Path]:
    """Write a run folder of `steps` steps, one a second, a validation every 10; without a result if
    unfinished. `training` are fields of the job's training section.
    """

    def write(
        name: str = "plain",
        *,
        steps: int = 30,
        result: dict[str, Any] | None = None,
        done: bool = True,
        training: dict[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / "runs" / name
        (folder / run_folder.EVENTS).mkdir(parents=True)
        document = parsed_job(JOB.replace("WORKERS", "1").replace("EPOCHS", "5")).to_document()
        document["spec"]["training"] |= training or {}
        job = resolve(MPTrainingJob.parse(document), ClusterSettings())
        (folder / run_folder.JOB).write_text(job.to_json())
        (folder / run_folder.events_file(1, "a-b", 0, 0)).write_text(
            "\n".join(event.to_json() for event in summary(steps=steps)) + "\n"
        )
        if done:
            told = Result(**(RESULT | {"step": steps} | (result or {})))
            (folder / run_folder.RESULT).write_text(told.to_json())
        return folder

    return write


RESULT: dict[str, Any] = {
    "name": "flowers", "reason": "Succeeded", "exit_code": 0, "message": "", "attempt": 1,
    "metrics": {"loss": 0.5, "val_loss": 0.6, "val_accuracy": 0.8}, "strategy": "Mirrored",
    "precision": "float32", "keras": "Keras3", "workers": 1, "replicas_in_sync": 1, "global_batch_size": 64,
    "step_seconds": 0.004, "examples_per_second": 16000.0, "input_bound_percent": 3.0,
    "training_seconds": 30.0,
    "seconds": 33.0, "peak_memory_bytes": 900_000_000, "skipped_steps": 0, "recoveries": 0,
    "native_bfloat16": False, "notices": (), "model": "model/flowers.keras",
}  # fmt: skip


def summary(*, steps: int, first: int = 0, attempt: int = 1, begin: float = 1000.0) -> list[Event]:
    """Return an attempt's events: Started at `begin`, then a step a second."""
    common: dict[str, Any] = {"attempt": attempt, "incarnation": "a-b", "worker": 0}
    started = Started(
        time=begin, strategy="Mirrored", precision="float32", keras="Keras3", tensorflow="2.21.0",
        devices=("/cpu:0",), workers=1, replicas_in_sync=1, global_batch_size=64, first_step=first, **common,
    )  # fmt: skip
    told: list[Event] = [started]
    for step in range(first + 1, steps + 1):
        metrics = {"loss": 1 / step} | ({"val_loss": 1.1 / step, "val_accuracy": 0.8} if step % 10 == 0 else {})
        told.append(
            Progress(time=begin + step - first, step=step, total_steps=steps, epoch=1, metrics=metrics, **common)
        )
    return told


@pytest.fixture
def attempt_events() -> Callable[..., list[Event]]:
    return summary
