"""Files of a run folder, on disk or in a bucket, with their sizes: what changes is found without reading it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import ValidationError

from mptraining_api import run_folder
from mptraining_api.model import Model
from mptraining_api.problems import InvalidData
from mptraining_storage import storage

M = TypeVar("M", bound=Model)
# The files and the parts of a run folder that are read.
DOCUMENTS = (run_folder.JOB, run_folder.RESULT)
PARTS = (run_folder.EVENTS, run_folder.QUARANTINE, run_folder.LOGS)


@dataclass(frozen=True, slots=True)
class File:
    """One file: `changed` is another text whenever its content is."""

    size: int
    changed: str


class Files(Protocol):
    """The files of one run folder. Names are paths below the folder, with slashes."""

    folder: str

    def list(self) -> Mapping[str, File]:
        """Return job.json, result.json, and the files in events/, logs/ and quarantine/."""

    def read(self, name: str, start: int, length: int) -> bytes:
        """Return at most `length` bytes from byte `start`. Raises Problem."""


class LocalFiles:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def list(self) -> dict[str, File]:
        files: dict[str, File | None] = {}
        for entry in _entries(self.folder):
            if entry.name in DOCUMENTS:
                files[entry.name] = _regular_file(entry)
            # No link leads out of the run folder, which may be another user's.
            elif entry.name in PARTS and entry.is_dir(follow_symlinks=False):
                files |= {f"{entry.name}/{inner.name}": _regular_file(inner) for inner in _entries(entry.path)}
        return {name: file for name, file in files.items() if file is not None}

    def touched(self) -> tuple[int, ...]:
        """Return times that change when a file of a run that has ended is added or replaced: two calls, no listing."""
        times = []
        for part in ("", run_folder.EVENTS):
            try:
                times.append(os.stat(f"{self.folder}/{part}").st_mtime_ns)  # noqa: PTH116 - a thousand runs a second
            except OSError:
                times.append(0)
        return tuple(times)

    def read(self, name: str, start: int, length: int) -> bytes:
        try:
            file = os.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return os.pread(file, length, start)
            finally:
                os.close(file)
        except OSError as error:
            raise InvalidData(f"{self.folder}/{name}", error.strerror or "cannot be read") from None


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _regular_file(entry: os.DirEntry[str]) -> File | None:
    """Return the file of a folder's entry; None for another kind, a link, and a file that was deleted since."""
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        stat = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return File(stat.st_size, f"{stat.st_mtime_ns}-{stat.st_size}")


class BucketFiles:
    """Files in a bucket: of a listing that serves many run folders, or else documents and events of a new one."""

    def __init__(self, folder: str, listed: Mapping[str, File] | None = None) -> None:
        self.folder = folder
        self._listed = listed

    def list(self) -> Mapping[str, File]:
        if self._listed is not None:
            return self._listed
        documents = [storage.find(storage.join(self.folder, name)) for name in DOCUMENTS]
        events = storage.list_objects(storage.join(self.folder, run_folder.EVENTS))
        prefix = f"{self.folder.rstrip('/')}/"
        return {
            stored.uri.removeprefix(prefix): File(stored.size, stored.version)
            for stored in (*documents, *events)
            if stored
        }

    def read(self, name: str, start: int, length: int) -> bytes:
        return storage.read_range(storage.join(self.folder, name), start, length)


class MemoryFiles:
    """Files that are in no storage, such as events from the log of a pod. `folder` is only a name."""

    def __init__(self, folder: str, content: Mapping[str, bytes]) -> None:
        self.folder = folder
        self._content = content

    def list(self) -> dict[str, File]:
        return {name: File(len(content), "") for name, content in self._content.items()}

    def read(self, name: str, start: int, length: int) -> bytes:
        return self._content[name][start : start + length]


def folder_files(folder: str) -> Files:
    """Return the files of a run folder by its path or URI. Raises InvalidData for an unknown kind of storage."""
    return BucketFiles(folder) if storage.is_remote(folder) else LocalFiles(str(storage.local_path(folder)))


def stored_document(folder: str, name: str, kind: type[M]) -> M | None:
    """Return a document of a run folder, such as `stored_document(folder, run_folder.JOB, ResolvedJob)`.

    None if it is missing, or not readable: damaged, or of another version. Raises StorageUnavailable and InvalidData if
    a bucket cannot be read.
    """
    uri = storage.join(folder, name)
    try:
        return kind.read(storage.read(uri)) if storage.exists(uri) else None
    except ValidationError:
        return None
