"""What images/prune.py leaves of an image's packages still loads, and is the same bytes each time."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
_SOURCE = """
def of(value):
    "Its own."
    return value in {"x", "y", "z"}
"""


@pytest.fixture(scope="module")
def prune() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prune", ROOT / "images" / "prune.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def extension(tmp_path: Path) -> Path:
    """A copy of a real extension module, with a symbol table as compilers write it."""
    found = Path(msgspec._core.__file__)
    copy = tmp_path / "packages" / "native" / found.name
    copy.parent.mkdir(parents=True)
    shutil.copy(found, copy)
    return copy


def python(*arguments: str, path: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True
    ).stdout


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_an_extension_module_without_symbols_is_loaded_by_the_dynamic_loader(
    prune: ModuleType, extension: Path
) -> None:
    code = "import importlib.util as u, sys; s = u.spec_from_file_location('_core', sys.argv[1])\nu.module_from_spec(s)"
    extension.write_bytes(extension.read_bytes() + bytes(100_000))
    assert prune.drop_symbols(extension) >= 100_000
    assert prune.drop_symbols(extension) == 0
    # The module's own imports fail or not as with the original; a broken ELF file raises ImportError.
    python("-c", code, str(extension), path=extension.parent)


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01" + bytes(100)])
def test_a_file_that_is_no_64_bit_elf_file_is_left_alone(prune: ModuleType, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(content)
    assert prune.drop_symbols(path) == 0
    assert path.read_bytes() == content


def test_tests_headers_and_sources_go_and_modules_load(prune: ModuleType, tmp_path: Path) -> None:
    for name in (
        "part/__init__.py",
        "part/code.py",
        "part/tests/test_code.py",
        "tests/__init__.py",
        "kubernetes/__init__.py",
        "kubernetes/a.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_SOURCE)
    (tmp_path / "part" / "code.h").write_text("int a;")
    (tmp_path / "part" / "template.py").write_text("not python: {{")
    prune.packages(tmp_path, sourceless=True)
    left = set(contents(tmp_path))
    # A folder `tests` at the top is a package of that name. What is not Python is data.
    assert left == {
        "part/__init__.pyc",
        "part/code.pyc",
        "part/template.py",
        "tests/__init__.pyc",
        "kubernetes/__init__.pyc",
        "kubernetes/a.pyc",
    }
    code = "import part.code, kubernetes.a; print(part.code.of('x'), part.code.of.__doc__, kubernetes.a.of.__doc__)"
    assert python("-S", "-c", code, path=tmp_path) == "True Its own. None\n"


def test_a_library_that_another_one_loads_is_not_removed(prune: ModuleType, tmp_path: Path) -> None:
    """libarrow_substrait, which every extension of pyarrow loads, was."""
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "libarrow_flight.so.1").write_bytes(b"")
    (tmp_path / "pyarrow" / "lib.so").write_bytes(b"\x7fELF\0libc.so.6\0libarrow_flight.so.1\0")
    with pytest.raises(SystemExit, match=r"lib\.so loads libarrow_flight\.so\.1, which UNUSED removes"):
        prune.packages(tmp_path, sourceless=False)


def test_compiled_modules_are_the_same_bytes_whenever_they_are_made(prune: ModuleType, tmp_path: Path) -> None:
    made = []
    for number, seconds in enumerate((1_000_000_000, 1_700_000_000)):
        folder = tmp_path / "at" / str(number) / "packages"
        folder.mkdir(parents=True)
        (folder / "code.py").write_text(_SOURCE)
        os.utime(folder / "code.py", (seconds, seconds))
        subprocess.run(
            [sys.executable, str(ROOT / "images" / "prune.py"), "packages", "."],
            cwd=folder,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            check=True,
        )
        made.append(contents(folder))
    assert made[0] == made[1]
    assert len(made[0]) == 2


def test_a_compiled_module_of_a_lower_layer_is_not_written_again(prune: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(_SOURCE)
    prune.packages(tmp_path, sourceless=False)
    (compiled,) = tmp_path.rglob("*.pyc")
    before = compiled.stat().st_mtime_ns, compiled.stat().st_ino
    prune.packages(tmp_path, sourceless=False)
    assert (compiled.stat().st_mtime_ns, compiled.stat().st_ino) == before


def test_one_library_under_two_names_is_kept_once(prune: ModuleType, tmp_path: Path) -> None:
    for name in ("liba.so.1", "liba.so.1.2", "libb.so"):
        (tmp_path / name).write_bytes(b"content")
    (tmp_path / "liba.so.2").write_bytes(b"another")
    prune.share_copies(tmp_path)
    assert (tmp_path / "liba.so.1.2").readlink() == Path("liba.so.1")
    assert not (tmp_path / "libb.so").is_symlink()
    assert (tmp_path / "liba.so.2").read_bytes() == b"another"


@pytest.mark.integration
def test_the_root_of_an_image_runs_python_and_has_no_shell(prune: ModuleType, tmp_path: Path) -> None:
    """The interpreter of the copy finds its own standard library, as in an image."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "activate").write_text("# a shell's")
    target = tmp_path / "image"
    prune.root(target, venv)
    names = {path.name for path in target.rglob("*") if os.access(path, os.X_OK) and path.is_file()}
    assert not names & {"sh", "bash", "dash", "pip", "pip3", "apt", "dpkg", "su", "mount", "activate"}
    assert (target / "etc" / "passwd").exists()
    assert (target / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert any(path.name.startswith("libc.so") for path in target.rglob("*"))
    if os.geteuid() == 0:
        interpreter = "/" + str(next(target.rglob("bin/python3")).relative_to(target))
        code = "import sys, ssl, json, sqlite3, asyncio, typing; print(json.__file__)"
        said = subprocess.run(
            ["chroot", str(target), interpreter, "-I", "-c", code], capture_output=True, text=True, check=True
        ).stdout
        assert said.endswith("/json/__init__.pyc\n")
