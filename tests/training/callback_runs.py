"""Attempts of a function program with callbacks, one after the other in one folder: for the tests of callbacks."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api import events
from mptraining_api.launch import WorkerIdentity
from mptraining_api.outcomes import Outcome
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.run_folder import Result
from mptraining_api.spec import MPTrainingJob
from mptraining_records.convert.convert import convert
from mptraining_records.storage import storage
from mptraining_trainer.distribution.preemption import Preemption
from mptraining_trainer.run import run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, the largest of three of eight numbers: 100 rows to train on, 40 to validate."""
    folder = tmp_path_factory.mktemp("data")
    numbers = np.random.default_rng(3)
    for name, count in (("train", 100), ("validation", 40)):
        x = numbers.normal(size=(count, 8)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x, label=x[:, :3].argmax(axis=1))
        convert(str(folder / f"{name}.npz"), str(folder), name=name, keep_order=True)
    return folder


class Run:
    """One attempt: its end and its run folder."""

    def __init__(self, outcome: Outcome, folder: str, said: list[Any]) -> None:
        self.outcome = outcome
        self.folder = folder
        self.events = said

    @property
    def finished(self) -> events.Finished:
        assert isinstance(self.events[-1], events.Finished)
        return self.events[-1]

    @property
    def notices(self) -> dict[str, str]:
        return {event.topic: event.message for event in self.events if isinstance(event, events.Notice)}

    @property
    def result(self) -> Result:
        return Result.read(self.read("result.json"))

    def read(self, name: str) -> bytes:
        return storage.read(storage.join(self.folder, name))

    def names(self, below: str) -> list[str]:
        folder = storage.join(self.folder, below)
        return [each.uri.removeprefix(f"{folder}/") for each in storage.list_objects(folder)]

    def weights(self) -> list[np.ndarray]:
        with np.load(Path(self.folder, "model", "weights.npz")) as stored:
            return [stored[name] for name in sorted(stored)]

    def state(self) -> dict[str, Any]:
        newest = sorted(Path(self.folder, "checkpoints").glob("step-*"))[-1]
        return json.loads((newest / "state.json").read_text())["callbacks"]  # type: ignore[no-any-return]


Train = Callable[..., Run]


@pytest.fixture(params=["Keras3", "Legacy"])
def generation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def train(
    data: Path,
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Train]:
    """Runs one attempt after the other in one folder, of the function `name` of `program`, a module's fixture."""
    monkeypatch.syspath_prepend(tmp_path)
    attempts: dict[str, int] = {}

    def attempt(name: str, folder: str = "run", *, keras: str = "Keras3", **sections: Any) -> Run:
        package = "tf_keras" if keras == "Legacy" else "keras"
        (tmp_path / f"{package}_program.py").write_text(program.format(package=package))
        training = {"batchSize": {"global": 20}, "epochs": 3, "seed": 7} | sections.pop("training", {})
        whole = folder if "://" in folder else str(tmp_path / folder)
        attempts[whole] = number = attempts.get(whole, 0) + 1
        arguments = sections.pop("arguments", {})
        spec = {
            "accelerator": {"type": "cpu"},
            "strategy": "None",
            "keras": keras,
            "program": {"function": {"entryPoint": f"{package}_program:{name}", "arguments": arguments}},
            "data": {"train": [f"{data}/train-*.tfrecord"], "validation": [f"{data}/validation-*.tfrecord"]},
            "output": {"uri": whole},
            "training": {key: value for key, value in training.items() if value is not None},
        } | sections
        job = resolve(MPTrainingJob.parse({"metadata": {"name": "numbers"}, "spec": spec}), ClusterSettings())
        capsys.readouterr()
        identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=number, incarnation="a")
        outcome = run(job, identity, whole, Preemption(lambda: None), {"MPTRAINING_PROGRESS_SECONDS": "0"})
        said = [event for line in capsys.readouterr().out.splitlines() if (event := events.parse(line))]
        return Run(outcome, whole, said)

    yield attempt
    for package in ("keras", "tf_keras"):
        sys.modules.pop(f"{package}_program", None)


def same(first: Run, second: Run) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first.weights(), second.weights(), strict=True))


def until(step: int) -> dict[str, Any]:
    return {"training": {"epochs": None, "totalSteps": step, "stepsPerExecution": 1}}
