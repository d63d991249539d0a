"""A job with `tracking`, against a real MLflow server: one run for all attempts, and no effect on the training when the
server is killed, slow or absent. W&B offline.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api import events, outcomes
from mptraining_api.launch import PROGRESS_SECONDS, TRACKING_PYTHON, WorkerIdentity
from mptraining_records.convert.convert import convert
from mptraining_trainer.devices.preemption import Preemption
from mptraining_trainer.run import run
from tests.jobs import resolved_job
from tests.testbed.processes import Server, free_ports

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "build" / "env" / "tracking" / "bin" / "python"
pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="no MLflow here: make build/env/tracking/.installed"),
]
PATIENCE = 400.0


class Mlflow:
    """A real server with sqlite, which can be stopped and started again on its port.

    It has an experiment for each job's name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (self._port,) = free_ports(1)
        self.uri = f"http://127.0.0.1:{self._port}"
        self._server: Server | None = None

    def start(self) -> None:
        command = [PYTHON, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{self._folder}/mlflow.db"]
        options = ["--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        environment = {"PYTHONPATH": "", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        self._server = Server(
            [*command, *options, "--artifacts-destination", str(self._folder / "artifacts")],
            log=self._folder / "server.log",
            environment=environment,
        )
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=5):
                    return
            except OSError:
                assert time.monotonic() < end, (self._folder / "server.log").read_text()[-2000:]
                time.sleep(0.2)

    def kill(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.uri}/api/2.0/mlflow/{path}", timeout=60) as answer:
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        """Return the runs of an experiment; none if it does not exist."""
        try:
            found = self._get(f"experiments/get-by-name?experiment_name={experiment}")
        except urllib.error.HTTPError:
            return []
        body = {"experiment_ids": [found["experiment"]["experiment_id"]]}
        return self._post("runs/search", body).get("runs", [])  # type: ignore[no-any-return]

    def history(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        found = self._get(f"metrics/get-history?run_id={run_id}&metric_key={metric}").get("metrics", [])
        return sorted((int(each["step"]), float(each["value"])) for each in found)


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    """One server for all tests, each with a job name of its own: a start of MLflow costs more than a training."""
    server = Mlflow(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    x = np.random.default_rng(3).normal(size=(400, 8)).astype(np.float32)
    np.savez(folder / "train.npz", x=x, label=x[:, :3].argmax(axis=1))
    convert(str(folder / "train.npz"), str(folder), name="train", keep_order=True)
    return folder


class Never(Preemption):
    """No signal arrives here."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        super().__init__(lambda: None)
        self._during = during

    def stop_requested(self) -> bool:
        self._during()
        return False


def train(
    folder: Path,
    data: Path,
    uri: str | None,
    *,
    name: str = "numbers",
    epochs: int = 3,
    attempt: int = 1,
    **options: Any,
) -> Path:
    job = resolved_job(
        name,
        strategy="None",
        data={"train": [f"{data}/train-*.tfrecord"]},
        training={"batchSize": {"global": 20}, "epochs": epochs, "seed": 7, "stepsPerExecution": 1},
        output={"uri": str(folder)},
        tracking=None if uri is None else {"mlflow": {"uri": uri}},
    )
    identity = WorkerIdentity(index=0, hosts=("localhost:0",), attempt=attempt, incarnation=f"launch-{attempt}")
    environment = dict(os.environ) | {TRACKING_PYTHON: str(PYTHON), PROGRESS_SECONDS: "0", "PYTHONPATH": ""}
    assert run(job, identity, str(folder), Never(**options), environment) == outcomes.SUCCEEDED
    return folder


def export(folder: Path, *arguments: str, **environment: str) -> str:
    command = [str(PYTHON), "-m", "mptraining", "track", str(folder), *arguments]
    ended = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": ""} | environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def losses(folder: Path) -> list[tuple[int, float]]:
    """Return the losses of the chief's events by step: the last of each step."""
    found: dict[int, float] = {}
    for file in sorted((folder / "events").glob("*-0-*.jsonl")):
        for line in file.read_text().splitlines():
            if isinstance(event := events.parse(line), events.Progress):
                found[event.step] = event.metrics["loss"]
    return sorted(found.items())


def weights(folder: Path) -> list[np.ndarray]:
    with np.load(folder / "model" / "weights.npz") as stored:
        return [stored[name] for name in sorted(stored)]


def assert_same(found: list[tuple[int, float]], expected: list[tuple[int, float]]) -> None:
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected])


