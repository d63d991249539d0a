"""Wheel and sdist: built reproducibly, and their metadata checked."""

from __future__ import annotations

import re
import sys
import tarfile
import tempfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

from kind.engine import Failed
from release.documents.checksums import sha256
from release.plan import Names
from release.programs import run

_REQUIRED = ("Summary", "License-Expression", "Requires-Python", "Description-Content-Type", "Keywords")
_PYTHON = re.compile(r"Programming Language :: Python :: (3\.\d+)$")


def build(root: Path, folder: Path, names: Names, *, version: str, epoch: int) -> None:
    """Write wheel and sdist of a tree. `epoch`: the commit's time, in seconds since 1970, of every file in them.

    Raises Failed if a second wheel, built from the sdist alone, has other bytes, or for metadata with mistakes.
    """
    environment = {"SOURCE_DATE_EPOCH": str(epoch)}
    _hatch(root, folder, "sdist", environment)
    _hatch(root, folder, "wheel", environment)
    wheel, sdist = folder / names.wheel, folder / names.sdist
    missing = [each.name for each in (wheel, sdist) if not each.is_file()]
    if missing:
        raise Failed(f"hatchling did not write {', '.join(missing)}, but {[each.name for each in folder.iterdir()]}")
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (tree,) = Path(unpacked).iterdir()
        _hatch(tree, tree / "dist", "wheel", environment)
        if sha256(tree / "dist" / names.wheel) != sha256(wheel):
            raise Failed(f"{names.wheel}: built from the sdist it has other bytes than built from the tree")
    wrong = metadata_mistakes(metadata(wheel), version)
    if wrong:
        raise Failed(f"{names.wheel}: " + "; ".join(wrong))


def metadata(wheel: Path) -> Message:
    """Return the core metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode("utf-8"))


def metadata_mistakes(found: Message, version: str) -> list[str]:
    """Return what an index or a reader would miss: fields, and classifiers that disagree with Requires-Python."""
    wrong = [f"{field} is missing" for field in _REQUIRED if not found.get(field)]
    if found.get("Version") != version:
        wrong.append(f"Version is {found.get('Version')}, not {version}")
    allowed = re.findall(r"(>=|<)3\.(\d+)", found.get("Requires-Python", ""))
    bounds = {operator: int(minor) for operator, minor in allowed}
    if "<" in bounds and ">=" in bounds:
        expected = [f"3.{minor}" for minor in range(bounds[">="], bounds["<"])]
        told = [match[1] for each in found.get_all("Classifier", []) if (match := _PYTHON.search(each))]
        if told != expected:
            wrong.append(f"classifiers name Python {', '.join(told)}, Requires-Python allows {', '.join(expected)}")
    return wrong


def extras(found: Message) -> list[str]:
    """Return the extras of a distribution, without the one of its developers."""
    return [str(each) for each in found.get_all("Provides-Extra", []) if each != "dev"]


def _hatch(tree: Path, folder: Path, target: str, environment: dict[str, str]) -> None:
    command = (sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder)
    run(*command, folder=tree, environment=environment)
