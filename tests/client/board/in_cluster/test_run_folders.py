"""The namespace that a run folder belongs to, and the settings that say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from mptraining.board.in_cluster.__main__ import main
from mptraining.board.in_cluster.files import MOST_DOCUMENT_BYTES, MOST_EVENTS_BYTES, BoundedFiles, MountedFiles
from mptraining.board.in_cluster.run_folders import FolderOwners, Place
from mptraining.board.in_cluster.settings import BoardSettings
from mptraining.board.listing import File, MemoryFiles
from mptraining_api.problems import InvalidData, InvalidSpec, Problem

FOLDERS: list[dict[str, Any]] = [
    {"namespace": "red", "folder": "gs://red-runs"},
    {"namespace": "red", "folder": "gs://shared/projects"},
    {"namespace": "blue", "folder": "gs://shared/projects/blue/"},
    {"namespace": "green", "folder": "gs://shared/projects/blue"},
    {"folder": "/mnt/{namespace}/runs", "mount": "/mounts/0"},
    {"namespace": "red", "folder": "/data", "mount": "/mounts/1"},
]


def owners(**options: Any) -> FolderOwners:
    return FolderOwners(BoardSettings.parse({"runFolders": FOLDERS}).run_folders, **options)


@pytest.mark.parametrize(
    ("folder", "namespaces"),
    [
        ("gs://red-runs/one", {"red"}),
        ("gs://red-runs", {"red"}),
        ("gs://red-runs-of-others/one", set()),
        ("gs://shared/one", set()),
        ("gs://shared/projects/one", {"red"}),
        # The deepest folder decides, and two namespaces may share one.
        ("gs://shared/projects/blue/one", {"blue", "green"}),
        ("gs://shared/projects/blue2/one", {"red"}),
        ("/mnt/blue/runs/one", {"blue"}),
        ("/mnt/blue/other/one", set()),
        ("/data/one", {"red"}),
        ("gs://red-runs/../shared/projects", set()),
        ("gs://red-runs//one", set()),
        ("gs://red-runs/a\0b", set()),
        ("//data/one", set()),
        ("data/one", set()),
        ("", set()),
    ],
)
def test_a_run_folder_belongs_to_the_namespaces_of_the_deepest_folder(folder: str, namespaces: set[str]) -> None:
    found = {each for each in ("red", "blue", "green", "{namespace}", "") if owners().place(each, folder)}
    assert found == namespaces


def test_a_path_is_read_below_the_mount() -> None:
    assert owners().place("blue", "/mnt/blue/runs/a/one/") == Place("/mnt/blue/runs/a/one", "/mounts/0", ("a", "one"))
    assert owners().place("red", "gs://red-runs/one") == Place("gs://red-runs/one")


def test_the_operators_default_outputs_in_buckets_are_of_their_namespaces() -> None:
    found = owners(default_output="gs://all/runs/", default_outputs={"blue": "gs://blue", "green": "/volume"})
    assert found.run_folder("red", "one", None) == "gs://all/runs/red/one"
    assert found.run_folder("blue", "one", None) == "gs://blue/one"
    assert found.run_folder("blue", "one", "gs://x/y") == "gs://x/y"
    assert found.place("red", "gs://all/runs/red/one") is not None
    assert found.place("blue", "gs://all/runs/red/one") is None
    assert found.place("blue", "gs://blue/one") is not None
    # No volume of the pod has it.
    assert found.place("green", "/volume/one") is None
    assert owners().run_folder("red", "one", None) is None


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"folder": "gs://a"}, "either namespace"),
        ({"namespace": "a", "folder": "gs://a/{namespace}"}, "either namespace"),
        ({"folder": "gs://a/x-{namespace}"}, "one whole part"),
        ({"folder": "gs://{namespace}/{namespace}"}, "."),
        ({"namespace": "a", "folder": "/runs"}, "mount"),
        ({"namespace": "a", "folder": "gs://a", "mount": "/x"}, "mount"),
        ({"namespace": "a", "folder": "gs://a/../b"}, "gs://bucket/folder"),
        ({"namespace": "a", "folder": "/"}, "gs://bucket/folder"),
        ({"namespace": "a", "folder": "s3://a"}, "gs://bucket/folder"),
        ({"namespace": "a", "folder": "runs"}, "gs://bucket/folder"),
        ({"namespace": "A_b", "folder": "gs://a"}, "namespace"),
    ],
)
def test_folders_that_say_nothing_clear_are_refused(entry: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        BoardSettings.parse({"runFolders": [entry]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hosts: [https://board.example]", "hosts"),
        ("reviewSeconds: 0", "reviewSeconds"),
        ("reviewSeconds: 3600", "reviewSeconds"),
        ("port: http", "port"),
        ("prot: 1", "prot"),
        ("a: [", "not YAML"),
        ("- a", "."),
        ("certificate: /nowhere", "."),
    ],
)
def test_wrong_settings_end_the_process_with_their_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {}}]
    content = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "c"}
    kubeconfig.write_text(yaml.safe_dump(content))
    assert main(["--settings", str(file), "--kubeconfig", str(kubeconfig), "--host", "127.0.0.1"]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert "Traceback" not in printed
    assert main(["--settings", str(tmp_path / "absent")]) == 2


def test_only_files_of_the_run_folder_itself_are_read(tmp_path: Path) -> None:
    import os

    folder = tmp_path / "runs" / "one"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "a.log").write_text("output")
    (folder / "job.json").write_text("{}")
    (folder / "model.keras").write_text("large")
    os.mkfifo(folder / "logs" / "pipe")
    (tmp_path / "secret").write_text("secret")
    (folder / "logs" / "link").symlink_to(tmp_path / "secret")
    files = MountedFiles("/runs/one", str(tmp_path), ("runs", "one"))
    assert set(files.list()) == {"job.json", "logs/a.log"}
    assert files.read("logs/a.log", 2, 3) == b"tpu"
    for name in ("logs/link", "logs/pipe", "logs/absent", "../secret"):
        with pytest.raises(Problem, match="/runs/one/"):
            files.read(name, 0, 10)
    (tmp_path / "runs-link").symlink_to(tmp_path / "runs")
    assert MountedFiles("/x", str(tmp_path), ("runs-link", "one")).list() == {}
    assert MountedFiles("/x", str(tmp_path), ("absent",)).list() == {}
    assert MountedFiles("/x", str(tmp_path), ("secret",)).list() == {}


def test_a_volume_that_may_not_be_read_is_an_error_of_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(InvalidData, match="/runs/one: Permission denied"):
        MountedFiles("/runs/one", str(tmp_path), ("one",)).list()


def test_files_beyond_what_a_shared_server_can_read_are_left_out() -> None:
    class Many:
        folder = "/runs/one"

        def list(self) -> dict[str, File]:
            sizes = {"job.json": MOST_DOCUMENT_BYTES + 1, "result.json": 10, "logs/1-0.log": 10 << 30}
            sizes |= {f"events/1-a-0-{part}.jsonl": MOST_EVENTS_BYTES // 2 for part in range(3)}
            return {name: File(size, "") for name, size in sizes.items()}

        def read(self, name: str, start: int, length: int) -> bytes:
            raise NotImplementedError

    found = BoundedFiles(Many()).list()
    assert set(found) == {"result.json", "logs/1-0.log", "events/1-a-0-0.jsonl", "events/1-a-0-1.jsonl"}


def test_of_too_many_events_those_of_the_first_attempts_stay_and_of_them_the_chiefs() -> None:
    half = b" " * (MOST_EVENTS_BYTES // 2)
    names = ("events/10-a-0-0.jsonl", "events/2-a-1-0.jsonl", "events/2-a-0-10.jsonl", "events/2-a-0-9.jsonl")
    found = BoundedFiles(MemoryFiles("/runs/one", dict.fromkeys(names, half))).list()
    assert set(found) == {"events/2-a-0-9.jsonl", "events/2-a-0-10.jsonl"}
