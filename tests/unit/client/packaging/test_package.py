"""The package: the files of a folder, the same bytes for the same files, refused when too large."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining.packaging import package as packing
from mptraining.packaging.package import CONFIG_MAP_BYTES, SourceFile, build_package, read_folder
from mptraining_api.launch import CONFIG_MAP_FOLDER, SOURCE_FOLDER
from mptraining_api.problems import InvalidProgram
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import CONFIG_MAP_ARCHIVE, MPTrainingJob
from mptraining_trainer.job.prepare import prepare

SCRIPT = {"script": {"path": "train.py"}}
# Only names of folders begin with d: no path is both a folder and a file.
NAMES = st.text("abcefgh_", min_size=1, max_size=8)
FILES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map(
        lambda parts: "/".join([*(f"d{part}" for part in parts[:-1]), parts[-1]])
    ),
    st.tuples(st.binary(max_size=200), st.booleans()),
    min_size=1,
    max_size=8,
)


def of(files: dict[str, tuple[bytes, bool]]) -> list[SourceFile]:
    return [SourceFile(path, content, executable) for path, (content, executable) in files.items()]


@given(files=FILES)
def test_the_trainer_unpacks_what_was_packed(
    files: dict[str, tuple[bytes, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("pod")
    made = build_package(of(files), program=SCRIPT)
    (folder / "mounted").mkdir()
    (folder / "mounted" / CONFIG_MAP_ARCHIVE).write_bytes(base64.b64decode(made.binary_data()[CONFIG_MAP_ARCHIVE]))
    spec = {"accelerator": {"type": "cpu"}, "program": SCRIPT, "source": made.source(config_map="code")}
    job = resolve(MPTrainingJob.parse({"metadata": {"name": "a"}, "spec": spec}), ClusterSettings())
    prepare(job, {SOURCE_FOLDER: str(folder / "files"), CONFIG_MAP_FOLDER: str(folder / "mounted")})
    unpacked = {
        path.relative_to(folder / "files").as_posix(): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in (folder / "files").rglob("*")
        if path.is_file()
    }
    assert unpacked == files


def test_the_digest_is_the_same_on_every_day_and_for_any_order_of_the_files() -> None:
    # zlib's own versions may differ; the tar inside must not.
    files = [SourceFile("a/b.py", b"x = 1\n"), SourceFile.of_text("train.py", "print('ü')\n")]
    made = build_package(files, program=SCRIPT)
    tar = gzip.decompress(made.archive)
    assert made.archive[4:8] == b"\0\0\0\0"
    assert hashlib.sha256(tar).hexdigest() == "82cddb1be5ba13bafb5a06e1ffde6bf78e7091b22e93bf8793a869900396ca18"
    assert made.sha256 == hashlib.sha256(made.archive).hexdigest()
    assert build_package(files[::-1], program=SCRIPT).archive == made.archive
    executable = [files[0], SourceFile("train.py", files[1].content, executable=True)]
    assert build_package(executable, program=SCRIPT).sha256 != made.sha256


def test_the_sections_of_the_job() -> None:
    made = build_package([SourceFile("train.py", b"")], program=SCRIPT, requirements="requirements.txt")
    assert made.source(config_map="c") == {
        "configMap": {"name": "c", "sha256": made.sha256}, "requirements": "requirements.txt",
    }  # fmt: skip
    uri = f"gs://b/{made.object_name}"
    assert made.source(uri=uri) == {
        "archive": {"uri": uri, "sha256": made.sha256}, "requirements": "requirements.txt",
    }  # fmt: skip


def noise(size: int) -> bytes:
    """Return bytes that no compression makes smaller."""
    blocks = (hashlib.sha256(str(number).encode()).digest() for number in range(size // 32 + 1))
    return b"".join(blocks)[:size]


def test_a_package_too_large_for_a_config_map_names_its_files() -> None:
    made = build_package([SourceFile("train.py", b""), SourceFile("w.bin", noise(CONFIG_MAP_BYTES))], program=SCRIPT)
    assert not made.small
    with pytest.raises(InvalidProgram) as caught:
        made.binary_data()
    assert "kB packed, more than a ConfigMap holds; the biggest files: w.bin (700 kB)" in str(caught.value)
    assert ".mptrainingignore, or name a bucket" in str(caught.value)


@pytest.mark.parametrize(
    ("paths", "mistake"),
    [
        (["/etc/passwd"], "is outside of it"),
        (["../a"], "is outside of it"),
        (["a/../../b"], "is outside of it"),
        ([""], "is outside of it"),
        (["a", "a"], "two files have the path 'a'"),
    ],
)
def test_no_path_leads_out_or_is_that_of_two_files(paths: list[str], mistake: str) -> None:
    with pytest.raises(InvalidProgram, match=mistake):
        build_package([SourceFile(path, b"") for path in paths], program=SCRIPT)


def write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)


def paths(folder: Path) -> list[str]:
    return [file.path for file in read_folder(folder)[0]]


UNNEEDED = (
    ".git/config", "pkg/__pycache__/a.pyc", "a.pyc", ".venv/bin/python", "node_modules/x/y.js", ".env", "sub/.env",
    "key.pem", ".ipynb_checkpoints/a.ipynb", "runs/first/job.json", "sample_data/mnist.csv", ".kube/config",
)  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ("", ["data/a.csv", "sub/data/b.csv", "train.py"]),
        ("data/", ["train.py"]),
        ("/data/", ["sub/data/b.csv", "train.py"]),
        ("*.csv\n!a.csv", ["data/a.csv", "train.py"]),
        ("# all\n*\n!train.py", ["train.py"]),
        ("!/.env", [".env", "data/a.csv", "sub/data/b.csv", "train.py"]),
    ],
)
def test_the_ignore_file_has_gitignore_s_syntax(tmp_path: Path, lines: str, left: list[str]) -> None:
    write(tmp_path, "train.py", "data/a.csv", "sub/data/b.csv", *UNNEEDED)
    (tmp_path / ".mptrainingignore").write_text(lines)
    assert paths(tmp_path) == left


def test_a_huge_ignored_folder_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "train.py", ".git/objects/a/b", "data/deep/c")
    (tmp_path / ".mptrainingignore").write_text("data/")
    listed: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: (listed.append(str(folder)), scandir(folder))[1])
    assert paths(tmp_path) == ["train.py"]
    assert listed == [str(tmp_path)]


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
    for number, size in enumerate((1 << 40, 500, 400, 300, 200, 100)):
        with (tmp_path / f"{number}.bin").open("wb") as file:
            file.truncate(size)
    with pytest.raises(InvalidProgram) as caught:
        read_folder(tmp_path)
    assert str(caught.value).startswith(
        "source: 6 files, 1.1 TB; the biggest: 0.bin (1.1 TB), 1.bin (500 B), 2.bin (400 B), "
        "3.bin (300 B), 4.bin (200 B); expected at most 256 MB in 10,000 files. Put data into a bucket"
    )
    monkeypatch.setattr(packing, "MOST_FILES", 1)
    with pytest.raises(InvalidProgram, match="2 files, 0 B"):
        build_package([SourceFile("a", b""), SourceFile("b", b"")], program=SCRIPT)


@pytest.mark.parametrize(
    ("content", "mistake"), [(b"!\n", r"\.mptrainingignore: .*in .gitignore's syntax"), (b"\xff", "not a text file")]
)
def test_an_ignore_file_that_is_none(tmp_path: Path, content: bytes, mistake: str) -> None:
    (tmp_path / ".mptrainingignore").write_bytes(content)
    with pytest.raises(InvalidProgram, match=mistake):
        read_folder(tmp_path)
    with pytest.raises(InvalidProgram, match="no folder"):
        read_folder(tmp_path / "nowhere")
