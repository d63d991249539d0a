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


def record(prune: ModuleType, root: Path) -> dict[str, bytes]:
    """What the records of a small Debian add to an image with six files, of which two packages own three."""
    dpkg, documents, target = root / "dpkg", root / "doc", root / "image"
    (dpkg / "info").mkdir(parents=True)
    paragraphs = []
    for name, architecture, status in (
        ("libc6", "amd64", "install ok installed"),
        ("libc6", "i386", "install ok installed"),
        ("openssl", "amd64", "install ok installed"),
        ("ca-certificates", "all", "install ok installed"),
        ("left", "all", "deinstall ok config-files"),
    ):
        paragraphs.append(
            f"Package: {name}\nStatus: {status}\nArchitecture: {architecture}\nVersion: 1-1\nDescription: a\n b\n .\n c"
        )
    (dpkg / "status").write_text("\n\n".join(paragraphs) + "\n\n")
    for name, lines in {
        # As before the merge of /lib into /usr/lib; every package names the folders of its files.
        "libc6:amd64": "/.\n/lib\n/lib/x86_64-linux-gnu\n/lib/x86_64-linux-gnu/libc.so.6\n",
        "libc6:i386": "/.\n/lib\n/lib/i386-linux-gnu\n/lib/i386-linux-gnu/libc.so.6\n",
        "openssl": "/.\n/usr\n/usr/lib\n/usr/lib/ssl\n/usr/lib/ssl/certs\n/usr/bin/openssl\n",
        "ca-certificates": "/.\n/etc\n/etc/ssl\n/etc/ssl/certs\n",
        "left": "/.\n/etc\n/etc/left\n",
    }.items():
        (dpkg / "info" / f"{name}.list").write_text(lines)
    (documents / "libc6").mkdir(parents=True)
    (documents / "libc6" / "copyright").write_bytes(b"Copyright \xe9\n")
    for name in ("usr/lib/x86_64-linux-gnu/libc.so.6", "usr/local/bin/python3.11", "etc/left", "opt/venv/a"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("content")
    (target / "lib").symlink_to("usr/lib")
    (target / "usr/lib/ssl").mkdir()
    (target / "usr/lib/ssl/certs").symlink_to("/etc/ssl/certs")
    before = contents(target)
    prune.record_packages(target, dpkg, documents)
    return {name: content for name, content in contents(target).items() if name not in before}


@pytest.mark.skipif(not Path("/lib").is_symlink(), reason="no Debian with /lib merged into /usr/lib")
def test_packages_that_own_a_copied_file_are_recorded_for_scanners(prune: ModuleType, tmp_path: Path) -> None:
    made = record(prune, tmp_path)
    assert set(made) == {
        "var/lib/dpkg/status.d/libc6",
        "var/lib/dpkg/status.d/openssl",
        "usr/share/doc/libc6/copyright",
    }
    assert made["var/lib/dpkg/status.d/libc6"] == (
        b"Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1-1\nDescription: a\n b\n .\n c\n"
    )
    assert made["usr/share/doc/libc6/copyright"] == b"Copyright \xe9\n"
    assert record(prune, tmp_path / "again") == made


def test_the_certificates_that_a_script_of_a_package_makes_are_the_package_s(prune: ModuleType, tmp_path: Path) -> None:
    certificates = tmp_path / "image" / "etc" / "ssl" / "certs" / "ca-certificates.crt"
    certificates.parent.mkdir(parents=True)
    certificates.write_text("")
    assert "var/lib/dpkg/status.d/ca-certificates" in record(prune, tmp_path)


def test_a_base_without_dpkg_leaves_no_record(prune: ModuleType, tmp_path: Path) -> None:
    target = tmp_path / "image"
    target.mkdir()
    prune.record_packages(target, tmp_path / "no-dpkg", tmp_path / "no-documents")
    assert contents(target) == {}


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
    if shutil.which("dpkg-query"):
        state = subprocess.run(["dpkg-query", "--status", "libc6"], capture_output=True, text=True, check=True).stdout
        recorded = (target / "var/lib/dpkg/status.d/libc6").read_text()
        # dpkg-query sorts no field, but may leave out empty ones.
        assert set(recorded.splitlines()) == set(state.splitlines()) - {""}
        assert (target / "usr/share/doc/libc6/copyright").read_bytes() == Path(
            "/usr/share/doc/libc6/copyright"
        ).read_bytes()
        assert (target / "usr/share/common-licenses/LGPL-2.1").is_file()
        assert not (target / "var/lib/dpkg/status.d/bash").exists()
    if os.geteuid() == 0:
        interpreter = "/" + str(next(target.rglob("bin/python3")).relative_to(target))
        code = "import sys, ssl, json, sqlite3, asyncio, typing; print(json.__file__)"
        said = subprocess.run(
            ["chroot", str(target), interpreter, "-I", "-c", code], capture_output=True, text=True, check=True
        ).stdout
        assert said.endswith("/json/__init__.pyc\n")
