"""A packaged program, as of `tfc.run(backend="local")`, trained by processes of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mptraining.tensorflow_cloud as tfc
from mptraining.local.local_job import LocalJob
from mptraining.local.runner import LocalRunner, Machine
from mptraining.packaging.package import SourceFile, build_package
from mptraining.tensorflow_cloud_compat import launch
from mptraining_api.problems import InvalidProgram

PROGRAM = {"script": {"path": "pkg/train.py"}}
DOCUMENT: dict[str, Any] = {
    "apiVersion": "mptraining.dev/v1alpha1",
    "kind": "MPTrainingJob",
    "metadata": {"name": "flowers"},
    "spec": {"accelerator": {"type": "cpu"}, "program": PROGRAM},
}
FILES = [SourceFile("pkg/train.py", b"print('hello')"), SourceFile("run.sh", b"", executable=True)]


def test_the_worker_finds_the_package(tmp_path: Path, stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = stub(
        "folder = os.environ['MPTRAINING_SOURCE_FOLDER']\n"
        "found = sorted(os.path.relpath(os.path.join(p, n), folder) for p, _, ns in os.walk(folder) for n in ns)\n"
        "print(found, os.access(os.path.join(folder, 'run.sh'), os.X_OK), file=open('found.txt', 'w'))\n"
        "job = json.load(open(os.environ['MPTRAINING_JOB_FILE']))\n"
        "print(job['output'], file=open('output.txt', 'w'))\n"
        "finish('Succeeded', 0)\n"
    )
    job = LocalRunner(command=command).run(DOCUMENT, package=build_package(FILES, program=PROGRAM))
    assert (tmp_path / "found.txt").read_text() == "['pkg/train.py', 'run.sh'] True\n"
    assert (tmp_path / "output.txt").read_text().strip() == str(tmp_path / "runs" / "flowers") == job.run_folder
    made = launch.TfcJob(job, None)
    assert made == {"job_id": "flowers", "docker_image": None}
    assert (made.job, made.run_folder) == (job, job.run_folder)


def test_a_failure_names_the_log(
    tmp_path: Path, stub: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    document = {**DOCUMENT, "spec": {**DOCUMENT["spec"], "output": {"uri": "here"}}}
    shipped = build_package(FILES, program=PROGRAM, requirements="reqs.txt")
    job = LocalRunner(command=stub("finish('ProgramFailed', 1, 'broken')")).run(document, package=shipped)
    assert (job.exit_code, job.run_folder) == (1, f"{tmp_path}/here")
    monkeypatch.setattr(LocalRunner, "run", lambda *_, **__: job)
    with pytest.raises(InvalidProgram, match=rf"ended with exit code 1. See the lines above.* in {tmp_path}/here"):
        tfc.run(__file__, backend="local")
    assert "note: reqs.txt is not installed here" in capsys.readouterr().out


def test_who_asks_for_no_accelerator_gets_this_machine_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(LocalRunner, "run", lambda _, body, **__: asked.append(body) or LocalJob("flowers", "f"))
    monkeypatch.setattr("mptraining.local.runner.this_machine", lambda: Machine(gpu=False, tpu=False))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    for more in ({}, {"chief_config": tfc.COMMON_MACHINE_CONFIGS["T4_1X"]}):
        tfc.run("train.py", backend="local", **more)
    assert [body["spec"]["accelerator"]["type"] for body in asked] == ["cpu", "t4"]


def test_what_is_deleted_at_the_end_is_not_shown(
    tmp_path: Path, stub: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = stub(
        "file = os.path.join(os.environ['MPTRAINING_SOURCE_FOLDER'], 'pkg', 'train.py')\n"
        "say('Notice', topic='Script', level='warning', message=f'look at {file}:3')\n"
        "print(f'  File \"{file}\", line 3')\n"
        "say('Saved', step=8, uri='u', bytes=1, seconds=1.0)\n"
        "finish('ProgramFailed', 1, f'{file}:3: broken')"
    )
    runner = LocalRunner(command=command, again="run(…, name='flowers')")
    assert runner.run(DOCUMENT, package=build_package(FILES, program=PROGRAM)).exit_code == 1
    said = capsys.readouterr()
    assert "look at pkg/train.py:3" in said.out
    assert 'File "pkg/train.py", line 3' in said.out
    expected = "mptj: ProgramFailed: pkg/train.py:3: broken. `run(…, name='flowers')` resumes from step 8."
    assert said.err.strip() == expected
    assert "mptraining-source" not in said.out + said.err
