"""The model's files from a run folder; those from a pod are in tests/cluster/test_mptj.py."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mptraining.cluster import model_download
from mptraining.cluster.api import CommandFailed
from mptraining.cluster.errors import ClusterProblem
from mptraining.cluster.logs import WorkerPod
from mptraining_api.launch import MODEL_FETCHED_COMMAND
from mptraining_api.problems import InvalidData
from mptraining_records.storage import storage


@pytest.fixture
def output(bucket: str) -> str:
    for name in ("model.json", "weights.npz", "source/flowers.py"):
        storage.write(f"{bucket}/run/model/{name}", name.encode())
    return f"{bucket}/run"


def test_from_a_bucket_whole_or_not_at_all(output: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").touch()
    got = model_download.from_run_folder(output, tmp_path / "model")
    assert sorted(path.relative_to(got).as_posix() for path in got.rglob("*") if path.is_file()) == [
        "model.json",
        "source/flowers.py",
        "weights.npz",
    ]
    assert (got / "source" / "flowers.py").read_text() == "source/flowers.py"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_from_a_volume_that_is_mounted_here(tmp_path: Path) -> None:
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "model.json").write_text("{}")
    got = model_download.from_run_folder(str(tmp_path / "run"), tmp_path / "copy")
    assert (got / "model.json").read_text() == "{}"


def test_a_folder_of_the_pods_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"is a folder of the job's pods and not of this machine"):
        model_download.from_run_folder("/runs/of-the-pods", tmp_path / "model")
    with pytest.raises(InvalidData, match="holds no model"):
        model_download.from_run_folder(str(tmp_path), tmp_path / "model")


def test_no_object_of_a_bucket_is_written_outside_of_the_folder(output: str, tmp_path: Path) -> None:
    storage.write(f"{output}/model/../../../../.bashrc", b"echo caught")
    storage.write(f"{output}/model/a/../b", b"stays inside")
    with pytest.raises(InvalidData, match=r"bashrc: is outside the model's folder"):
        model_download.from_run_folder(output, tmp_path / "home" / "model")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../../.bashrc", tarfile.REGTYPE, ""),
        ("/etc/cron.d/job", tarfile.REGTYPE, ""),
        ("out", tarfile.SYMTYPE, "../../.ssh"),
        ("out", tarfile.LNKTYPE, "/etc/passwd"),
        ("disk", tarfile.BLKTYPE, ""),
    ],
)
def test_no_pod_writes_outside_of_the_folder(
    name: str, kind: bytes, link: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program in the pod may have replaced the command that sends the model."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        tar.addfile(member)

    def run(server: Any, pod: str, command: Any, *, container: str, write: Callable[[bytes], object]) -> str:
        write(archive.getvalue())
        return f"sent {hashlib.sha256(archive.getvalue()).hexdigest()}"

    monkeypatch.setattr(model_download, "exec_command", run)
    pod = WorkerPod(attempt=1, index=0, created="", name="flowers-1-0-abcde", uid="uid", phase="Running", started=True)
    home = tmp_path / "home"
    if name.startswith("/"):
        # Treated as a name below the folder, as tar does.
        model_download.from_pod(None, pod, home / "model")  # type: ignore[arg-type]
        assert [path.relative_to(home).as_posix() for path in home.rglob("*.d/job")] == ["model/etc/cron.d/job"]
        return
    with pytest.raises(ClusterProblem, match=r"flowers-1-0-abcde: it did not send a model"):
        model_download.from_pod(None, pod, home / "model")  # type: ignore[arg-type]
    assert list(tmp_path.rglob("*")) == [home]


def test_a_container_that_ends_during_its_release_loses_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("model.json"))

    def run(server: Any, pod: str, command: Any, *, container: str, write: Callable[[bytes], object]) -> str:
        if command == MODEL_FETCHED_COMMAND:
            raise CommandFailed(pod, "exit code 137")
        write(archive.getvalue())
        return f"sent {hashlib.sha256(archive.getvalue()).hexdigest()}"

    monkeypatch.setattr(model_download, "exec_command", run)
    pod = WorkerPod(attempt=1, index=0, created="", name="flowers-1-0-abcde", uid="uid", phase="Running", started=True)
    model_download.from_pod(None, pod, tmp_path / "model")  # type: ignore[arg-type]
    assert (tmp_path / "model" / "model.json").exists()
