"""The processes of one attempt, and what they leave behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mptraining_api.events import Finished, Progress, parse
from tests.testbed.forks import Fork

TWO_REPLICAS = {"accelerator": {"type": "cpu", "countPerWorker": 2}}
TWO_WORKERS = {"accelerator": {"type": "cpu"}, "workers": 2}
ENDLESS = {"epochs": None, "totalSteps": 1_000_000, "stepsPerExecution": 2}
# A start of TensorFlow takes seconds, on a busy machine tens of them.
PATIENCE = 400.0


@dataclass
class Attempt:
    """The processes of one attempt and their output."""

    folder: Path
    processes: list[subprocess.Popen[bytes] | Fork]
    outputs: list[Path]

    def events(self, worker: int = 0) -> list[Any]:
        # A line that is still being written does not count.
        lines = self.outputs[worker].read_text().splitlines()
        return [event for event in map(parse, lines) if event is not None]

    def all(self, kind: type[Any], worker: int = 0) -> list[Any]:
        return [event for event in self.events(worker) if isinstance(event, kind)]

    def until(self, step: int, worker: int = 0) -> None:
        """Wait for Progress past that step."""
        end = time.monotonic() + PATIENCE
        while not any(event.step >= step for event in self.all(Progress, worker)):
            assert self.processes[worker].poll() is None, self.errors(worker)
            assert time.monotonic() < end, "no progress"
            time.sleep(0.05)

    def wait(self, seconds: float = PATIENCE) -> list[int]:
        """Return the exit codes; all must have exited within that time."""
        end = time.monotonic() + seconds
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]

    def errors(self, worker: int = 0) -> str:
        return self.outputs[worker].with_suffix(".err").read_text()

    def finished(self, worker: int = 0) -> Finished:
        last = self.events(worker)[-1]
        assert isinstance(last, Finished)
        return last

    def metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = self.finished().metrics
        return metrics

    def weights(self) -> list[np.ndarray]:
        with np.load(self.folder / "model" / "weights.npz") as stored:
            return [stored[name] for name in sorted(stored)]


Start = Callable[..., Attempt]


def equal(first: Attempt, second: Attempt, tolerance: float = 0.0) -> bool:
    return all(
        np.allclose(a, b, rtol=tolerance, atol=tolerance)
        for a, b in zip(first.weights(), second.weights(), strict=True)
    )
