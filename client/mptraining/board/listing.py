"""Files of run folders, on disk or in a bucket, with their sizes: what changes is found without reading it."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mptraining.sweeps.folder import SWEEP
from mptraining_api import run_folder
from mptraining_api.problems import InvalidData
from mptraining_storage import storage

# A tree is searched for run folders no deeper than this, and no further than so many folders.
DEPTH, FOLDERS = 8, 20_000
# The files and the parts of a run folder that the board reads.
DOCUMENTS = (run_folder.JOB, run_folder.RESULT)
PARTS = (run_folder.EVENTS, run_folder.QUARANTINE, run_folder.LOGS)


@dataclass(frozen=True, slots=True)
class File:
    """One file: `changed` is another text whenever its content is."""

    size: int
    changed: str


def regular_file(entry: os.DirEntry[str]) -> File | None:
    """Return the file of a folder's entry; None for another kind, a link, and a file that was deleted since."""
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        stat = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return File(stat.st_size, f"{stat.st_mtime_ns}-{stat.st_size}")


class Files(Protocol):
    """The files of one run folder. Names are paths below the folder, with slashes."""

    folder: str

    def list(self) -> dict[str, File]:
        """Return job.json, result.json, and the files in events/, logs/ and quarantine/."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return at most `length` bytes from byte `start`. Raises Problem."""


class LocalFiles:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def list(self) -> dict[str, File]:
        found: dict[str, File] = {}
        for part in ("", *PARTS):
            where = Path(self.folder, part)
            # No link leads out of the run folder, which may be another user's.
            if part and where.is_symlink():
                continue
            try:
                entries = os.scandir(where)
            except OSError:
                continue
            with entries:
                for entry in entries:
                    name = f"{part}/{entry.name}" if part else entry.name
                    if (part or name in DOCUMENTS) and (file := regular_file(entry)):
                        found[name] = file
        return found

    def touched(self) -> tuple[int, ...]:
        """Return times that change when a file of a run that has ended is added or replaced: two calls, no listing."""
        found = []
        for part in ("", run_folder.EVENTS):
            try:
                found.append(os.stat(f"{self.folder}/{part}").st_mtime_ns)  # noqa: PTH116 - a thousand runs a second
            except OSError:
                found.append(0)
        return tuple(found)

    def read(self, name: str, start: int, length: int) -> bytes:
        try:
            file = os.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return os.pread(file, length, start)
            finally:
                os.close(file)
        except OSError as error:
            raise InvalidData(f"{self.folder}/{name}", error.strerror or "cannot be read") from None


class BucketFiles:
    """One listing of the bucket serves the files of all run folders below it."""

    def __init__(self, folder: str, found: dict[str, File]) -> None:
        self.folder = folder
        self.found = found

    def list(self) -> dict[str, File]:
        return self.found

    def read(self, name: str, start: int, length: int) -> bytes:
        return storage.read_range(storage.join(self.folder, name), start, length)


class MemoryFiles:
    """Files that are in no storage, such as events from the log of a pod. `folder` is a name alone."""

    def __init__(self, folder: str, content: Mapping[str, bytes]) -> None:
        self.folder = folder
        self._content = content

    def list(self) -> dict[str, File]:
        return {name: File(len(content), "") for name, content in self._content.items()}

    def read(self, name: str, start: int, length: int) -> bytes:
        return self._content[name][start : start + length]


def local_run_folders(top: str, known: Container[str] = (), sweeps: list[str] | None = None) -> Iterator[str]:
    """Yield the run folders at or below `top`; symbolic links to folders are not followed, hidden ones not entered.

    Of the `known` run folders it is enough that they exist. The folders of sweeps are added to `sweeps`.

    Raises InvalidData if there are more than `FOLDERS` folders.
    """
    waiting = [(top, 0)]
    seen = 0
    while waiting:
        folder, depth = waiting.pop()
        if folder in known and folder != top:
            yield folder
            continue
        seen += 1
        if seen > FOLDERS:
            step = "Name a folder that holds runs, such as runs/"
            raise InvalidData(top, f"more than {FOLDERS:,} folders: the search for runs ended", next_step=step)
        try:
            with os.scandir(folder) as entries:
                below = list(entries)
        except OSError:
            continue
        names = {each.name for each in below}
        if sweeps is not None and SWEEP in names:
            sweeps.append(folder)
        if names & {run_folder.JOB, run_folder.RESULT, run_folder.EVENTS} and is_run(folder, names):
            yield folder
            continue
        if depth < DEPTH:
            waiting += [
                (each.path, depth + 1)
                for each in below
                if not each.name.startswith(".") and each.is_dir(follow_symlinks=False)
            ]


def is_run(folder: str, names: set[str]) -> bool:
    """Return whether the folder with these names is a run's; another program's `events` alone makes none."""
    if names & {run_folder.JOB, run_folder.RESULT}:
        return True
    try:
        return any(each.endswith(".jsonl") for each in os.listdir(f"{folder}/{run_folder.EVENTS}"))  # noqa: PTH208
    except OSError:
        return False


def bucket_run_folders(top: str) -> dict[str, dict[str, File]]:
    """Return the run folders at or below a gs:// URI with the files of each, by one listing. Raises Problem."""
    objects = {each.uri: File(each.size, each.version) for each in storage.list_objects(top)}
    folders: dict[str, dict[str, File]] = {}
    for uri, file in objects.items():
        folder, part, name = _split(uri)
        if folder:
            folders.setdefault(folder, {})[f"{part}/{name}" if part else name] = file
    # Other folders have a logs/ or quarantine/, too.
    return {folder: files for folder, files in folders.items() if any(_marks_run(name) for name in files)}


def _marks_run(name: str) -> bool:
    return name in (run_folder.JOB, run_folder.RESULT) or name.startswith(run_folder.EVENTS + "/")


def _split(uri: str) -> tuple[str, str, str]:
    """Return the run folder that an object belongs to by its name, the part and the name; empty for other objects."""
    folder, _, name = uri.rpartition("/")
    if name in (run_folder.JOB, run_folder.RESULT):
        return folder, "", name
    above, _, part = folder.rpartition("/")
    if part in PARTS and (part != run_folder.EVENTS or name.endswith(".jsonl")):
        return above, part, name
    return "", "", ""
