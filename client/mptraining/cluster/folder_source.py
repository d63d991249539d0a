"""Folders of `mptj fetch`: the fetched one, and its sources: a bucket, this machine, a pod that `pods/exec` reads."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, Self

import google_crc32c

from mptraining.cluster.api import ApiServer, exec_output
from mptraining.cluster.errors import ClusterProblem, Unreachable
from mptraining_api.launch import FILES_COMMAND, SEND_COMMAND
from mptraining_api.problems import InvalidData
from mptraining_api.status import TRAINER_CONTAINER
from mptraining_storage import storage
from mptraining_storage.local import translate_errors

_THREADS = 8
# Bytes; between two updates of the progress bar.
_CHUNK = 4 * 2**20

# Called with the number of bytes that have arrived.
OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of the source: `path` relative to its folder, `version` changes when it is written."""

    path: str
    size: int
    version: str


def refuse_existing(target: Path, *, overwrite: bool) -> None:
    """Raise InvalidData if `target` exists, unless it is to be replaced."""
    if os.path.lexists(target) and not overwrite:
        step = "Replace it with --overwrite, or name another folder with --to."
        raise InvalidData(str(target), "exists", next_step=step)


class FetchedFolder:
    """Context manager for the folder `target`, which gets its name when it is complete; else nothing is left.

    Raises InvalidData if `target` exists, unless `overwrite`, and StorageFull if the disk is full.
    """

    def __init__(self, target: Path, *, overwrite: bool) -> None:
        self.target = target
        self._overwrite = overwrite
        self.arrived: set[RemoteFile] = set()

    def __enter__(self) -> Self:
        refuse_existing(self.target, overwrite=self._overwrite)
        with translate_errors(self.target):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            # Beside the target, since a folder is renamed on one disk only.
            self._scratch = Path(tempfile.mkdtemp(prefix=f".{self.target.name}.", dir=self.target.parent))
            self._files = self._scratch / "files"
            self._files.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    @contextmanager
    def add(self, file: RemoteFile) -> Iterator[BinaryIO]:
        """Open one file for writing; it has arrived when the context ends without an exception.

        Raises InvalidData for a path outside of the folder: neither a bucket nor a pod may write to other files.
        """
        path = Path(os.path.normpath(self._files / file.path))
        if Path(file.path).is_absolute() or not path.is_relative_to(self._files) or path == self._files:
            step = "Check what the job runs before you open its files."
            raise InvalidData(file.path, "is outside of the folder", next_step=step)
        unfinished = self._scratch / f"unfinished-{threading.get_ident()}"
        with translate_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as opened:
                yield opened
            unfinished.replace(path)
        self.arrived.add(file)

    def publish(self) -> Path:
        """Rename the folder to the target, and return the target."""
        with translate_errors(self.target):
            if os.path.lexists(self.target):
                self.target.replace(self._scratch / "old")
            self._files.replace(self.target)
        return self.target


class FolderSource(Protocol):
    """A folder to fetch."""

    def files(self) -> list[RemoteFile]:
        """List the files, sorted by path. Raises Problem if there is no such folder."""

    def copy(self, files: Sequence[RemoteFile], into: FetchedFolder, on_bytes: OnBytes) -> None:
        """Copy these files, sorted by path; skip those that were deleted or replaced meanwhile. Raises Problem."""


