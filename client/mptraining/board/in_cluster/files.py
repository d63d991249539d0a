"""Files of run folders that users of a cluster write: bounded in size and number, and without a way out of the folder.

The files in a volume are of many users, who may put links anywhere in it at any time. So each part of a path is opened
below the one before it, and no link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from mptraining.board.listing import DOCUMENTS, PARTS, File, Files, regular_file
from mptraining.board.run_reader import parse_name
from mptraining_api import run_folder
from mptraining_api.problems import InvalidData
from mptraining_records.storage import gcs, storage

# Of one run folder: files in each part, and bytes of its events together, and of each other file that is read whole.
MOST_FILES = 2_000
MOST_EVENTS_BYTES = 32 << 20
MOST_DOCUMENT_BYTES = 4 << 20

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A named pipe must not block the board.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class MountedFiles:
    """A run folder at `path` below `mount`, a volume of the pod; `folder` is its name for people."""

    def __init__(self, folder: str, mount: str, path: Sequence[str]) -> None:
        self.folder = folder
        self._mount = mount
        self._path = tuple(path)

    def list(self) -> dict[str, File]:
        found: dict[str, File] = {}
        for part in ("", *PARTS):
            try:
                with self._open_folder(part) as descriptor, os.scandir(descriptor) as entries:
                    for entry in islice(entries, MOST_FILES):
                        if (part or entry.name in DOCUMENTS) and (file := regular_file(entry)):
                            found[f"{part}/{entry.name}" if part else entry.name] = file
            except OSError as error:
                # No such folder, or a link or a file in the place of one.
                if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
                    raise InvalidData(self.folder, error.strerror or "cannot be read") from None
        return found

    def read(self, name: str, start: int, length: int) -> bytes:
        part, _, file = name.rpartition("/")
        try:
            with self._open_folder(part) as folder:
                descriptor = os.open(file, _FILE_FLAGS, dir_fd=folder)
                try:
                    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                        raise InvalidData(f"{self.folder}/{name}", "not a file")
                    return os.pread(descriptor, length, start)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise InvalidData(f"{self.folder}/{name}", error.strerror or "cannot be read") from None

    @contextmanager
    def _open_folder(self, part: str) -> Iterator[int]:
        """Yield a descriptor of the run folder, or of a part of it. Raises OSError, also for a link on the way."""
        # The mount itself is the administrator's.
        descriptor = os.open(self._mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for each in (*self._path, *([part] if part else [])):
                below = os.open(each, _FOLDER_FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)


class RunBucketFiles:
    """A run folder in a bucket, by a listing of each of its parts; checkpoints and models are not listed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def list(self) -> dict[str, File]:
        below, objects = gcs.list_folder(self.folder, "", MOST_FILES)
        found = {name: File(each.size, each.version) for each in objects if (name := _name(each.key)) in DOCUMENTS}
        for part in PARTS:
            if any(_name(each) == part for each in below):
                _, objects = gcs.list_folder(storage.join(self.folder, part), "", MOST_FILES)
                found |= {f"{part}/{_name(each.key)}": File(each.size, each.version) for each in objects}
        return found

    def read(self, name: str, start: int, length: int) -> bytes:
        return storage.read_range(storage.join(self.folder, name), start, length)


def _order(name: str) -> tuple[int, int, str, int]:
    """Return what sorts files of events by attempt, then those of the chief first."""
    parsed = parse_name(name)
    return (parsed.attempt, parsed.worker, parsed.incarnation, parsed.part) if parsed else (0, 0, name, 0)


def _name(key: str) -> str:
    return key.rpartition("/")[2]


class BoundedFiles:
    """The files of a run folder but those that are too large for a server that many users share."""

    def __init__(self, files: Files) -> None:
        self.folder = files.folder
        self._files = files

    def list(self) -> dict[str, File]:
        found = self._files.list()
        left = MOST_EVENTS_BYTES
        kept: dict[str, File] = {}
        for name, file in sorted(found.items(), key=lambda each: _order(each[0])):
            if name.startswith(f"{run_folder.EVENTS}/"):
                # The first attempts stay, the chief first; a file is shown whole or not at all.
                if file.size > left:
                    continue
                left -= file.size
            elif not name.startswith(f"{run_folder.LOGS}/") and file.size > MOST_DOCUMENT_BYTES:
                continue
            kept[name] = file
        return kept

    def read(self, name: str, start: int, length: int) -> bytes:
        return self._files.read(name, start, length)
