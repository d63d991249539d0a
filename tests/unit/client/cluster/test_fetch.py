"""Where a folder is fetched from, a lost connection, and the error if there is nothing to fetch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mptraining.cluster import fetch
from mptraining.cluster.api import CommandFailed
from mptraining.cluster.errors import ClusterProblem, NotFound, Unreachable
from mptraining.cluster.fetch import Quiet, StillTraining, Wanted, default_target
from mptraining.cluster.folder_source import FetchedFolder, RemoteFile
from mptraining.cluster.job_view import JobView, view
from mptraining.cluster.logs import WorkerPod
from mptraining.display.transfer import PlainTransfer
from mptraining_api.problems import InvalidData
from tests.unit.client.cluster.test_job_view import condition
from tests.unit.client.cluster.test_reader_pod import template

FILES = [RemoteFile("a", 1, "1"), RemoteFile("b", 1, "1"), RemoteFile("model/c", 1, "1")]
POD = WorkerPod(attempt=1, index=0, created="", name="digits-1-0-x", uid="pod", phase="Running", started=True)


class Folder:
    """A source whose connection breaks after each of the numbers of files in `breaks`."""

    def __init__(self, *breaks: int, files: Sequence[RemoteFile] = FILES) -> None:
        self.breaks = list(breaks)
        self.listed = list(files)
        self.sent: list[str] = []

    def files(self) -> list[RemoteFile]:
        return self.listed

    def copy(self, files: Sequence[RemoteFile], into: FetchedFolder, on_bytes: Callable[[int], None]) -> None:
        last = self.breaks.pop(0) if self.breaks else None
        for file in files[:last]:
            with into.add(file) as opened:
                opened.write(b"x")
            self.sent.append(file.path)
            on_bytes(1)
        if last is not None:
            raise Unreachable("here", "the API server does not answer")


class Training(Folder):
    """A source in a pod that still trains."""

    def files(self) -> list[RemoteFile]:
        raise CommandFailed("pod", "error: folder: none is kept here; expected worker 0 after a success")


def wanted(to: Path, *, model_only: bool = False) -> Wanted:
    return Wanted("digits", "uid", to, "model" if model_only else ".", overwrite=False)


@pytest.fixture
def said() -> list[str]:
    """The lines that a fetch prints."""
    return []


def use(
    monkeypatch: pytest.MonkeyPatch, source: Any, pod: WorkerPod | None = POD, *, value: Sequence[RemoteFile] = ()
) -> list[tuple[str, str]]:
    """Let pods serve `source`, and the files `value` of a function; return which pods and folders are read."""
    read: list[tuple[str, str]] = []

    def folder(server: Any, name: str, path: str) -> Any:
        if path == "function" and not isinstance(source, Training):
            return Folder(files=value)
        read.append((name, path))
        return source

    monkeypatch.setattr(fetch, "_pause", lambda seconds: None)
    monkeypatch.setattr(fetch, "PodFolder", folder)
    monkeypatch.setattr(fetch, "worker_zero", lambda server, uid: pod)
    monkeypatch.setattr(fetch, "exec_output", lambda *_, **__: iter(()))
    return read


def kept(to: Path, say: Callable[[str], None], *, model_only: bool = False) -> Path:
    return fetch.fetch_kept(None, wanted(to, model_only=model_only), Quiet(say))  # type: ignore[arg-type]


def test_a_lost_connection_ends_the_fetch_and_the_next_one_copies_all(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Folder(1)
    use(monkeypatch, source)
    with pytest.raises(Unreachable):
        kept(tmp_path / "digits", said.append)
    assert list(tmp_path.iterdir()) == []
    assert kept(tmp_path / "digits", said.append) == tmp_path / "digits"
    assert source.sent == ["a", "a", "b", "model/c"]


def test_the_model_alone(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read = use(monkeypatch, Folder())
    kept(tmp_path / "m", said.append, model_only=True)
    kept(tmp_path / "all", said.append)
    assert list(dict.fromkeys(read)) == [("digits-1-0-x", "model"), ("digits-1-0-x", ".")]
    targets = [default_target("digits", model_only=each) for each in (True, False)]
    assert targets == [Path("digits-model"), Path("digits")]


@pytest.mark.parametrize("model", [FILES, []])
def test_the_value_of_a_function_is_cached_before_the_pod_ends(
    model: list[RemoteFile], tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    use(monkeypatch, Folder(files=model), value=[RemoteFile("result.json", 1, "1")])
    value = fetch.cache_folder("uid", "function")
    assert kept(tmp_path / "m", said.append, model_only=True) == (tmp_path / "m" if model else value)
    assert (value / "result.json").read_text() == "x"


def test_files_that_change_meanwhile_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    class Changes(Folder):
        def copy(self, files: Sequence[RemoteFile], into: FetchedFolder, on_bytes: Callable[[int], None]) -> None:
            super().copy(files[:2], into, on_bytes)

    use(monkeypatch, Changes())
    kept(tmp_path / "digits", said.append)
    assert said == ["note: 1 files changed while they were fetched and are not in it: model/c"]
    assert sorted(path.name for path in (tmp_path / "digits").iterdir()) == ["a", "b"]


def test_a_job_that_still_trains_keeps_nothing(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for source, pod in ((Training(), POD), (Folder(), None)):
        use(monkeypatch, source, pod)
        with pytest.raises(StillTraining, match="mptj wait digits --model digits-model"):
            kept(tmp_path / "digits", said.append)


def test_what_a_waiting_client_fetched_is_copied(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ClusterProblem, match=r"the pod that kept its model no longer exists\. Train again with output"):
        fetch.fetch_cached(wanted(tmp_path / "m", model_only=True), Quiet(said.append))
    fetch.cache_folder("uid").mkdir(parents=True)
    (fetch.cache_folder("uid") / "model.json").write_text("{}")
    with pytest.raises(ClusterProblem, match=r"its model alone was fetched.*Add --model-only"):
        fetch.fetch_cached(wanted(tmp_path / "all"), Quiet(said.append))
    found = fetch.fetch_cached(wanted(tmp_path / "m", model_only=True), Quiet(said.append))
    assert (found / "model.json").read_text() == "{}"


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


def of_volume(seen: JobView, output: str, to: Path, say: Callable[[str], None], *, model_only: bool = False) -> Path:
    server: Any = Server(template(output))
    target = wanted(to, model_only=model_only)
    return fetch.fetch_output(server, seen, output, target, Quiet(say), clock=float)


def test_worker_0_sends_a_folder_of_the_pods_while_it_runs(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = use(monkeypatch, Folder())
    of_volume(job(), "/runs/digits", tmp_path / "got", said.append)
    of_volume(job(), "runs/relative", tmp_path / "relative", said.append, model_only=True)
    assert read == [("digits-1-0-x", "/runs/digits"), ("digits-1-0-x", "/tmp/runs/relative/model")]


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: JobView, output: str, pod: WorkerPod | None, problem: str
) -> None:
    use(monkeypatch, Folder(files=[]), pod)
    with pytest.raises(ClusterProblem, match=problem):
        of_volume(seen, output, tmp_path / "m", print, model_only=True)


def test_a_failed_job_has_a_run_folder(tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Folder())
    assert of_volume(job(failed=True), "/runs/digits", tmp_path / "got", said.append) == tmp_path / "got"


def test_an_existing_folder_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    (tmp_path / "got").mkdir()
    server: Any = None
    with pytest.raises(InvalidData, match=r"got: exists\. Replace it with --overwrite"):
        fetch.fetch_output(server, job(), "/runs/digits", wanted(tmp_path / "got"), Quiet(print), clock=float)


def test_a_pipe_shows_a_line_every_few_seconds(said: list[str]) -> None:
    now = [0.0]
    shown = PlainTransfer(said.append, clock=lambda: now[0], seconds=5)
    shown.total(4_000_000)
    for seconds in (1.0, 6.0, 7.0):
        now[0] = seconds
        shown.add(1_000_000)
    assert said == ["2.0 MB of 4.0 MB"]
