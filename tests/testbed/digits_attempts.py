"""Trainer processes as a cluster starts them, on scikit-learn's digits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_records.convert.convert import convert
from tests.jobs import resolved_job
from tests.testbed.attempts import Attempt, Start
from tests.testbed.forks import Fork, worker_environments


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scikit-learn's handwritten digits: 1,437 to train on, 360 to validate."""
    folder = tmp_path_factory.mktemp("digits")
    from sklearn.datasets import load_digits

    found = load_digits()
    images = np.round(found.images / 16 * 255).astype(np.uint8)[..., np.newaxis]
    order = np.random.default_rng(7).permutation(len(images))
    for name, rows in (("train", order[:1437]), ("validation", order[1437:])):
        np.savez(folder / f"{name}.npz", image=images[rows], label=found.target[rows].astype(np.int64))
        convert(str(folder / f"{name}.npz"), str(folder), name=name, keep_order=True)
    return folder


@pytest.fixture
def start(digits: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts the processes of one attempt; all end with the test.

    They are forked from a process that has imported TensorFlow. With `real`, and for scripts, whose imports depend on
    the environment, they are started as a pod starts them.
    """
    attempts: list[Attempt] = []

    def begin(
        spec: dict[str, Any],
        folder: str = "run",
        source: Path | None = None,
        data: dict[str, Any] | None = None,
        real: bool = False,
        **training: Any,
    ) -> Attempt:
        number = len(attempts) + 1
        document: dict[str, Any] = {"output": {"uri": str(tmp_path / folder)}, "data": None} | spec
        if "script" not in spec.get("program", {}):
            document.setdefault("program", {"application": {"name": "mlp", "classes": 10}})
            both = {"train": [f"{digits}/train-*.tfrecord"], "validation": [f"{digits}/validation-*.tfrecord"]}
            document["data"] = data or both
            together = {"epochs": 1, "batchSize": {"global": 64}, "seed": 7} | training
            document["training"] = {name: value for name, value in together.items() if value is not None}
        job = resolved_job("digits", **document)
        attempt = Attempt(tmp_path / folder, [], [])
        attempts.append(attempt)
        for environment, output in worker_environments(job, tmp_path, number, source=source):
            output.touch()
            attempt.outputs.append(output)
            if not real and "script" not in spec.get("program", {}):
                attempt.processes.append(Fork(environment, output))
                continue
            with output.open("wb") as stdout, output.with_suffix(".err").open("wb") as stderr:
                command = [sys.executable, "-m", "mptraining_trainer", "train"]
                attempt.processes.append(subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr))
        return attempt

    yield begin
    for attempt in attempts:
        for process in attempt.processes:
            process.kill()
            process.wait(60)
