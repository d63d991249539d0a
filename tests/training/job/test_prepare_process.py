"""The verb `source`: its downloads, checks and refusals, with real archives and a real object server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mptraining_api import events, launch
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import storage
from tests.testbed.source_archives import CODE, archived, resolved, tgz


def run(job: ResolvedJob | None, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    if job is not None:
        (folder / "job.json").write_text(job.to_json())
    told = {
        launch.JOB_FILE: str(folder / "job.json"),
        launch.SOURCE_FOLDER: str(folder / "files"),
        launch.TERMINATION_LOG: str(folder / "termination-log"),
        launch.INCARNATION: "pod-uid",
    }
    command = [sys.executable, *launch.SOURCE_COMMAND[1:]]
    return subprocess.run(
        command, env={**os.environ, **told, **environment}, capture_output=True, check=False, text=True, timeout=240
    )


def test_the_process_reports_its_work_and_does_not_end_the_job(tmp_path: Path) -> None:
    done = run(archived(tgz(CODE), str(tmp_path / "code.tgz")), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("source: 3 files")
    assert events.parse(done.stdout) is None
    assert not (tmp_path / "termination-log").exists()


@pytest.mark.parametrize(
    ("digest", "environment", "code", "reason"),
    [
        ("0" * 64, {}, 2, "InvalidSpec"),
        (None, {}, 2, "InvalidData"),
        (None, {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:9"}, 75, "StorageUnavailable"),
    ],
)
def test_the_process_writes_its_final_message(
    tmp_path: Path, digest: str | None, environment: dict[str, str], code: int, reason: str
) -> None:
    uri = "gs://bucket/code.tgz" if environment else str(tmp_path / "code.tgz")
    if digest:
        storage.write(uri, tgz(CODE))
    job = resolved(archive={"uri": uri, "sha256": digest or "1" * 64})
    done = run(job, tmp_path, MPTRAINING_STORAGE_RETRY_SECONDS="0.1", **environment)
    assert done.returncode == code, done.stderr
    last = events.parse((tmp_path / "termination-log").read_text())
    assert isinstance(last, events.Finished)
    assert (last.reason, last.exit_code, last.incarnation) == (reason, code, "pod-uid")
    assert f"error: {last.message}\n" == done.stderr
    assert events.parse(done.stdout) == last


def test_without_a_job_file_there_is_a_final_message_too(tmp_path: Path) -> None:
    for verb in ("source", "train"):
        log = tmp_path / verb
        done = subprocess.run(
            [sys.executable, "-m", "mptraining_trainer", verb],
            env={**os.environ, launch.JOB_FILE: str(tmp_path / "job.json"), launch.TERMINATION_LOG: str(log)},
            capture_output=True,
            check=False,
            text=True,
            timeout=240,
        )
        assert done.returncode == 2
        last = events.parse(log.read_text())
        assert isinstance(last, events.Finished)
        assert last.reason == "InvalidSpec"
        assert "expected a resolved job" in last.message


def test_the_final_message_contains_no_secret(tmp_path: Path) -> None:
    """pip or a library with a token may print it: here the path of the job file contains it."""
    token, log = "token-0123456789abcdef", tmp_path / "log"
    secrets = {"TOKEN": token, launch.SECRET_VARIABLES: "TOKEN"}
    done = subprocess.run(
        [sys.executable, "-m", "mptraining_trainer", "source"],
        env={**os.environ, **secrets, launch.JOB_FILE: f"/{token}/job.json", launch.TERMINATION_LOG: str(log)},
        capture_output=True,
        check=False,
        text=True,
        timeout=240,
    )
    assert done.returncode == 2
    for said in (done.stdout, done.stderr, log.read_text()):
        assert "/(the value of TOKEN)/job.json" in said
        assert token not in said


def test_the_process_exits_on_sigterm(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(resolved(configMap={"name": "code"}).to_json())
    program = (
        "import sys, time; from mptraining_trainer import __main__ as main;"
        "from mptraining_trainer.job import prepare;"
        "prepare.prepare = lambda *_: (print('ready', flush=True), time.sleep(600));"
        "sys.exit(main.main(['source']))"
    )
    environment = {**os.environ, launch.JOB_FILE: str(tmp_path / "job.json")}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        last = events.parse(process.stdout.read())
        assert process.wait(120) == 75
    assert isinstance(last, events.Finished)
    assert last.reason == "Preempted"
