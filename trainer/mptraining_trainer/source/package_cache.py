"""Installed requirements kept on a mounted volume, by what they were made of: the next pod copies and asks no index.

    <folder>/<sha256>     of the requirement files, the image's own versions and the Python version

An entry appears by renaming, whole or not at all, and is never changed. Who may write to the volume runs code in the
jobs that use it; that is why there is no such cache in the run folder's bucket.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

# The folder, a setting for people: podTemplate.env, with a volume mounted there.
FOLDER = "MPTRAINING_PACKAGES_CACHE"

_FILE_OPTIONS = ("-r", "--requirement", "-c", "--constraint")


def place(folder: Path, requirements: Path, constraints: str) -> Path | None:
    """Where these requirements are, or would be, kept; None for those whose text does not say what they are.

    Such are paths in the source, since the files there may change under the same name.
    """
    digest = hashlib.sha256()
    for text in (sys.version, platform.machine(), constraints):
        digest.update(f"{text}\0".encode())
    try:
        for line in _lines(requirements, seen=set()):
            if _is_local(line):
                return None
            digest.update(f"{line}\n".encode())
    except (OSError, UnicodeDecodeError):
        # pip says it better.
        return None
    return folder / digest.hexdigest()


def keep(packages: Path, kept: Path) -> None:
    """Copies installed packages there. What goes wrong is said on stderr alone: the job has what it needs."""
    unfinished = kept.with_name(f".{kept.name}.{socket.gethostname()}-{os.getpid()}.part")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(packages, unfinished)
        unfinished.rename(kept)
    except OSError as error:
        # Another worker that was quicker is no mishap.
        if not kept.is_dir():
            sys.stderr.write(f"{FOLDER}: the packages could not be kept: {error}\n")
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _lines(file: Path, seen: set[Path]) -> Iterator[str]:
    """The lines that pip would read, those of files that are named in the file too."""
    seen.add(file.resolve())
    for raw in file.read_text(encoding="utf-8").splitlines():
        line = raw.partition(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        yield line
        option, _, name = line.replace("=", " ", 1).partition(" ")
        if option in _FILE_OPTIONS and "://" not in name:
            inner = file.parent / name.strip()
            if inner.resolve() not in seen:
                yield from _lines(inner, seen)


def _is_local(line: str) -> bool:
    option, _, rest = line.replace("=", " ", 1).partition(" ")
    if option in _FILE_OPTIONS:
        return False
    if option in ("-e", "--editable"):
        return "://" not in rest or "file:" in rest
    if option in ("-f", "--find-links"):
        return "://" not in rest or rest.strip().startswith("file:")
    if "://" in line:
        return "file:" in line
    return "/" in line or line.startswith(".")
