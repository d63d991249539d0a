"""Files of a folder as a list and as a tar, sorted by path, for a client that reads them by `pods/exec`."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mptraining_api.problems import InvalidData


def list_files(folder: Path) -> Iterator[str]:
    """Yield one line of JSON for each file below `folder`, sorted by path. Raise InvalidData if there is no folder.

    `path` is relative, `size` in bytes.
    """
    for path, size in _files(folder):
        yield json.dumps({"path": path.relative_to(folder).as_posix(), "size": size})


def write_tar(folder: Path, stream: BinaryIO) -> None:
    """Write the files as a tar. Raise InvalidData if there is no folder, or if a file becomes shorter meanwhile.

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
                try:
                    tar.addfile(info, file)
                except OSError as error:
                    raise InvalidData(str(path), f"not sent: {error}", next_step="Fetch again.") from None
    stream.flush()


def _files(folder: Path) -> list[tuple[Path, int]]:
    if not folder.is_dir():
        raise InvalidData(str(folder), "no such folder", next_step="Is it the run folder, and has the job begun?")
    sizes = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                sizes.append((path, path.stat().st_size))
        except FileNotFoundError:  # Deleted meanwhile, such as an old checkpoint.
            continue
    return sorted(sizes, key=lambda entry: entry[0].relative_to(folder).as_posix())
