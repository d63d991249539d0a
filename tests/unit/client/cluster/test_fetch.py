"""Fetched folders, whole or not there, from buckets and from pods; the pods' side is the trainer's own, called here."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mptraining.cluster import fetch
from mptraining.cluster.api import CommandFailed
from mptraining.cluster.errors import ClusterProblem, NotFound, Unreachable
from mptraining.cluster.fetch import FetchRequest, StillTraining, default_target
from mptraining.cluster.job_view import JobView, view
from mptraining.cluster.logs import WorkerPod
from mptraining.display.transfer import PlainTransfer, Transfer
from mptraining_api.problems import InvalidData, Problem
from mptraining_storage import storage
from mptraining_trainer.export import folder_stream
from tests.unit.client.cluster.test_job_view import condition
from tests.unit.client.cluster.test_reader_pod import template

POD = WorkerPod(
    attempt=1, index=0, created="", name="digits-1-0-x", uid="pod", phase="Running", started=True, running=True
)
# The functions that ask it are replaced.
SERVER: Any = None


class Pods:
    """The trainer's commands in all pods, as `pods/exec` returns their output; `/pod` is the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[tuple[str, ...]] = []
        self.change: Callable[[bytes], bytes] = lambda archive: archive

    def __call__(self, server: Any, pod: str, command: Sequence[str], *, container: str) -> Iterator[bytes]:
        verb, *folder = command[3:]
        self.asked.append((pod, verb, *folder))
        if verb == "fetched":
            return
        path = self.root / "/".join(folder).lstrip("/")
        out = io.BytesIO()
        try:
            if verb == "files":
                out.write("".join(f"{line}\n" for line in folder_stream.list_files(path)).encode())
            else:
                folder_stream.write_tar(path, out)
        except Problem as problem:
            raise CommandFailed(pod, f"error: {problem}") from None
        content = self.change(out.getvalue()) if verb == "send" else out.getvalue()
        yield b""  # as the kubelet begins
        yield from (content[at : at + 10_000] for at in range(0, len(content), 10_000))


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pods:
    """A running worker 0 that keeps a run folder."""
    root = tmp_path / "pod"
    (root / "model").mkdir(parents=True)
    (root / "job.json").write_text("{}")
    (root / "model" / "model.json").write_text('{"name": "digits"}')
    (root / "model" / "weights.npz").write_bytes(os.urandom(100_000))
    (root / "empty").touch()
    made = Pods(root)
    monkeypatch.setattr(fetch, "_pause", lambda seconds: None)
    monkeypatch.setattr(fetch, "exec_output", made)
    monkeypatch.setattr(fetch, "worker_zero", lambda server, uid: POD)
    return made


@pytest.fixture
def said() -> list[str]:
    """The lines that a fetch prints."""
    return []


def fetch_request(to: Path, *, model_only: bool = False, overwrite: bool = False) -> FetchRequest:
    return FetchRequest("digits", "uid", to, "model" if model_only else ".", overwrite)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_kept_folder_arrives_byte_for_byte_and_its_pod_may_end(pods: Pods, tmp_path: Path) -> None:
    arrived: list[int] = []
    shown = Transfer(print)
    shown.add = arrived.append
    whole, model = tmp_path / "whole", tmp_path / "model"
    assert fetch.fetch_kept(SERVER, fetch_request(whole), shown) == whole
    assert contents(whole) == contents(pods.root)
    assert sum(arrived) == sum(map(len, contents(whole).values()))
    fetch.fetch_kept(SERVER, fetch_request(model, model_only=True), shown)
    assert contents(model) == contents(pods.root / "model")
    sent = [asked[1:] for asked in pods.asked if asked[1] != "files"]
    assert sent == [("send", "."), ("fetched",), ("send", "model"), ("fetched",)]
    targets = [default_target("digits", model_only=model_only) for model_only in (True, False)]
    assert targets == [Path("digits-model"), Path("digits")]


