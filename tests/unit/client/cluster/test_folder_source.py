"""Folders in buckets and in pods; the pods' side is the trainer's own, called in this process."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mptraining.cluster import folder_source
from mptraining.cluster.api import CommandFailed
from mptraining.cluster.errors import ClusterProblem, Unreachable
from mptraining.cluster.folder_source import FetchedFolder, PodFolder, RemoteFile, StoredFolder
from mptraining_api.problems import InvalidData, Problem
from mptraining_records.storage import storage
from mptraining_trainer.export import folder_stream

Exec = Callable[..., Iterator[bytes]]


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "pod" / "runs" / "digits"
    (folder / "model").mkdir(parents=True)
    (folder / "job.json").write_text("{}")
    (folder / "model" / "model.json").write_text('{"name": "digits"}')
    (folder / "model" / "weights.npz").write_bytes(os.urandom(100_000))
    (folder / "empty").touch()
    return folder


@pytest.fixture
def pod(remote: Path, monkeypatch: pytest.MonkeyPatch) -> PodFolder:
    monkeypatch.setattr(folder_source, "exec_output", answer)
    return PodFolder(None, "digits-fetch-x", str(remote))  # type: ignore[arg-type]


def answer(server: Any, pod: str, command: Sequence[str], *, container: str) -> Iterator[bytes]:
    """The trainer's verbs, as `pods/exec` returns their output."""
    verb, folder = command[3:]
    out = io.BytesIO()
    try:
        if verb == "files":
            out.write("".join(f"{line}\n" for line in folder_stream.list_files(Path(folder))).encode())
        else:
            folder_stream.write_tar(Path(folder), out)
    except Problem as problem:
        raise CommandFailed(pod, f"error: {problem}") from None
    content = out.getvalue()
    yield from (content[at : at + 10_000] for at in range(0, len(content), 10_000))


def copied(source: Any, folder: FetchedFolder, files: Sequence[RemoteFile]) -> int:
    arrived: list[int] = []
    source.copy(files, folder, arrived.append)
    return sum(arrived)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_in_a_pod_arrives_byte_for_byte(pod: PodFolder, remote: Path, tmp_path: Path) -> None:
    files = pod.files()
    assert [each.path for each in files] == ["empty", "job.json", "model/model.json", "model/weights.npz"]
    with FetchedFolder(tmp_path / "got", overwrite=False) as folder:
        assert copied(pod, folder, files) == sum(each.size for each in files)
        folder.publish()
    assert contents(tmp_path / "got") == contents(remote)


def test_a_damaged_file_has_not_arrived(pod: PodFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(*arguments: Any, **options: Any) -> Iterator[bytes]:
        content = bytearray(b"".join(answer(*arguments, **options)))
        content[content.index(b'"name": "digits"')] ^= 1
        yield bytes(content)

    files = pod.files()
    monkeypatch.setattr(folder_source, "exec_output", damage)
    with FetchedFolder(tmp_path / "got", overwrite=False) as folder:
        with pytest.raises(Unreachable, match=r"model/model\.json was damaged on its way"):
            copied(pod, folder, files)
        assert {file.path for file in folder.arrived} == {"empty", "job.json"}


def test_files_of_a_running_job_may_go_and_shrink(
    pod: PodFolder, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = pod.files()
    (remote / "empty").unlink()
    fstat = os.fstat

    def shrinks_afterwards(number: int) -> os.stat_result:
        found = fstat(number)
        if found.st_ino == (remote / "job.json").stat().st_ino:
            os.truncate(remote / "job.json", 1)
        return found

    monkeypatch.setattr(folder_stream.os, "fstat", shrinks_afterwards)
    with FetchedFolder(tmp_path / "got", overwrite=False) as folder:
        copied(pod, folder, files)
        assert {file.path for file in folder.arrived} == {"model/model.json", "model/weights.npz"}


def test_a_folder_that_is_not_there(pod: PodFolder) -> None:
    with pytest.raises(CommandFailed, match="no such folder"):
        PodFolder(None, "pod", "/runs/none").files()  # type: ignore[arg-type]


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
    """The program in the pod may have replaced the command that sends the folder."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        tar.addfile(member)
    monkeypatch.setattr(folder_source, "exec_output", lambda *_, **__: iter([archive.getvalue()]))
    file = RemoteFile(name, 0, "1")
    with FetchedFolder(tmp_path / "home" / "run", overwrite=False) as folder:
        with pytest.raises((ClusterProblem, InvalidData), match=r"is not a file|is outside of the folder"):
            copied(PodFolder(None, "pod", "."), folder, [file])  # type: ignore[arg-type]
        assert not folder.arrived
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_list_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_source, "exec_output", lambda *_, **__: iter([b"not JSON\n"]))
    with pytest.raises(ClusterProblem, match=r"it did not send a folder: its list of files cannot be read"):
        PodFolder(None, "pod", ".").files()  # type: ignore[arg-type]


def test_a_folder_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    for name in ("model.json", "weights.npz", "source/flowers.py"):
        storage.write(f"{bucket}/run/model/{name}", name.encode())
    source = StoredFolder(f"{bucket}/run/model")
    files = source.files()
    with FetchedFolder(tmp_path / "got", overwrite=False) as folder:
        assert copied(source, folder, files) == sum(each.size for each in files)
        folder.publish()
    names = ("model.json", "source/flowers.py", "weights.npz")
    assert contents(tmp_path / "got") == {name: name.encode() for name in names}


def test_an_object_that_is_replaced_meanwhile_is_not_taken(bucket: str, tmp_path: Path) -> None:
    storage.write(f"{bucket}/run/a", b"old")
    source = StoredFolder(f"{bucket}/run")
    files = source.files()
    storage.write(f"{bucket}/run/a", b"new")
    with FetchedFolder(tmp_path / "got", overwrite=False) as folder:
        assert copied(source, folder, files) == 0
        assert not folder.arrived


def test_no_object_of_a_bucket_is_written_outside_of_the_folder(bucket: str, tmp_path: Path) -> None:
    storage.write(f"{bucket}/run/model/../../../../.bashrc", b"echo caught")
    storage.write(f"{bucket}/run/model/a/../b", b"stays inside")
    source = StoredFolder(f"{bucket}/run/model")
    with (
        pytest.raises(InvalidData, match=r"bashrc: is outside of the folder"),
        FetchedFolder(tmp_path / "home" / "model", overwrite=False) as folder,
    ):
        copied(source, folder, source.files())
    assert [path for path in tmp_path.rglob(".bashrc") if path.is_file()] == []


def test_a_volume_that_is_mounted_here(remote: Path, tmp_path: Path) -> None:
    source = StoredFolder(f"file://{remote}")
    files = source.files()
    with FetchedFolder(tmp_path / "got", overwrite=False) as folder:
        copied(source, folder, files)
        folder.publish()
    assert contents(tmp_path / "got") == contents(remote)
