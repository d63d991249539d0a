"""Scripts in the whole trainer in this process, and alone as Python runs them."""

from __future__ import annotations

import ast
import importlib
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api import events
from mptraining_api.events import Event
from mptraining_api.launch import SOURCE_FOLDER, WorkerIdentity
from mptraining_api.outcomes import Outcome
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.run_folder import Result
from mptraining_api.spec import MPTrainingJob
from mptraining_trainer import train
from mptraining_trainer.distribution.preemption import Preemption
from mptraining_trainer.keras_backend import Keras, load
from mptraining_trainer.run import run

PROGRAMS = Path(__file__).parent / "tutorials" / "programs"


class InProcess(Preemption):
    """Replaces signals: a preemption is requested once `after` returns True."""

    def __init__(self, after: Callable[[], bool] = lambda: False) -> None:
        super().__init__(lambda: None)
        self._after = after

    def unblock_for_children(self) -> None:
        """Do nothing: no signal is sent here."""

    def stop_requested(self) -> bool:
        return self._after()


@dataclass
class ScriptRun:
    """One attempt: its end, its messages, the script's output."""

    outcome: Outcome
    folder: Path
    attempt: int
    printed: str

    @property
    def events(self) -> list[Event]:
        (file,) = (self.folder / "events").glob(f"{self.attempt}-*.jsonl")
        return [event for line in file.read_text().splitlines() if (event := events.parse(line)) is not None]

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def notices(self) -> dict[str, str]:
        return {event.topic: event.message for event in self.all(events.Notice)}

    @property
    def message(self) -> str:
        return str(self.all(events.Finished)[-1].message)

    @property
    def result(self) -> Result:
        return Result.read((self.folder / "result.json").read_bytes())

    @property
    def losses(self) -> list[float]:
        return losses(self.printed)

    @property
    def weights(self) -> list[Any]:
        with np.load(self.folder / "model" / "weights.npz") as arrays:
            return [arrays[name] for name in sorted(arrays)]


def losses(printed: str) -> list[float]:
    """Return the numbers that a program printed at its end."""
    (line,) = [line for line in printed.splitlines() if line.startswith("LOSSES")]
    return [float(value) for value in ast.literal_eval(line.removeprefix("LOSSES "))]


def alone(program: Path, generation: str, capsys: pytest.CaptureFixture[str], policy: str = "float32") -> list[float]:
    """Run the program under plain Python, with the global policy that a user would set; return its output."""
    keras = load("Legacy" if generation == "Legacy" else "Keras3")
    capsys.readouterr()
    with _tf_keras_of(keras, policy):
        runpy.run_path(str(program), run_name="__main__")
    return losses(capsys.readouterr().out)


def through_us(
    program: Path | str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    generation: str = "Keras3",
    policy: str = "float32",
    replicas: int = 1,
    attempt: int = 1,
    preemption: Preemption | None = None,
    **spec: Any,
) -> ScriptRun:
    """Run one attempt of a job with this script (a file, or its text) on so many logical CPUs."""
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    text = program if isinstance(program, str) else program.read_text(encoding="utf-8")
    (source / "train.py").write_text(text, encoding="utf-8")
    document = {
        "accelerator": {"type": "cpu", "countPerNode": replicas},
        "keras": generation,
        "precision": {"policy": policy},
        "program": {"script": {"path": "train.py"}},
        "output": {"uri": str(folder / "run")},
    } | spec
    job = resolve(MPTrainingJob.parse({"metadata": {"name": "script"}, "spec": document}), ClusterSettings())
    if replicas > 1 and job.strategy != "None":
        # conftest has created the logical devices.
        strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
        monkeypatch.setattr(train, "make_strategy", lambda *_: strategy)
    elif replicas > 1:
        monkeypatch.setattr(train, "make_strategy", lambda *_: tf.distribute.get_strategy())
    identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=attempt, incarnation="a")
    environment = dict(os.environ) | {SOURCE_FOLDER: str(source)}
    capsys.readouterr()
    with _tf_keras_of(load(job.keras), "float32"):
        outcome = run(job, identity, str(folder / "run"), preemption or InProcess(), environment)
    return ScriptRun(outcome, folder / "run", attempt, capsys.readouterr().out)


@contextmanager
def _tf_keras_of(keras: Keras, policy: str) -> Iterator[None]:
    """Set `tf.keras` to that generation meanwhile, as in a process that was started for it."""
    module = importlib.import_module("tf_keras.api._v2.keras" if keras.legacy else "keras._tf_keras.keras")
    before = tf.__dict__.get("keras"), sys.modules.get("tensorflow.keras")
    tf.keras = sys.modules["tensorflow.keras"] = module
    keras.set_policy(policy)
    try:
        yield
    finally:
        tf.keras = before[0]
        if before[1] is None:
            del sys.modules["tensorflow.keras"]
        else:
            sys.modules["tensorflow.keras"] = before[1]
        keras.set_policy("float32")
        tf.config.optimizer.set_jit(False)
