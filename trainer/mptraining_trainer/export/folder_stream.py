"""Files of a folder as a list and as a tar, for a client that reads them by `pods/exec`.

The tar has the files in the order of their paths, and after each file a member with its SHA-256.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mptraining_api.problems import InvalidData

# Content of the member after a file that became shorter while it was read.
CHANGED = b"changed"
_DIGEST_NAME = "sha256"


def list_files(folder: Path) -> Iterator[str]:
    """Yield one line of JSON for each file below `folder`, sorted by path. Raise InvalidData if there is no folder.

    `path` is relative, `size` in bytes, and `version` changes when the file is written.
    """
    for path, found in _files(folder):
        version = str(found.st_mtime_ns)
        yield json.dumps({"path": path.relative_to(folder).as_posix(), "size": found.st_size, "version": version})


def write_tar(folder: Path, stream: BinaryIO) -> None:
    """Write the files as a tar. Raise InvalidData if there is no folder.

    A file that is deleted meanwhile is skipped; of one that grows, the bytes that it had at first are sent.
    """
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path, _ in _files(folder):
            try:
                file = path.open("rb")
            except FileNotFoundError:
                continue
            with file:
                info = tarfile.TarInfo(path.relative_to(folder).as_posix())
                info.size = os.fstat(file.fileno()).st_size
                source = _Measured(file)
                tar.addfile(info, source)
            digest = source.digest()
            after = tarfile.TarInfo(_DIGEST_NAME)
            after.size = len(digest)
            tar.addfile(after, io.BytesIO(digest))
    stream.flush()


def _files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    if not folder.is_dir():
        raise InvalidData(str(folder), "no such folder", next_step="Is it the run folder, and has the job begun?")
    found = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                found.append((path, path.stat()))
        except FileNotFoundError:  # Deleted meanwhile, such as an old checkpoint.
            continue
    return sorted(found, key=lambda each: each[0].relative_to(folder).as_posix())


class _Measured(io.RawIOBase):
    """A file with the SHA-256 of what was read; zeros replace what it lost, because a tar promises its size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = hashlib.sha256()
        self._short = False

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes."""
        data = self._file.read(size)
        self._sum.update(data)
        if len(data) < size:
            self._short = True
            data += bytes(size - len(data))
        return data

    def digest(self) -> bytes:
        """Return the SHA-256 in hexadecimal digits, or CHANGED."""
        return CHANGED if self._short else self._sum.hexdigest().encode()