@pytest.mark.parametrize("model", [True, False])
def test_the_value_of_a_function_is_cached_before_the_pod_ends(
    model: bool, pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (pods.root / "function").mkdir()
    (pods.root / "function" / "result.json").write_text("x")
    if not model:
        (pods.root / "model").rename(pods.root / "other")
    value = fetch.cache_folder("uid", "function")
    folder = fetch.fetch_kept(SERVER, fetch_request(tmp_path / "m", model_only=True), Transfer(print))
    assert folder == (tmp_path / "m" if model else value)
    assert contents(value) == {"result.json": b"x"}


def test_a_lost_connection_leaves_nothing_and_the_next_fetch_copies_all(
    pods: Pods, tmp_path: Path, said: list[str]
) -> None:
    def lose(archive: bytes) -> bytes:
        raise Unreachable("here", "the API server does not answer")

    target = tmp_path / "got" / "digits"
    for change, kind in ((lose, Unreachable), (lambda archive: archive[:5_000], ClusterProblem)):
        pods.change = change
        with pytest.raises(kind):
            fetch.fetch_kept(SERVER, fetch_request(target), Transfer(said.append))
        assert list(target.parent.iterdir()) == []
    pods.change = lambda archive: archive
    assert contents(fetch.fetch_kept(SERVER, fetch_request(target), Transfer(said.append))) == contents(pods.root)


def test_a_file_that_becomes_shorter_while_it_is_sent_ends_the_fetch(
    pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pods.root / "job.json").write_text("{}" * 10_000)
    fstat = os.fstat

    def shrinks_afterwards(number: int) -> os.stat_result:
        found = fstat(number)
        if found.st_ino == (pods.root / "job.json").stat().st_ino:
            os.truncate(pods.root / "job.json", 1)
        return found

    monkeypatch.setattr(folder_stream.os, "fstat", shrinks_afterwards)
    with pytest.raises(CommandFailed, match=r"job\.json: not sent: .*Fetch again"):
        fetch.fetch_kept(SERVER, fetch_request(tmp_path / "got"), Transfer(print))
    assert not (tmp_path / "got").exists()


def test_a_file_that_is_deleted_meanwhile_is_named(pods: Pods, tmp_path: Path, said: list[str]) -> None:
    def without_first(archive: bytes) -> bytes:
        # The member of an empty file is one block.
        return archive.replace(archive[: archive.index(b"job.json")], b"", 1)

    pods.change = without_first
    fetch.fetch_kept(SERVER, fetch_request(tmp_path / "got"), Transfer(said.append))
    assert contents(tmp_path / "got").keys() == {"job.json", "model/model.json", "model/weights.npz"}
    assert said == ["note: 1 files changed while they were fetched and are not in it: empty"]


def test_an_existing_folder_is_replaced_only_if_that_is_asked_for(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").touch()
    for attempt in (
        lambda: fetch.fetch_kept(SERVER, fetch_request(tmp_path / "run"), Transfer(print)),
        lambda: fetch.fetch_output(
            SERVER, job(), "/runs/x", fetch_request(tmp_path / "run"), Transfer(print), clock=float
        ),
    ):
        with pytest.raises(InvalidData, match=r"run: exists\. Replace it with --overwrite, or name another folder"):
            attempt()
    assert contents(tmp_path / "run").keys() == {"mine.txt"}
    fetch.fetch_kept(SERVER, fetch_request(tmp_path / "run", overwrite=True), Transfer(print))
    assert contents(tmp_path / "run") == contents(pods.root)


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
def test_no_pod_writes_outside_of_the_folder(name: str, kind: bytes, link: str, pods: Pods, tmp_path: Path) -> None:
    """The program in the pod may have replaced the command that sends the folder."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        tar.addfile(member)
    pods.change = lambda _: archive.getvalue()
    with pytest.raises((ClusterProblem, InvalidData), match=r"is not a file|is outside of the folder"):
        fetch.fetch_kept(SERVER, fetch_request(tmp_path / "home" / "run"), Transfer(print))
    assert list((tmp_path / "home").iterdir()) == []


def test_output_that_is_no_folder(pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "exec_output", lambda *_, **__: iter([b"not JSON\n"]))
    with pytest.raises(ClusterProblem, match=r"it did not send a folder: its list of files cannot be read"):
        fetch.fetch_kept(SERVER, fetch_request(tmp_path / "run"), Transfer(print))


def test_a_job_that_still_trains_keeps_nothing(pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_kept(*_: object, **__: object) -> Iterator[bytes]:
        raise CommandFailed("pod", "error: folder: none is kept here; expected worker 0 after a success")

    monkeypatch.setattr(fetch, "exec_output", none_kept)
    for pod in (POD, None):
        monkeypatch.setattr(fetch, "worker_zero", lambda server, uid, pod=pod: pod)
        with pytest.raises(StillTraining, match="mptj wait digits --model digits-model"):
            fetch.fetch_kept(SERVER, fetch_request(tmp_path / "digits"), Transfer(print))


def test_what_a_waiting_client_fetched_is_copied(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ClusterProblem, match=r"the pod that kept its model no longer exists\. Train again with output"):
        fetch.fetch_cached(fetch_request(tmp_path / "m", model_only=True), Transfer(said.append))
    fetch.cache_folder("uid").mkdir(parents=True)
    (fetch.cache_folder("uid") / "model.json").write_text("{}")
    with pytest.raises(ClusterProblem, match=r"its model alone was fetched.*Add --model-only"):
        fetch.fetch_cached(fetch_request(tmp_path / "all"), Transfer(said.append))
    found = fetch.fetch_cached(fetch_request(tmp_path / "m", model_only=True), Transfer(said.append))
    assert contents(found) == {"model.json": b"{}"}


def test_a_run_folder_in_a_bucket(
    bucket: str, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("model/model.json", "model/source/flowers.py", "model/weights.npz")
    for name in names:
        storage.write(f"{bucket}/run/{name}", name.encode())
    folder = fetch.fetch_stored(f"{bucket}/run", fetch_request(tmp_path / "got"), Transfer(said.append))
    assert contents(folder) == {name: name.encode() for name in names}
    # An object that is replaced meanwhile is not taken.
    objects = storage.list_objects(f"{bucket}/run/model")
    storage.write(f"{bucket}/run/model/weights.npz", b"new")
    monkeypatch.setattr(storage, "list_objects", lambda folder: objects)
    again = fetch.fetch_stored(f"{bucket}/run", fetch_request(tmp_path / "m", model_only=True), Transfer(said.append))
    assert contents(again).keys() == {"model.json", "source/flowers.py"}
    assert said == ["note: 1 files changed while they were fetched and are not in it: weights.npz"]


def test_no_object_of_a_bucket_is_written_outside_of_the_folder(bucket: str, tmp_path: Path) -> None:
    storage.write(f"{bucket}/run/model/../../../../.bashrc", b"echo caught")
    storage.write(f"{bucket}/run/model/a/../b", b"stays inside")
    with pytest.raises(InvalidData, match=r"bashrc: is outside of the folder"):
        fetch.fetch_stored(f"{bucket}/run", fetch_request(tmp_path / "home" / "m", model_only=True), Transfer(print))
    assert list((tmp_path / "home").iterdir()) == []


class Server:
    """An API server with the Indexed Job of attempt 2 of a job."""

    def __init__(self, pod_template: dict[str, Any]) -> None:
        self.pod_template = pod_template

    def get(self, resource: Any, name: str) -> dict[str, Any]:
        if name != "digits-2":
            raise NotFound(name, "no jobs of this name")
        return {"spec": {"template": self.pod_template}}


def job(attempt: int | None = 3, *, failed: bool = False) -> JobView:
    ended = [condition(type, "ProgramFailed", "why") for type in ("Finished", "Failed")]
    status = {"currentAttempt": attempt, "conditions": ended if failed else []}
    return view({"metadata": {"name": "digits", "uid": "uid"}, "spec": {}, "status": status})


def of_volume(seen: JobView, output: str, to: Path, *, model_only: bool = False) -> Path:
    server: Any = Server(template(output))
    return fetch.fetch_output(
        server, seen, output, fetch_request(to, model_only=model_only), Transfer(print), clock=float
    )


def test_worker_0_sends_a_folder_of_the_pods_while_it_runs(pods: Pods, tmp_path: Path) -> None:
    (pods.root / "runs").mkdir()
    (pods.root / "runs" / "digits").symlink_to(pods.root / "model")
    (pods.root / "tmp" / "runs" / "relative").mkdir(parents=True)
    (pods.root / "tmp" / "runs" / "relative" / "model").symlink_to(pods.root / "model")
    for seen, output, model_only in (
        (job(), "/runs/digits", False),
        (job(), "runs/relative", True),
        # A failed job has a run folder.
        (job(failed=True), "/runs/digits", False),
    ):
        folder = of_volume(seen, output, tmp_path / f"got-{len(pods.asked)}", model_only=model_only)
        assert contents(folder) == contents(pods.root / "model")
    assert pods.asked[2] == ("digits-1-0-x", "files", "/tmp/runs/relative/model")


@pytest.mark.parametrize(
    ("seen", "output", "pod", "problem"),
    [
        (job(), "runs/digits", None, r"runs/digits was on the disk of its pods, which have ended"),
        (job(None), "/runs/digits", POD, r"no attempt has been started: it has no run folder yet"),
        (job(1), "/runs/digits", POD, r"its Indexed Jobs are deleted"),
        (job(failed=True), "/runs/digits", POD, "there is no model, the job has failed: ProgramFailed: why"),
        (job(), "/runs/digits", POD, r"there is no model yet\. It is written at the end of training"),
    ],
)
def test_what_there_is_not_is_explained(
    tmp_path: Path,
    pods: Pods,
    monkeypatch: pytest.MonkeyPatch,
    seen: JobView,
    output: str,
    pod: WorkerPod | None,
    problem: str,
) -> None:
    monkeypatch.setattr(fetch, "worker_zero", lambda server, uid: pod)
    with pytest.raises(ClusterProblem, match=problem):
        of_volume(seen, output, tmp_path / "m", model_only=True)


def test_a_pipe_shows_a_line_every_few_seconds(said: list[str]) -> None:
    now = [0.0]
    shown = PlainTransfer(said.append, clock=lambda: now[0], seconds=5)
    shown.total(4_000_000)
    for seconds in (1.0, 6.0, 7.0):
        now[0] = seconds
        shown.add(1_000_000)
    assert said == ["2.0 MB of 4.0 MB"]
