"""Files of a mounted disk: the local half of `storage`. Every OSError becomes a Problem here."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mptraining_api.problems import InvalidData, StorageUnavailable
from mptraining_records.storage import preconditions

UNFINISHED = ".part"


class Found(NamedTuple):
    """One file: its path, its size in bytes, and a version that changes when it is written again."""

    path: Path
    size: int
    version: str


def read(path: Path) -> bytes:
    """The whole content."""
    with explained(path):
        return path.read_bytes()


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, Found]]:
    """A file for reading, and what it is."""
    with explained(path), path.open("rb") as file:
        yield file, _found(path, os.fstat(file.fileno()))


def write(path: Path, data: bytes, only: str | None = preconditions.ANY) -> Found:
    """Writes in one step; `only` is what may be replaced, as in `storage.write`."""
    with replacing(path, only) as unfinished, unfinished.open("wb") as file:
        file.write(data)
        _flush(file)
    return _present(path)


def copy(source: Path, destination: Path, only: str | None = preconditions.ANY) -> Found:
    """Copies a file, without holding it in memory, in one step."""
    with (
        explained(source),
        source.open("rb") as reading,
        replacing(destination, only) as unfinished,
        unfinished.open("wb") as writing,
    ):
        shutil.copyfileobj(reading, writing, 8 << 20)
        _flush(writing)
    return _present(destination)


def move(source: Path, destination: Path, only: str | None = preconditions.ANY) -> Found:
    """Renames a file within a disk, once its content is safely there; `only` is what may be replaced."""
    with explained(destination), source.open("rb+") as file:
        _flush(file)
        destination.parent.mkdir(parents=True, exist_ok=True)
        _publish(source, destination, only)
        return _present(destination)


def head(path: Path) -> Found | None:
    """The file's size and version; None when there is no such file, or it is a folder."""
    with explained(path):
        return _found(path, path.stat()) if path.is_file() else None


def walk(folder: Path) -> list[Found]:
    """Every finished file below a folder, at any depth; none when the folder does not exist."""
    with explained(folder):
        return _finished(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


def level(folder: Path) -> tuple[list[str], list[Found]]:
    """The names of the folders and the finished files directly in `folder`."""
    with explained(folder):
        paths = {path: path.is_dir() for path in folder.iterdir()}
        folders = [path.name for path, is_folder in paths.items() if is_folder]
        return folders, _finished(path for path, is_folder in paths.items() if not is_folder)


def delete(path: Path) -> None:
    """Deletes one file; nothing happens when it does not exist."""
    with explained(path):
        path.unlink(missing_ok=True)


def delete_folder(folder: Path) -> None:
    """Deletes a folder with everything below it; nothing happens when it does not exist."""
    with explained(folder):
        if folder.exists():
            shutil.rmtree(folder)


def make_folder(folder: Path) -> None:
    """Makes the folder and those above it where they do not exist."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def replacing(path: Path, only: str | None = preconditions.ANY) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it at the end, removed after a failure.

    Raises Conflict when something else is at `path` than `only` (as `replacing` of `storage.write`).
    """
    # Pods on a shared volume all have low process ids: the host name keeps them apart.
    writer = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    unfinished = path.with_name(f".{path.name}.{writer}{UNFINISHED}")
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield unfinished
            _publish(unfinished, path, only)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns an OSError into one line about `path`."""
    where = str(path)
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidData(where, "no such file or folder") from error
    except PermissionError as error:
        step = f"Open it to user {os.getuid()}, as whom this runs"
        raise InvalidData(where, "no permission to read or write here", next_step=step) from error
    except IsADirectoryError as error:
        raise InvalidData(where, "this is a folder", expected="a file") from error
    except FileExistsError as error:
        raise InvalidData(where, "a file of this name is in the way", expected="a folder") from error
    except OSError as error:
        if error.errno == errno.EROFS:
            step = "Mount a volume there (podTemplate.volumes and volumeMounts), or name a bucket."
            raise InvalidData(where, "this file system is read-only", next_step=step) from error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        said = "the disk is full" if full else f"the file system failed: {error.strerror or error}"
        raise StorageUnavailable(where, said) from error


def _publish(unfinished: Path, path: Path, only: str | None) -> None:
    if only is None:
        try:
            # Unlike a renaming, a link fails when the name is taken.
            path.hardlink_to(unfinished)
        except FileExistsError as error:
            raise preconditions.conflict(str(path), only) from error
        except OSError:
            if path.exists():
                raise preconditions.conflict(str(path), only) from None
        else:
            unfinished.unlink()
            return
    elif only != preconditions.ANY:
        there = head(path)
        if there is None or there.version != only:
            raise preconditions.conflict(str(path), only)
    unfinished.replace(path)


def _present(path: Path) -> Found:
    with explained(path):
        return _found(path, path.stat())


def _finished(paths: Iterable[Path]) -> list[Found]:
    found = []
    for path in paths:
        # Others may delete a file, or rename an unfinished one, between listing and asking.
        with suppress(FileNotFoundError):
            if not path.name.endswith(UNFINISHED):
                found.append(_found(path, path.stat()))
    return found


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _found(path: Path, stat: os.stat_result) -> Found:
    return Found(path, stat.st_size, f"{stat.st_mtime_ns}-{stat.st_size}")
