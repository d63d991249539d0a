"""Trainer processes as a cluster starts them, on scikit-learn's digits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api.launch import (
    ATTEMPT,
    INCARNATION,
    INDEX,
    PROGRESS_SECONDS,
    SOURCE_FOLDER,
    TERMINATION_LOG,
    launch,
)
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_records.convert.convert import convert
from tests.testbed.attempts import Attempt, Start
from tests.testbed.forks import Fork, Forks
from tests.testbed.processes import free_ports


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
def start(digits: Path, tmp_path: Path, forks: Forks) -> Iterator[Start]:
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
        document = {"output": {"uri": str(tmp_path / folder)}} | spec
        if "script" not in spec.get("program", {}):
            document.setdefault("program", {"application": {"name": "mlp", "classes": 10}})
            both = {"train": [f"{digits}/train-*.tfrecord"], "validation": [f"{digits}/validation-*.tfrecord"]}
            document["data"] = data or both
            together = {"epochs": 1, "batchSize": {"global": 64}, "seed": 7} | training
            document["training"] = {name: value for name, value in together.items() if value is not None}
        job = resolve(MPTrainingJob.parse({"metadata": {"name": "digits"}, "spec": document}), ClusterSettings())
        hosts = [f"127.0.0.1:{port}" for port in free_ports(job.processes)]
        job_file = tmp_path / f"{number}.json"
        command = (sys.executable, "-m", "mptraining_trainer", "train")
        launched = launch(job, hosts=hosts, job_path=str(job_file), attempt=number, command=command)
        job_file.write_text(launched.job_file)
        environment = {**os.environ, **launched.environment, PROGRESS_SECONDS: "0", INCARNATION: f"i{number}"}
        if source is not None:
            environment[SOURCE_FOLDER] = str(source)
        assert environment[ATTEMPT] == str(number)
        attempt = Attempt(tmp_path / folder, [], [])
        attempts.append(attempt)
        for index in range(job.processes):
            output = tmp_path / f"{number}-{index}.out"
            told = {INDEX: str(index), TERMINATION_LOG: str(output.with_suffix(".last"))}
            output.touch()
            if not real and "script" not in spec.get("program", {}):
                attempt.processes.append(Fork(forks, environment | told, output))
            else:
                with output.open("wb") as stdout, output.with_suffix(".err").open("wb") as stderr:
                    attempt.processes.append(
                        subprocess.Popen(launched.command, env=environment | told, stdout=stdout, stderr=stderr)
                    )
            attempt.outputs.append(output)
        return attempt

    yield begin
    for attempt in attempts:
        for process in attempt.processes:
            process.kill()
            process.wait(60)