def assert_complete(mlflow: Mlflow, folder: Path, experiment: str) -> None:
    (found,) = mlflow.runs(experiment)
    assert found["info"]["status"] == "FINISHED"
    assert {each["key"]: each["value"] for each in found["data"]["params"]}["training.epochs"] == "3"
    kept = {each["key"]: each["value"] for each in found["data"]["tags"]}
    assert kept["mptraining.run_folder"] == str(folder)
    assert kept["mptraining.reason"] == "Succeeded"
    assert_same(mlflow.history(found["info"]["run_id"], "loss"), losses(folder))


def test_one_run_for_all_attempts(mlflow: Mlflow, data: Path, tmp_path: Path) -> None:
    folder = train(tmp_path / "run", data, mlflow.uri, name="attempts")
    export(folder, "--to", "mlflow")
    assert_complete(mlflow, folder, "attempts")
    train(folder, data, mlflow.uri, name="attempts", epochs=4, attempt=2)
    export(folder, "--to", "mlflow")
    # MLflow's parameters cannot be changed: the new one is a tag.
    assert_complete(mlflow, folder, "attempts")
    (found,) = mlflow.runs("attempts")
    assert {"key": "changed.training.epochs", "value": "4"} in found["data"]["tags"]
    assert len(losses(folder)) == 80


def test_a_server_that_is_killed_has_no_effect_and_the_export_completes_it(
    mlflow: Mlflow, data: Path, tmp_path: Path
) -> None:
    killed = threading.Event()

    def during() -> None:
        """Kill the server when it has the run's first values: the training waits for that in this test only."""
        if killed.is_set():
            return
        end = time.monotonic() + PATIENCE
        while not (folder / "tracking.json").exists() and losses(folder):
            assert time.monotonic() < end
            time.sleep(0.1)
        if losses(folder):
            mlflow.kill()
            killed.set()

    folder = tmp_path / "run"
    try:
        train(folder, data, mlflow.uri, name="killed", during=during)
        assert killed.is_set()
    finally:
        # The other tests need it.
        mlflow.kill()
        mlflow.start()
    alone = train(tmp_path / "alone", data, None)
    for ours, theirs in zip(weights(folder), weights(alone), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (found,) = mlflow.runs("killed")
    assert found["info"]["status"] == "RUNNING"
    export(folder, "--to", "mlflow")
    assert_complete(mlflow, folder, "killed")


def test_weights_and_biases_offline(data: Path, tmp_path: Path) -> None:
    """Its file is read with W&B's own messages."""
    folder = train(tmp_path / "run", data, None)
    said = export(folder, "--to", "wandb", "--project", "numbers", WANDB_MODE="offline")
    (stored,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    # LevelDB's log format after 7 bytes of W&B: blocks of 32 KiB with records of checksum, length, type and data.
    reader = """
import json, struct, sys
from wandb.proto import wandb_internal_pb2
data = open(sys.argv[1], "rb").read()
position, whole = 7, b""
while position + 7 <= len(data):
    if 32768 - position % 32768 < 7:
        position += 32768 - position % 32768
        continue
    _, length, kind = struct.unpack_from("<IHB", data, position)
    whole += data[position + 7 : position + 7 + length]
    position += 7 + length
    if kind in (2, 3):
        continue
    record = wandb_internal_pb2.Record()
    record.ParseFromString(whole)
    whole = b""
    if record.WhichOneof("record_type") == "history":
        row = {each.key or ".".join(each.nested_key): json.loads(each.value_json) for each in record.history.item}
        print(json.dumps([row["_step"], row["loss"]]))
    if record.WhichOneof("record_type") == "run":
        print(json.dumps({"id": record.run.run_id, "project": record.run.project}))
"""
    read = subprocess.run([str(PYTHON), "-c", reader, str(stored)], capture_output=True, text=True, check=True).stdout
    lines = [json.loads(line) for line in read.splitlines()]
    found = next(line for line in lines if isinstance(line, dict))
    assert found["project"] == "numbers"
    assert found["id"] in said
    assert_same([(step, value) for step, value in (line for line in lines if isinstance(line, list))], losses(folder))
