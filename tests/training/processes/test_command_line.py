"""Exit codes and messages of a trainer process, and the model of a run without a run folder."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from mptraining_api import events
from mptraining_api.launch import (
    FETCHED_COMMAND,
    MODEL_WAITS,
    SEND_COMMAND,
)
from mptraining_api.run_folder import FunctionResult
from tests.testbed.attempts import PATIENCE, TWO_REPLICAS, TWO_WORKERS, Attempt, Start


def test_a_users_mistake_is_one_line_and_exit_code_2(start: Start) -> None:
    wrong = start(TWO_REPLICAS | {"program": {"function": {"entryPoint": "no_such_module:build"}}})
    assert wrong.wait() == [2]
    assert wrong.errors() == ""
    message = wrong.finished().message
    assert "spec.program.function.entryPoint: no module 'no_such_module'" in message
    assert "\n" not in message
    assert not (wrong.folder / "model").exists()
    assert not (wrong.folder / "job.json").exists(), "fixed, the job may run in this folder"


def test_without_a_job_the_trainer_prints_its_usage() -> None:
    command = [sys.executable, "-m", "mptraining_trainer"]
    bare = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (bare.returncode, bare.stdout) == (2, "")
    assert bare.stderr.startswith("usage: python -m mptraining_trainer train")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MPTRAINING")}
    replaced = {"MPTRAINING_JOB_FILE": __file__, "MPTRAINING_JOB_DIGEST": "0" * 64}
    for given, said in (
        ({}, "MPTRAINING_JOB_FILE: not set"),
        ({"MPTRAINING_JOB_FILE": "no/such/job.json"}, "no/such/job.json: No such"),
        (replaced, f"{__file__}: not the job that the operator decided"),
    ):
        asked = subprocess.run(
            [*command, "train"], capture_output=True, text=True, timeout=240, check=False, env=environment | given
        )
        assert asked.returncode == 2
        assert asked.stderr.startswith(f"error: {said}")
        assert asked.stderr.count("\n") == 1


@pytest.mark.test_all
def test_without_a_run_folder_the_chief_keeps_the_model(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    done = start(TWO_WORKERS | {"output": None})
    assert done.processes[1].wait(PATIENCE) == 0, done.errors(1)
    end = time.monotonic() + PATIENCE
    while not (tmp_path / "tmp" / "mptraining-kept.json").exists():
        assert done.processes[0].poll() is None, done.errors()
        assert time.monotonic() < end
        time.sleep(0.05)
    assert any(event.topic == MODEL_WAITS for event in done.all(events.Notice))
    assert (done.finished().reason, done.finished().kept_seconds) == ("Succeeded", 600)
    sent = subprocess.run([sys.executable, *SEND_COMMAND[1:], "."], capture_output=True, check=True, timeout=240)
    with tarfile.open(fileobj=io.BytesIO(sent.stdout)) as tar:
        names = {"model/model.json", "model/weights.npz", "model/rebuild.py", "job.json", "result.json"}
        assert names <= set(tar.getnames())
    subprocess.run([sys.executable, *FETCHED_COMMAND[1:]], check=True, timeout=240)
    assert done.wait(120) == [0, 0]


def test_without_a_run_folder_a_function_s_value_is_kept_and_its_exception_is_logged(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("tmp", "source"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    call = "with returning() as returned:\n    returned.value = 12 // int(sys.argv[1])\n"
    imports = "import sys\nfrom mptraining_trainer.job.function_call import returning\n"
    (tmp_path / "source" / "call.py").write_text(imports + call)

    def called(by: str) -> Attempt:
        spec = {"accelerator": {"type": "cpu"}, "output": None, "training": None}
        program = {"script": {"path": "call.py", "arguments": [by]}}
        return start(spec | {"program": program}, source=tmp_path / "source")

    failed = called("0")
    assert failed.wait() == [1]
    (raised,) = failed.all(events.Raised)
    result = FunctionResult.read(raised.result)
    assert (result.type, result.message) == ("ZeroDivisionError", "integer division or modulo by zero")
    assert '  File "call.py", line 4' in result.traceback
    kept = called("4")
    end = time.monotonic() + PATIENCE
    while not (tmp_path / "tmp" / "mptraining-kept.json").exists():
        assert kept.processes[0].poll() is None, kept.errors()
        assert time.monotonic() < end
        time.sleep(0.05)
    sent = subprocess.run([sys.executable, *SEND_COMMAND[1:], "function"], capture_output=True, check=True, timeout=240)
    with tarfile.open(fileobj=io.BytesIO(sent.stdout)) as tar:
        stored = tar.extractfile("result.json")
        assert stored is not None
        assert FunctionResult.read(stored.read()).type == "int"
    subprocess.run([sys.executable, *FETCHED_COMMAND[1:]], check=True, timeout=240)
    assert kept.wait(120) == [0]
