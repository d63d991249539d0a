"""The engine that builds the images installs what is missing, and nothing that a machine has from elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kind import engine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `apt-get` that records its arguments, on a machine with a runc, Podman, and netavark in its folder."""
    programs, libraries = tmp_path / "bin", tmp_path / "lib"
    for program in (programs / "runc", programs / "podman", libraries / "netavark"):
        _executable(program, "")
    _executable(programs / "apt-get", f'echo "$@" >> {tmp_path}/apt')
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(engine, "_FOLDERS", (str(libraries),))
    monkeypatch.setattr(engine, "_MODULES", tmp_path)
    monkeypatch.setattr(engine, "STATE", tmp_path / "state")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def _executable(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def test_only_packages_whose_programs_are_missing_are_installed(machine: Path) -> None:
    engine.podman()
    update, install = (machine / "apt").read_text().splitlines()
    assert update == "update -qq"
    packages = [word for word in install.split()[1:] if not word.startswith("-")]
    assert packages == [each for each in engine.PACKAGES if each not in ("runc", "podman", "netavark")]
    assert "aardvark-dns" in packages


def test_no_installed_package_is_removed_for_one_that_is_missing(machine: Path) -> None:
    """`-y` agrees to removals as well: containerd.io, and Docker with it, conflicts with the package runc."""
    (machine / "bin" / "runc").unlink()
    engine.podman()
    install = (machine / "apt").read_text().splitlines()[1].split()
    assert {"runc", "--no-remove"} <= set(install)


def test_apt_is_not_called_where_nothing_is_missing(machine: Path) -> None:
    for program in engine.PACKAGES.values():
        _executable(machine / "lib" / program, "")
    engine.podman()
    assert not (machine / "apt").exists()


def test_a_machine_without_apt_is_told_what_is_missing(machine: Path) -> None:
    (machine / "bin" / "apt-get").unlink()
    with pytest.raises(engine.Failed, match="no Debian whose packages could replace it: buildah, aardvark-dns"):
        engine.podman()
