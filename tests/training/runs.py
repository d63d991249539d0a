"""Attempts of a job in this process, and what they leave behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from mptraining_api import events
from mptraining_api.launch import PROGRESS_SECONDS, WorkerIdentity
from mptraining_api.outcomes import Outcome
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.run_folder import Result
from mptraining_api.spec import MPTrainingJob
from mptraining_records.convert.convert import convert
from mptraining_storage import storage
from mptraining_storage.model_location import with_keras_of_models
from mptraining_trainer.devices.preemption import Preemption
from mptraining_trainer.run import run


@dataclass(frozen=True)
class Run:
    """One attempt: its end, its events and its run folder."""

    outcome: Outcome
    folder: str
    events: tuple[Any, ...]

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def started(self) -> events.Started:
        (event,) = self.all(events.Started)
        assert isinstance(event, events.Started)
        return event

    @property
    def finished(self) -> events.Finished:
        assert isinstance(self.events[-1], events.Finished)
        return self.events[-1]

    @property
    def message(self) -> str:
        return self.finished.message

    @property
    def notices(self) -> dict[str, str]:
        return {event.topic: event.message for event in self.all(events.Notice)}

    @property
    def ways_back(self) -> list[tuple[int, int, str]]:
        return [(event.from_step, event.to_step, event.precision) for event in self.all(events.Recovered)]

    @property
    def result(self) -> Result:
        return Result.read(self.read("result.json"))

    def read(self, name: str) -> bytes:
        return storage.read(storage.join(self.folder, name))

    def names(self, below: str) -> list[str]:
        folder = storage.join(self.folder, below)
        return [stored.uri.removeprefix(f"{folder}/") for stored in storage.list_objects(folder)]

    def weights(self) -> list[np.ndarray]:
        with np.load(Path(self.folder, "model", "weights.npz")) as stored:
            return [stored[name] for name in sorted(stored)]

    def state(self) -> dict[str, Any]:
        """Return the state of the newest checkpoint."""
        newest = sorted(Path(self.folder, "checkpoints").glob("step-*"))[-1]
        return json.loads((newest / "state.json").read_text())  # type: ignore[no-any-return]


def same(first: Run, second: Run, within: float = 0.0) -> bool:
    """Return whether both exported the same weights."""
    pairs = zip(first.weights(), second.weights(), strict=True)
    return all(np.allclose(a, b, rtol=within, atol=within) for a, b in pairs)


def start(
    spec: dict[str, Any],
    folder: Path | str,
    *,
    name: str = "numbers",
    attempt: int = 1,
    worker: int = 0,
    preemption: Preemption | None = None,
    environment: dict[str, str] | None = None,
) -> Run:
    """Run one worker of the job; a section or a field of `training` that is None is left out."""
    given = {field: value for field, value in spec.items() if value is not None}
    if "training" in given:
        given["training"] = {field: value for field, value in given["training"].items() if value is not None}
    document = {"accelerator": {"type": "cpu"}, "output": {"uri": str(folder)}} | given
    parsed = MPTrainingJob.parse({"metadata": {"name": name}, "spec": document})
    job = with_keras_of_models(resolve(parsed, ClusterSettings()))
    hosts = tuple(f"localhost:{number}" for number in range(job.workers))
    identity = WorkerIdentity(index=worker, hosts=hosts, attempt=attempt, incarnation="a")
    stored = storage.join(str(folder), "events")
    # `keras_generations` has made the logical devices of this process.
    configure = tf.config.set_logical_device_configuration
    tf.config.set_logical_device_configuration = lambda *_: None
    try:
        outcome = run(
            job, identity, str(folder), preemption or Preemption(lambda: None), environment or {PROGRESS_SECONDS: "0"}
        )
    finally:
        tf.config.set_logical_device_configuration = configure
    lines = [
        line
        for file in storage.list_objects(stored)
        if file.uri.removeprefix(f"{stored}/").startswith(f"{attempt}-a-{worker}-")
        for line in storage.read(file.uri).decode().splitlines()
    ]
    return Run(outcome, str(folder), tuple(event for line in lines if (event := events.parse(line)) is not None))


def numbers(count: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of eight numbers and their class: the largest of the first three."""
    x = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1)


def write_rows(folder: Path, name: str, x: np.ndarray, label: np.ndarray) -> None:
    """Write the rows in their order, as records and as an npz file of that name."""
    np.savez(folder / f"{name}.npz", x=x, label=label)
    convert(str(folder / f"{name}.npz"), str(folder), name=name, keep_order=True, overwrite=True)
