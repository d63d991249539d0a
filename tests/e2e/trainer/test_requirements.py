"""Requirements beside the image's packages: real pip, wheels that the test builds, no index."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mptraining_api.problems import InvalidProgram, InvalidSpec
from mptraining_trainer.job import requirements
from mptraining_trainer.job.requirements import install


@pytest.fixture(autouse=True)
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def wheel(folder: Path, name: str, version: str = "1.0", *, needs: tuple[str, ...] = ()) -> None:
    info = f"{name}-{version}.dist-info"
    required = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as packed:
        packed.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}")
        packed.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        packed.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def written(folder: Path, *lines: str) -> Path:
    (folder / "requirements.txt").write_text("\n".join(("--find-links .", *lines)) + "\n")
    return folder


def test_what_the_image_lacks_is_installed_and_what_it_has_is_not(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    # Scripts name tensorflow; in images for CPUs and TPUs its distribution has another name.
    wheel(source, "mptraining_test_flowers", needs=("numpy", "tensorflow>=2"))
    packages = tmp_path / "packages"
    install("requirements.txt", written(source, "mptraining-test-flowers", "tensorflow", "keras"), packages)
    assert sorted(path.name for path in packages.iterdir()) == [
        "__pycache__",
        "mptraining_test_flowers-1.0.dist-info",
        "mptraining_test_flowers.py",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "import mptraining_test_flowers as f; print(f.VERSION)"],
        env={"PYTHONPATH": str(packages)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout == "1.0\n"
    assert list(tmp_path.glob(".pip-*")) == []


def test_a_second_run_replaces_the_first(tmp_path: Path) -> None:
    wheel(tmp_path, "mptraining_test_a")
    wheel(tmp_path, "mptraining_test_b")
    for name in ("mptraining-test-a", "mptraining-test-b"):
        install("requirements.txt", written(tmp_path, name), tmp_path / "packages")
    assert not (tmp_path / "packages" / "mptraining_test_a.py").exists()
    assert (tmp_path / "packages" / "mptraining_test_b.py").exists()


def test_what_the_image_has_is_not_replaced(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wheel(tmp_path, "numpy", "0.1")
    with pytest.raises(InvalidProgram) as caught:
        install("requirements.txt", written(tmp_path, "numpy==0.1"), tmp_path / "packages")
    assert caught.value.where == "spec.source.requirements"
    assert "Cannot install numpy==0.1" in caught.value.found
    assert f"numpy=={importlib.metadata.version('numpy')}" in caught.value.found
    assert "podTemplate.image" in caught.value.next_step
    assert "ResolutionImpossible" in capfd.readouterr().err, "the whole of what pip said is in the log"


def test_an_image_whose_pip_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = str(Path(sys.executable).with_name("pip"))
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(requirements.shutil, "which", lambda name: pip)
    # Only packages of this environment satisfy it: those of another one do not count.
    wheel(tmp_path, "mptraining_test_flowers", needs=("numpy", "tensorflow"))
    install("requirements.txt", written(tmp_path, "mptraining-test-flowers"), tmp_path / "packages")
    assert (tmp_path / "packages" / "mptraining_test_flowers.py").exists()
    assert not (tmp_path / "packages" / "numpy").exists()


def test_an_image_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(requirements.shutil, "which", lambda name: None)
    with pytest.raises(InvalidProgram, match="the image has no pip"):
        install("requirements.txt", written(tmp_path, "anything"), tmp_path / "packages")


def test_a_package_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidProgram, match="pip: No matching distribution found for mptraining-test-nothing"):
        install("requirements.txt", written(tmp_path, "mptraining-test-nothing"), tmp_path / "packages")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(
        InvalidSpec, match=r"no file 'requirement\.txt' in the source\. Did you mean 'requirements\.txt'"
    ):
        install("requirement.txt", tmp_path, tmp_path / "packages")


def test_a_file_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    written(tmp_path)
    with pytest.raises(InvalidSpec, match="in the source"):
        install("../requirements.txt", tmp_path / "source", tmp_path / "packages")


# Kept on a volume.


def cached(source: Path, cache: Path, *lines: str, name: str = "requirements.txt") -> bool:
    (source / name).write_text("\n".join(lines) + "\n")
    return install(name, source, source.parent / "packages", cache=cache)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source folder, and an index that has two packages."""
    for folder in ("source", "index"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    wheel(tmp_path / "index", "mptraining_test_a")
    wheel(tmp_path / "index", "mptraining_test_b")
    return tmp_path / "source"


def test_the_next_pod_asks_no_index(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cached(source, tmp_path / "cache", "mptraining-test-a")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert cached(source, tmp_path / "cache", "# a comment", "", "mptraining-test-a  # another")
    assert (tmp_path / "packages" / "mptraining_test_a.py").exists()
    assert [path.name.startswith(".") for path in (tmp_path / "cache").iterdir()] == [False]
    # Another package is requested.
    with pytest.raises(InvalidProgram, match="No matching distribution"):
        cached(source, tmp_path / "cache", "mptraining-test-b")


def test_named_files_and_versions_of_the_image_count(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "more.txt").write_text("mptraining-test-a\n")
    assert not cached(source, tmp_path / "cache", "-r more.txt")
    assert cached(source, tmp_path / "cache", "-r more.txt")
    (source / "more.txt").write_text("mptraining-test-b\n")
    assert not cached(source, tmp_path / "cache", "-r more.txt")
    assert (tmp_path / "packages" / "mptraining_test_b.py").exists()
    versions = requirements._versions()
    monkeypatch.setattr(requirements, "_versions", lambda: versions | {"numpy": "99"})
    assert not cached(source, tmp_path / "cache", "-r more.txt")


@pytest.mark.parametrize(
    ("line", "is_kept"),
    [
        ("einops>=0.8", True),
        ("--extra-index-url https://example.com/simple", True),
        ("thing @ https://example.com/thing-1.0.tar.gz", True),
        ("git+https://example.com/thing.git@v1", True),
        ("./wheels/thing.whl", False),
        ("/wheels/thing.whl", False),
        ("wheels/thing.whl", False),
        ("thing @ file:///wheels/thing.whl", False),
        ("-e .", False),
        ("--find-links wheels", False),
        ("--find-links=https://example.com/wheels", True),
        ("-r nowhere.txt", False),
    ],
)
def test_only_packages_of_its_text_are_kept(tmp_path: Path, line: str, is_kept: bool) -> None:
    (tmp_path / "r.txt").write_text(f"{line}\n")
    assert (requirements.cache_path(tmp_path, tmp_path / "r.txt", "numpy==2") is not None) == is_kept


def test_files_that_name_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r b.txt\n")
    (tmp_path / "b.txt").write_text("--requirement=a.txt\n")
    assert requirements.cache_path(tmp_path, tmp_path / "a.txt", "") is not None


def test_a_read_only_volume_is_no_failure(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert not cached(source, tmp_path / "file", "mptraining-test-a")
    assert (tmp_path / "packages" / "mptraining_test_a.py").exists()
    assert "MPTRAINING_PACKAGES_CACHE: the packages could not be cached" in capfd.readouterr().err


def test_another_worker_that_was_faster_is_no_error(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert not cached(source, tmp_path / "cache", "mptraining-test-a")
    (kept,) = (tmp_path / "cache").iterdir()
    requirements.save_to_cache(tmp_path / "packages", kept)
    assert [*(tmp_path / "cache").iterdir()] == [kept]
    assert capfd.readouterr().err == ""
