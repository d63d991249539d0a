"""The processes beside worker 0: what they are called with, and that none of them holds the trainer."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from mptraining_api.launch import TRACKING_PYTHON, WorkerIdentity
from mptraining_trainer.report.tracking_processes import TrackingProcesses
from tests.jobs import resolved_job

TRACKING = {"mlflow": {"uri": "https://mlflow.example"}, "wandb": {"project": "flowers"}}


def identity(index: int = 0) -> WorkerIdentity:
    return WorkerIdentity(index=index, hosts=("a:1", "b:1"), attempt=1, incarnation="a-b")


@pytest.fixture
def said() -> list[str]:
    return []


def python(folder: Path, script: str) -> dict[str, str]:
    """Return an environment in which this shell script is the interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {**os.environ, TRACKING_PYTHON: str(path)}


def start(said: list[str], environment: dict[str, str], **options: Any) -> TrackingProcesses:
    def notice(topic: str, message: str, *, level: str = "Info") -> None:
        said.append(f"{level} {topic}: {message}")

    given = {"job": resolved_job(tracking=TRACKING), "identity": identity(), "folder": "runs/numbers"} | options
    return TrackingProcesses(notice=notice, environment=environment, **given)


def test_one_process_for_each_server(tmp_path: Path, said: list[str]) -> None:
    processes = start(said, python(tmp_path, f'echo "$@" >> {tmp_path}/calls'))
    processes.close(60, time.monotonic)
    export = "-m mptraining track runs/numbers --to"
    assert sorted((tmp_path / "calls").read_text().splitlines()) == [
        f"{export} mlflow --uri https://mlflow.example --experiment numbers --follow a-b",
        f"{export} wandb --project flowers --follow a-b",
    ]
    assert said == []


def test_a_process_that_hangs_is_killed(tmp_path: Path, said: list[str]) -> None:
    processes = start(said, python(tmp_path, "exec sleep 600"))
    before = time.monotonic()
    processes.close(0.2, time.monotonic)
    assert time.monotonic() - before < 30


@pytest.mark.parametrize("options", [{"identity": identity(1)}, {"job": resolved_job()}])
def test_none_on_other_workers_and_for_other_jobs(tmp_path: Path, said: list[str], options: dict[str, Any]) -> None:
    start(said, python(tmp_path, f"touch {tmp_path}/called"), **options).close(60, time.monotonic)
    assert not (tmp_path / "called").exists()


def test_what_cannot_be_started_is_a_notice(said: list[str]) -> None:
    start(said, dict(os.environ)).close(1, time.monotonic)
    assert len(said) == 2
    assert said[0].startswith("Warning NotTracked: mlflow is not installed here")
    assert "mptj track runs/numbers --to mlflow" in said[0]
    said.clear()
    start(said, {**os.environ, TRACKING_PYTHON: "/nowhere/python"}).close(1, time.monotonic)
    assert said == [f"Warning NotTracked: {server}: No such file or directory" for server in ("mlflow", "wandb")]
