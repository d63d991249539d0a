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

import pytest
import tensorflow as tf

from mptraining_api.launch import SOURCE_FOLDER
from mptraining_trainer import train
from mptraining_trainer.devices.preemption import Preemption
from mptraining_trainer.keras_backend import Keras, load
from tests.training.runs import Run, start

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


@dataclass(frozen=True)
class ScriptRun(Run):
    """One attempt, and the script's output."""

    printed: str

    @property
    def losses(self) -> list[float]:
        return losses(self.printed)


def losses(printed: str) -> list[float]:
    """Return the numbers that a program printed at its end."""
    (line,) = [line for line in printed.splitlines() if line.startswith("LOSSES")]
    return [float(value) for value in ast.literal_eval(line.removeprefix("LOSSES "))]


Alone = Callable[..., list[float]]
ThroughUs = Callable[..., ScriptRun]


@pytest.fixture
def alone(capsys: pytest.CaptureFixture[str]) -> Alone:
    """Runs a program under plain Python, with the global policy that a user would set; returns its losses."""

    def run(program: Path, generation: str, policy: str = "float32") -> list[float]:
        keras = load("Legacy" if generation == "Legacy" else "Keras3")
        capsys.readouterr()
        with _tf_keras_of(keras, policy):
            runpy.run_path(str(program), run_name="__main__")
        return losses(capsys.readouterr().out)

    return run


@pytest.fixture
def through_us(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> ThroughUs:
    """Runs one attempt of a job with this script (a file, or its text) on so many logical CPUs."""

    def run(
        program: Path | str,
        folder: Path,
        *,
        generation: str = "Keras3",
        policy: str = "float32",
        replicas: int = 1,
        attempt: int = 1,
        preemption: Preemption | None = None,
        **spec: Any,
    ) -> ScriptRun:
        source = folder / "source"
        source.mkdir(parents=True, exist_ok=True)
        text = program if isinstance(program, str) else program.read_text(encoding="utf-8")
        (source / "train.py").write_text(text, encoding="utf-8")
        document = {
            "accelerator": {"type": "cpu", "countPerWorker": replicas},
            "keras": generation,
            "precision": {"policy": policy},
            "program": {"script": {"path": "train.py"}},
        } | spec
        if replicas > 1:
            strategy = tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])
            monkeypatch.setattr(train, "make_strategy", lambda *_: strategy)
        environment = dict(os.environ) | {SOURCE_FOLDER: str(source)}
        capsys.readouterr()
        with _tf_keras_of(load("Legacy" if generation == "Legacy" else "Keras3"), "float32"):
            done = start(
                document,
                folder / "run",
                name="script",
                attempt=attempt,
                preemption=preemption or InProcess(),
                environment=environment,
            )
        return ScriptRun(**vars(done), printed=capsys.readouterr().out)

    return run


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