class StoredFolder:
    """The folder `uri` in a bucket, or on a volume that is mounted on this machine."""

    def __init__(self, uri: str) -> None:
        self._uri = uri if storage.is_remote(uri) else str(storage.local_path(uri))

    def files(self) -> list[RemoteFile]:
        found = storage.list_objects(self._uri)
        return [RemoteFile(each.uri.removeprefix(self._uri).lstrip("/"), each.size, each.version) for each in found]

    def copy(self, files: Sequence[RemoteFile], into: FetchedFolder, on_bytes: OnBytes) -> None:
        with ThreadPoolExecutor(min(_THREADS, max(1, len(files))), thread_name_prefix="fetch") as pool:
            running = [pool.submit(self._copy_one, each, into, on_bytes) for each in files]
            try:
                for each in running:
                    each.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _copy_one(self, file: RemoteFile, into: FetchedFolder, on_bytes: OnBytes) -> None:
        uri = f"{self._uri.rstrip('/')}/{file.path}"
        before = storage.find(uri)
        if before is None or before.version != file.version:
            return
        with into.add(file) as opened:
            crc = 0
            for start in range(0, file.size, _CHUNK):
                data = storage.read_range(uri, start, _CHUNK, version=file.version)
                opened.write(data)
                crc = google_crc32c.extend(crc, data)
                on_bytes(len(data))
            if before.crc32c not in (None, crc):
                found = f"CRC32C {crc:08x} arrived, the bucket has {before.crc32c:08x}"
                raise InvalidData(uri, f"damaged on its way: {found}", next_step="Fetch it again.")


class PodFolder:
    """The folder in a pod of the job; relative to the folder that the pod keeps, if it keeps one."""

    def __init__(self, server: ApiServer, pod: str, folder: str) -> None:
        self._server = server
        self._pod = pod
        self._folder = folder

    def files(self) -> list[RemoteFile]:
        lines = b"".join(self._run((*FILES_COMMAND, self._folder))).decode("utf-8", errors="replace").splitlines()
        try:
            return [RemoteFile(str(f["path"]), int(f["size"]), str(f["version"])) for f in map(json.loads, lines)]
        except (ValueError, KeyError, TypeError):
            raise self._not_a_folder("its list of files cannot be read") from None

    def copy(self, files: Sequence[RemoteFile], into: FetchedFolder, on_bytes: OnBytes) -> None:
        wanted = {each.path: each for each in files}
        stream = _Stream(self._run((*SEND_COMMAND, self._folder)))
        try:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                while (member := tar.next()) is not None:
                    self._receive(tar, member, wanted, into, on_bytes)
        except tarfile.TarError as error:
            raise self._not_a_folder(str(error)) from None
        # The exit code arrives after the archive.
        stream.drain()

    def _receive(
        self,
        tar: tarfile.TarFile,
        member: tarfile.TarInfo,
        wanted: dict[str, RemoteFile],
        into: FetchedFolder,
        on_bytes: OnBytes,
    ) -> None:
        """Receive one file and the member with its SHA-256; skip a file that is newer than the list."""
        content = tar.extractfile(member) if member.isreg() else None
        if content is None:
            # The pod runs the user's program, which may have replaced the command: it must not create links or devices.
            raise self._not_a_folder(f"{member.name!r} is not a file")
        file, digest = wanted.get(member.name), hashlib.sha256()
        if file is None:
            tar.next()
            return
        try:
            with into.add(file) as opened:
                while data := content.read(_CHUNK):
                    opened.write(data)
                    digest.update(data)
                    on_bytes(len(data))
                after = tar.next()
                sent = tar.extractfile(after) if after is not None and after.isreg() else None
                expected = b"" if sent is None else sent.read(64)
                if expected == b"changed" or member.size < file.size:
                    raise _Changed
                if expected != digest.hexdigest().encode():
                    raise Unreachable(self._pod, f"{file.path} was damaged on its way")
        except _Changed:
            return

    def _run(self, command: Sequence[str]) -> Iterator[bytes]:
        return exec_output(self._server, self._pod, command, container=TRAINER_CONTAINER)

    def _not_a_folder(self, found: str) -> ClusterProblem:
        step = "Check what the job runs before you open any of its files."
        return ClusterProblem(self._pod, f"it did not send a folder: {found}", next_step=step)


class _Changed(Exception):
    """The file was shortened while it was sent."""


class _Stream(io.RawIOBase):
    """Pieces of bytes as a stream that can be read once."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes; b"" at the end."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = piece
        if size < 0:
            size = len(self._rest)
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def drain(self) -> None:
        """Read to the end."""
        for _ in self._pieces:
            pass
