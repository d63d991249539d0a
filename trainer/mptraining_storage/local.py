"""Local files, the backend of `storage` for paths; every OSError becomes a Problem."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mptraining_api.problems import InvalidData, StorageFull, StorageUnavailable
from mptraining_storage import preconditions
from mptraining_storage.preconditions import StoredObject

UNFINISHED = ".part"


def read(path: Path) -> bytes:
    """Read the whole content."""
    with translate_errors(path):
        return path.read_bytes()


@contextmanager
def open_file(path: Path) -> Iterator[tuple[BinaryIO, StoredObject]]:
    """Open a file for reading; yields it with its size and version."""
    with translate_errors(path), path.open("rb") as file:
        yield file, _stored(path, os.fstat(file.fileno()))


def read_range(path: Path, start: int, length: int) -> tuple[bytes, str]:
    """Return at most `length` bytes from byte `start`, and the version of the file."""
    # A data set may have more shards than a process may open files, so that none stays open.
    with open_file(path) as (file, stored):
        file.seek(start)
        return file.read(length), stored.version


def read_ahead(path: Path, start: int, length: int) -> None:
    """Let the kernel read these bytes in the background, where it can; ignore errors."""
    # macOS has no posix_fadvise.
    advise = getattr(os, "posix_fadvise", None)
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if advise is not None:
                advise(file, start, length, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(file)


def write(path: Path, data: bytes, replacing: str | None = preconditions.ANY) -> StoredObject:
    """Write a file in one step; `replacing` as in `storage.write`."""
    with atomic_write(path, replacing) as unfinished, unfinished.open("wb") as file:
        file.write(data)
        _flush(file)
    return _present(path)


def append(path: Path, content: bytes | bytearray, stored: int) -> None:
    """Append all but the first `stored` bytes of `content` to a file that has these."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        # A failed write may have stored a part of the bytes, and a file may have been deleted.
        stored = min(stored, file.tell())
        file.truncate(stored)
        file.write(content[stored:])


def copy(source: Path, destination: Path, replacing: str | None = preconditions.ANY) -> StoredObject:
    """Copy a file in one step, without loading it into memory."""
    with (
        translate_errors(source),
        source.open("rb") as reading,
        atomic_write(destination, replacing) as unfinished,
        unfinished.open("wb") as writing,
    ):
        shutil.copyfileobj(reading, writing, 8 << 20)
        _flush(writing)
    return _present(destination)


def move(source: Path, destination: Path, replacing: str | None = preconditions.ANY) -> StoredObject:
    """Rename a file on the same disk after an fsync of its content; `replacing` as in `storage.write`."""
    with translate_errors(destination), source.open("rb+") as file:
        _flush(file)
        destination.parent.mkdir(parents=True, exist_ok=True)
        _publish(source, destination, replacing)
        return _present(destination)


def head(path: Path) -> StoredObject | None:
    """Return the file's size and version; None if it does not exist or is a folder."""
    with translate_errors(path):
        return _stored(path, path.stat()) if path.is_file() else None


def walk(folder: Path) -> list[StoredObject]:
    """List every finished file below a folder, at any depth; empty if the folder does not exist."""
    with translate_errors(folder):
        return _finished(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


def list_folder(folder: Path) -> tuple[list[str], list[StoredObject]]:
    """List the names of the folders and the finished files directly in `folder`."""
    with translate_errors(folder):
        paths = {path: path.is_dir() for path in folder.iterdir()}
        folders = [path.name for path, is_folder in paths.items() if is_folder]
        return folders, _finished(path for path, is_folder in paths.items() if not is_folder)


def delete(path: Path) -> None:
    """Delete one file; ignore a missing one."""
    with translate_errors(path):
        path.unlink(missing_ok=True)


def delete_folder(folder: Path) -> None:
    """Delete a folder with everything below it; ignore a missing one."""
    with translate_errors(folder):
        if folder.exists():
            shutil.rmtree(folder)


def user_cache(*parts: str) -> Path:
    """Return a path in the user's cache folder of this project; the folder may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mptraining", *parts)


def make_folder(folder: Path) -> None:
    """Create the folder and its missing parents."""
    with translate_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def atomic_write(path: Path, replacing: str | None = preconditions.ANY) -> Iterator[Path]:
    """Yield a temporary path in the same folder, renamed to `path` at the end and deleted after a failure.

    Raises Conflict if `path` has another version than `replacing` (as in `storage.write`).
    """
    # Pods on a shared volume may have equal process IDs; their host names differ.
    writer = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    unfinished = path.with_name(f".{path.name}.{writer}{UNFINISHED}")
    with translate_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield unfinished
            _publish(unfinished, path, replacing)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Translate an OSError into a Problem about `path`."""
    where = str(path)
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidData(where, "no such file or folder") from error
    except PermissionError as error:
        step = f"Grant access to user ID {os.getuid()}, which this process runs as"
        raise InvalidData(where, "no permission to read or write here", next_step=step) from error
    except IsADirectoryError as error:
        raise InvalidData(where, "this is a folder", expected="a file") from error
    except FileExistsError as error:
        raise InvalidData(where, "a file with this name exists", expected="a folder") from error
    except OSError as error:
        if error.errno == errno.EROFS:
            step = "Mount a volume there (podTemplate.volumes and volumeMounts), or name a bucket."
            raise InvalidData(where, "this file system is read-only", next_step=step) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            step = "Enlarge the volume that is mounted there, or delete files of it."
            raise StorageFull(where, "the disk is full", next_step=step) from error
        raise StorageUnavailable(where, f"the file system failed: {error.strerror or error}") from error


def _publish(unfinished: Path, path: Path, replacing: str | None) -> None:
    if replacing is None:
        try:
            # Unlike a rename, a hard link fails if the destination exists.
            path.hardlink_to(unfinished)
        except FileExistsError as error:
            raise preconditions.conflict_error(str(path), replacing) from error
        except OSError:
            if path.exists():
                raise preconditions.conflict_error(str(path), replacing) from None
        else:
            unfinished.unlink()
            return
    elif replacing != preconditions.ANY:
        existing = head(path)
        if existing is None or existing.version != replacing:
            raise preconditions.conflict_error(str(path), replacing)
    unfinished.replace(path)


def _present(path: Path) -> StoredObject:
    with translate_errors(path):
        return _stored(path, path.stat())


def _finished(paths: Iterable[Path]) -> list[StoredObject]:
    finished = []
    for path in paths:
        # Another process may delete or rename a file between the listing and stat.
        with suppress(FileNotFoundError):
            if not path.name.endswith(UNFINISHED):
                finished.append(_stored(path, path.stat()))
    return finished


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _stored(path: Path, stat: os.stat_result) -> StoredObject:
    return StoredObject(str(path), stat.st_size, _version(stat))


def _version(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns}-{stat.st_size}"
