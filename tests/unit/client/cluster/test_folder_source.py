"""Fetched folders, whole or not there, from buckets and from pods; the pods' side is the trainer's own, called here."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mptraining.cluster import folder_source
from mptraining.cluster.api import CommandFailed
from mptraining.cluster.errors import ClusterProblem, Unreachable
from mptraining.cluster.folder_source import FetchedFolder, PodFolder, RemoteFile, StoredFolder
from mptraining_api.problems import InvalidData, Problem
from mptraining_storage import storage
from mptraining_trainer.export import folder_stream

# The functions that ask it are replaced.
SERVER: Any = None


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
    return PodFolder(SERVER, "digits-fetch-x", str(remote))


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


def copied(source: Any, into: Path) -> dict[str, bytes]:
    """Copy all files of a source; return those that have arrived."""
    arrived: list[int] = []
    files = source.files()
    with FetchedFolder(into, overwrite=False) as folder:
        source.copy(files, folder, arrived.append)
        folder.publish()
    found = contents(into)
    assert sum(arrived) >= sum(map(len, found.values()))
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_in_a_pod_or_in_a_mounted_volume_arrives_byte_for_byte(
    pod: PodFolder, remote: Path, tmp_path: Path
) -> None:
    assert [each.path for each in pod.files()] == ["empty", "job.json", "model/model.json", "model/weights.npz"]
    assert copied(pod, tmp_path / "got") == contents(remote)
    assert copied(StoredFolder(f"file://{remote}"), tmp_path / "mounted") == contents(remote)
    with pytest.raises(CommandFailed, match="no such folder"):
        PodFolder(SERVER, "pod", "/runs/none").files()


def test_a_damaged_file_has_not_arrived(pod: PodFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(server: Any, pod: str, command: Sequence[str], *, container: str) -> Iterator[bytes]:
        content = b"".join(answer(server, pod, command, container=container))
        yield content if command[3] == "files" else content.replace(b'"name": "digits"', b'"name": "dogits"')

    monkeypatch.setattr(folder_source, "exec_output", damage)
    with pytest.raises(Unreachable, match=r"model/model\.json was damaged on its way"):
        copied(pod, tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_files_of_a_running_job_may_go_and_shrink(
    pod: PodFolder, remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fstat, files = os.fstat, pod.files()

    def shrinks_afterwards(number: int) -> os.stat_result:
        found = fstat(number)
        if found.st_ino == (remote / "job.json").stat().st_ino:
            os.truncate(remote / "job.json", 1)
        return found

    (remote / "empty").unlink()
    monkeypatch.setattr(pod, "files", lambda: files)
    monkeypatch.setattr(folder_stream.os, "fstat", shrinks_afterwards)
    assert copied(pod, tmp_path / "got").keys() == {"model/model.json", "model/weights.npz"}


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
    source = PodFolder(SERVER, "pod", ".")
    monkeypatch.setattr(folder_source, "exec_output", lambda *_, **__: iter([archive.getvalue()]))
    monkeypatch.setattr(source, "files", lambda: [RemoteFile(name, 0, "1")])
    with pytest.raises((ClusterProblem, InvalidData), match=r"is not a file|is outside of the folder"):
        copied(source, tmp_path / "home" / "run")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_list_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_source, "exec_output", lambda *_, **__: iter([b"not JSON\n"]))
    with pytest.raises(ClusterProblem, match=r"it did not send a folder: its list of files cannot be read"):
        PodFolder(SERVER, "pod", ".").files()


def test_a_folder_in_a_bucket(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("model.json", "source/flowers.py", "weights.npz")
    for name in names:
        storage.write(f"{bucket}/run/model/{name}", name.encode())
    source = StoredFolder(f"{bucket}/run/model")
    assert copied(source, tmp_path / "got") == {name: name.encode() for name in names}
    # An object that is replaced meanwhile is not taken.
    files = source.files()
    storage.write(f"{bucket}/run/model/weights.npz", b"new")
    monkeypatch.setattr(source, "files", lambda: files)
    assert copied(source, tmp_path / "again").keys() == {"model.json", "source/flowers.py"}


def test_no_object_of_a_bucket_is_written_outside_of_the_folder(bucket: str, tmp_path: Path) -> None:
    storage.write(f"{bucket}/run/model/../../../../.bashrc", b"echo caught")
    storage.write(f"{bucket}/run/model/a/../b", b"stays inside")
    with pytest.raises(InvalidData, match=r"bashrc: is outside of the folder"):
        copied(StoredFolder(f"{bucket}/run/model"), tmp_path / "home" / "model")
    assert [path for path in tmp_path.rglob(".bashrc") if path.is_file()] == []


FILES = [RemoteFile("a.txt", 1, "1"), RemoteFile("sub/b.txt", 1, "1")]


def add(folder: FetchedFolder, *files: RemoteFile) -> None:
    for file in files:
        with folder.add(file) as opened:
            opened.write(file.version.encode())


def test_it_is_whole_or_not_there(tmp_path: Path) -> None:
    def interrupted() -> None:
        with FetchedFolder(tmp_path / "run", overwrite=False) as folder:
            add(folder, FILES[0])
            with folder.add(FILES[1]) as opened:
                opened.write(b"half")
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with FetchedFolder(tmp_path / "run", overwrite=False) as folder:
        add(folder, *FILES)
        assert not (tmp_path / "run").exists()
        assert folder.publish() == tmp_path / "run"
    assert sorted(contents(tmp_path)) == ["run/a.txt", "run/sub/b.txt"]


def test_an_existing_folder_is_replaced_only_if_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").touch()
    with pytest.raises(InvalidData, match=r"run: exists\. Replace it with --overwrite, or name another folder"):
        FetchedFolder(tmp_path / "run", overwrite=False).__enter__()
    assert sorted(contents(tmp_path)) == ["run/mine.txt"]
    with FetchedFolder(tmp_path / "run", overwrite=True) as folder:
        add(folder, *FILES)
        assert sorted(contents(tmp_path / "run")) == ["mine.txt"], "until the new one is complete"
        folder.publish()
    assert sorted(contents(tmp_path)) == ["run/a.txt", "run/sub/b.txt"]
