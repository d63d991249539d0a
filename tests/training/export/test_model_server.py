"""A kept folder, fetched by real processes, as `pods/exec` starts them in the pod."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mptraining_api import events
from mptraining_api.launch import (
    FETCHED_COMMAND,
    FILES_COMMAND,
    MODEL_WAIT_SECONDS,
    SEND_COMMAND,
    TERMINATION_LOG,
    WorkerIdentity,
)
from mptraining_api.problems import InvalidSpec
from mptraining_trainer.export import model_server


class Pod:
    """A folder that processes share as their temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.model = folder / "scratch" / "model"
        (self.model / "source").mkdir(parents=True)
        (self.model / "model.json").write_text("{}")
        (self.model / "source" / "flowers.py").write_text("x = 1\n")
        (self.model / "weights.npz").write_bytes(bytes(range(256)) * 1000)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.log = folder / "termination-log"
        finished = events.Finished(
            time=1.0,
            attempt=1,
            incarnation="i",
            worker=0,
            reason="Succeeded",
            exit_code=0,
            message="",
            kept_seconds=9.0,
        )
        self.log.write_text(finished.to_json())
        self.environment = {**os.environ, "TMPDIR": str(self.temporary), TERMINATION_LOG: str(self.log)}
        self.kept: subprocess.Popen[bytes] | None = None

    def keep(self, seconds: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mptraining_trainer", "keep", str(self.model.parent), str(seconds)]
        self.kept = subprocess.Popen(command, env=self.environment)
        end = time.monotonic() + 120
        while seconds and not (self.temporary / "mptraining-kept.json").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        return self.kept

    def run(self, command: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, *command[1:]], env=self.environment, capture_output=True, check=False, timeout=240
        )


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    if made.kept is not None:
        made.kept.kill()
        made.kept.wait(120)


def hand_over(pod: Pod) -> str | None:
    """Return what the operator reads from the termination log."""
    found = events.parse(pod.log.read_text())
    assert isinstance(found, events.Finished)
    assert (found.reason, found.kept_seconds) == ("Succeeded", 9.0)
    return found.hand_over


def test_the_folder_is_sent_whole_and_then_released(pod: Pod) -> None:
    kept = pod.keep(600)
    listed = pod.run((*FILES_COMMAND, "model"))
    assert listed.returncode == 0, listed.stderr
    found = {each["path"]: each["size"] for each in map(json.loads, listed.stdout.decode().splitlines())}
    assert found == {"model.json": 2, "source/flowers.py": 6, "weights.npz": 256_000}
    sent = pod.run((*SEND_COMMAND, "model"))
    assert sent.returncode == 0, sent.stderr
    with tarfile.open(fileobj=io.BytesIO(sent.stdout)) as tar:
        contents = [(each.name, tar.extractfile(each).read()) for each in tar]  # type: ignore[union-attr]
    assert [name for name, _ in contents] == ["model.json", "source/flowers.py", "weights.npz"]
    assert contents[2][1] == (pod.model / "weights.npz").read_bytes()
    assert kept.poll() is None, "it may be fetched again: the first may have been cut"
    assert pod.run(FETCHED_COMMAND).returncode == 0
    assert kept.wait(120) == 0
    assert hand_over(pod) == "Fetched"
    late = pod.run((*FILES_COMMAND, "model"))
    assert late.returncode == 2
    assert b"none is kept here" in late.stderr


def test_a_folder_of_a_running_worker_needs_no_kept_one(pod: Pod) -> None:
    listed = pod.run((*FILES_COMMAND, str(pod.model.parent)))
    assert next(json.loads(line)["path"] for line in listed.stdout.splitlines()) == "model/model.json"
    missing = pod.run((*SEND_COMMAND, str(pod.model / "none")))
    assert missing.returncode == 2
    assert b"none: no such folder" in missing.stderr


def test_on_sigterm_it_exits_with_success(pod: Pod) -> None:
    """Training is complete: a preemption now must not start it again."""
    kept = pod.keep(600)
    kept.send_signal(signal.SIGTERM)
    assert kept.wait(120) == 0
    assert hand_over(pod) == "NotFetched"
    assert pod.keep(0).wait(120) == 0


@pytest.mark.parametrize(
    ("index", "output", "setting", "expected"),
    [(0, None, "", 600), (0, None, "5", 5), (0, None, "0", 0), (1, None, "", 0), (0, "gs://b/f", "", 0)],
)
def test_only_worker_0_without_output_waits(index: int, output: str | None, setting: str, expected: float) -> None:
    job: Any = type("Job", (), {"output": output})
    identity = WorkerIdentity(index=index, hosts=("a:1", "b:1"), attempt=1, incarnation="i")
    assert model_server.keep_seconds(job, identity, {MODEL_WAIT_SECONDS: setting}) == expected


def test_a_setting_that_is_no_number_is_refused() -> None:
    job: Any = type("Job", (), {"output": None})
    with pytest.raises(InvalidSpec, match=r"MPTRAINING_MODEL_WAIT_SECONDS: 'soon'; expected a number of seconds"):
        model_server.keep_seconds(
            job, WorkerIdentity(index=0, hosts=("a:1",), attempt=1, incarnation="i"), {MODEL_WAIT_SECONDS: "soon"}
        )
