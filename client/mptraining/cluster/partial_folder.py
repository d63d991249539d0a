"""A folder that is fetched file by file, continued after an interruption, and renamed when it is complete.

.NAME.fetch/source          what is fetched; another source starts again
.NAME.fetch/arrived.jsonl   the files that are complete
.NAME.fetch/files/          renamed to NAME at the end
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Self

from mptraining_api.problems import InvalidData
from mptraining_records.storage.local import translate_errors


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


class PartialFolder:
    """Context manager for the folder `target`, filled from `source`, a text that identifies what is fetched.

    Raises InvalidData if `target` exists, unless `overwrite`, and StorageFull if the disk is full. Files that
    have arrived stay when the context ends early, for the next fetch from the same source.
    """

    def __init__(self, target: Path, source: str, *, overwrite: bool) -> None:
        self.target = target
        self._source = source
        self._overwrite = overwrite
        self._scratch = target.parent / f".{target.name}.fetch"
        self._files = self._scratch / "files"
        self._arrived: dict[str, RemoteFile] = {}
        self._adding = threading.Lock()

    def __enter__(self) -> Self:
        refuse_existing(self.target, overwrite=self._overwrite)
        with translate_errors(self._scratch):
            self._scratch.mkdir(parents=True, exist_ok=True)
            self._lock = (self._scratch / "lock").open("w")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._lock.close()
                found = "another process is fetching to this folder"
                raise InvalidData(str(self.target), found, next_step="Wait for it, or name another folder.") from None
            self._open_or_clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()
        if not self._arrived:
            # Without a complete file there is nothing to continue.
            shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def arrived_bytes(self) -> int:
        """The size of all files that have arrived, in this fetch or an earlier one."""
        return sum(each.size for each in self._arrived.values())

    def missing(self, files: Iterable[RemoteFile]) -> list[RemoteFile]:
        """Return those of `files` that have not arrived in this version."""
        return [each for each in files if self._arrived.get(each.path) != each]

    @contextmanager
    def add(self, file: RemoteFile) -> Iterator[BinaryIO]:
        """Open one file for writing; it has arrived when the context ends without an exception.

        Raises InvalidData for a path outside of the folder: neither a bucket nor a pod may write to other files.
        """
        path = Path(os.path.normpath(self._files / file.path))
        if Path(file.path).is_absolute() or not path.is_relative_to(self._files) or path == self._files:
            raise InvalidData(
                file.path, "is outside of the folder", next_step="Check what the job runs before you open its files."
            )
        unfinished = self._scratch / f"unfinished-{threading.get_ident()}"
        try:
            with translate_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                with unfinished.open("wb") as opened:
                    yield opened
                unfinished.replace(path)
                with self._adding, (self._scratch / "arrived.jsonl").open("a", encoding="utf-8") as log:
                    log.write(json.dumps(asdict(file)) + "\n")
                    self._arrived[file.path] = file
        finally:
            unfinished.unlink(missing_ok=True)

    def publish(self, files: Sequence[RemoteFile]) -> Path:
        """Rename the folder to the target, without files that are not in `files`; return the target."""
        names = {os.path.normpath(each.path) for each in files}
        with translate_errors(self.target):
            for path in [each for each in self._files.rglob("*") if each.is_file()]:
                if path.relative_to(self._files).as_posix() not in names:
                    path.unlink()
            old = self._scratch / "old"
            if os.path.lexists(self.target):
                self.target.replace(old)
            self._files.replace(self.target)
            self._arrived.clear()
        return self.target

    def _open_or_clear(self) -> None:
        source, log = self._scratch / "source", self._scratch / "arrived.jsonl"
        if source.exists() and source.read_text(encoding="utf-8") == self._source and self._files.is_dir():
            for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
                # The last line is cut if the machine failed.
                with suppress(ValueError, TypeError):
                    found = RemoteFile(**json.loads(line))
                    if (self._files / found.path).is_file():
                        self._arrived[found.path] = found
            return
        shutil.rmtree(self._files, ignore_errors=True)
        log.unlink(missing_ok=True)
        self._files.mkdir()
        source.write_text(self._source, encoding="utf-8")
