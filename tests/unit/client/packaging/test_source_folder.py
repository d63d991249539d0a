"""The files of a folder that are shipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mptraining.packaging import package as packing
from mptraining.packaging.package import read_folder
from mptraining_api.problems import InvalidProgram


def write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)


def paths(folder: Path) -> list[str]:
    return [file.path for file in read_folder(folder)[0]]


@pytest.mark.parametrize(
    "path",
    [
        ".git/config", "pkg/__pycache__/a.pyc", "a.pyc", ".venv/bin/python", "node_modules/x/y.js", ".env", "sub/.env",
        "key.pem", ".ipynb_checkpoints/a.ipynb", "runs/first/job.json", "sample_data/mnist.csv", ".kube/config",
    ],
)  # fmt: skip
def test_files_that_no_job_needs_are_not_shipped(tmp_path: Path, path: str) -> None:
    write(tmp_path, "train.py", path)
    assert paths(tmp_path) == ["train.py"]


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ("", ["data/a.csv", "sub/data/b.csv", "train.py"]),
        ("data/", ["train.py"]),
        ("/data/", ["sub/data/b.csv", "train.py"]),
        ("*.csv\n!a.csv", ["data/a.csv", "train.py"]),
        ("# all\n*\n!train.py", ["train.py"]),
        ("!.env", [".env", "data/a.csv", "sub/data/b.csv", "train.py"]),
    ],
)
def test_the_ignore_file_has_gitignore_s_syntax(tmp_path: Path, lines: str, left: list[str]) -> None:
    write(tmp_path, "train.py", "data/a.csv", "sub/data/b.csv", ".env")
    (tmp_path / ".mptrainingignore").write_text(lines)
    assert paths(tmp_path) == left


def test_a_huge_ignored_folder_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "train.py", ".git/objects/a/b", "data/deep/c")
    (tmp_path / ".mptrainingignore").write_text("data/")
    seen = []
    walk = os.walk

    def watched(folder: Path) -> object:
        for parent, folders, names in walk(folder):
            seen.append(Path(parent).relative_to(folder).as_posix())
            yield parent, folders, names

    monkeypatch.setattr(os, "walk", watched)
    assert paths(tmp_path) == ["train.py"]
    assert seen == ["."]


def test_a_link_to_a_file_is_the_file(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/shared.py", "code/train.py")
    for name, target in (("shared.py", "../elsewhere/shared.py"), ("all", "../elsewhere"), ("gone", "nowhere")):
        (tmp_path / "code" / name).symlink_to(target)
    (tmp_path / "code" / "train.py").chmod(0o755)
    os.mkfifo(tmp_path / "code" / "pipe")
    files, notes = read_folder(tmp_path / "code")
    assert [(file.path, file.content, file.executable) for file in files] == [
        ("shared.py", b"elsewhere/shared.py", False),
        ("train.py", b"code/train.py", True),
    ]
    assert notes == [
        "all/ is a link to a folder, which is not followed",
        "gone is no file, and is not shipped",
        "pipe is no file, and is not shipped",
    ]


def test_too_much_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "train.py")
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidProgram, match=r"the biggest: data.bin \(1099.5 GB\), train.py"):
        read_folder(tmp_path)
    monkeypatch.setattr(packing, "MOST_FILES", 1)
    (tmp_path / "data.bin").unlink()
    write(tmp_path, "b.py")
    with pytest.raises(InvalidProgram, match="2 files"):
        read_folder(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidProgram, match="no folder"):
        read_folder(tmp_path / "nowhere")


def test_a_pattern_that_is_none(tmp_path: Path) -> None:
    (tmp_path / ".mptrainingignore").write_text("!\n")
    with pytest.raises(InvalidProgram, match=r"\.mptrainingignore: .*in .gitignore's syntax"):
        read_folder(tmp_path)
    (tmp_path / ".mptrainingignore").write_bytes(b"\xff")
    with pytest.raises(InvalidProgram, match="not a text file"):
        read_folder(tmp_path)
