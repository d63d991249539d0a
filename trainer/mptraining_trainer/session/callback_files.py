"""Files of callbacks: written to a local scratch folder, then published into the run folder on any storage.

TensorFlow's own writers support neither the GCS emulator nor every kind of credentials, and several workers must not
write one file. So each worker's callbacks write into a scratch folder. The chief copies the changed files, so that the
callbacks may write again at once, and publishes the copies through the outbox: TensorBoard's event files to
`tensorboard/`, all others to `callbacks/`, and files with an absolute path or a gs:// URI to that location.
"""

from __future__ import annotations

import csv
import io
import posixpath
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptraining_api import run_folder
from mptraining_api.problems import InvalidProgram, Problem, StorageUnavailable, Superseded
from mptraining_storage import storage
from mptraining_storage.outbox import Outbox
from mptraining_trainer.model import supported_callbacks

_ATTRIBUTES = {"CSVLogger": "filename", "ModelCheckpoint": "filepath", "TensorBoard": "log_dir"}
_NAME = "callback files"
_COPIES = "copies"
# Modification time (ns) and size (bytes) of a file.
_State = tuple[int, int]


@dataclass(frozen=True)
class Destination:
    """Destination of a callback's files: everything below `scratch` is published below the URI `published`."""

    scratch: Path
    published: str


def split_path(path: str) -> tuple[str | None, str]:
    """Return the folder of an absolute path or gs:// URI (None for a relative path), and the path below it.

    Elements with a placeholder, such as `{epoch}`, belong to the path below. Raise ValueError for a relative path that
    leads out of its folder.
    """
    if "://" not in path and not path.startswith("/"):
        below = posixpath.normpath(path)
        if below == ".." or below.startswith("../"):
            raise ValueError(f"{path!r} leads out of the run folder")
        return None, below
    scheme, _, rest = path.rpartition("://")
    elements = rest.rstrip("/").split("/")
    fixed = next((number for number, element in enumerate(elements) if "{" in element), len(elements) - 1)
    # The bucket or the root cannot be the file itself.
    fixed = max(1, min(fixed, len(elements) - 1))
    return (f"{scheme}://" if scheme else "") + "/".join(elements[:fixed]), "/".join(elements[fixed:])


def rows_of_first_epochs(content: str, separator: str, epochs: int) -> str:
    """Return the header of a CSVLogger's file and its rows of the first `epochs` epochs."""
    rows = list(csv.reader(io.StringIO(content, newline=""), delimiter=separator))
    kept = rows[:1] + [row for row in rows[1:] if row and row[0].isdigit() and int(row[0]) < epochs]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator).writerows(kept)
    return text.getvalue()


class CallbackFiles:
    """Redirects the callbacks' paths into `scratch`, and publishes from there through the outbox.

    `notice` reports files that could not be published. `check_fence` must be set to a function that raises Superseded
    or ResumeRefused if a newer attempt or job has claimed the run folder.
    """

    def __init__(self, folder: str, scratch: Path, *, chief: bool, notice: Callable[..., None], outbox: Outbox) -> None:
        self._folder = folder
        self._scratch = scratch
        self._chief = chief
        self.check_fence: Callable[[], None] = lambda: None
        self._notice = notice
        self._destinations: list[Destination] = []
        self._outbox = outbox
        # The state of each file when it was last copied; the copies that are not published yet, by URI.
        self._copied: dict[Path, _State] = {}
        self._copies: dict[str, tuple[Path, _State]] = {}
        self._lock = threading.Lock()

    def redirect(self, callbacks: Sequence[Any]) -> None:
        """Redirect each callback that writes files to the scratch folder. Raise InvalidProgram for a path outside."""
        boards = 0
        for number, callback in enumerate(callbacks):
            kind = supported_callbacks.kind(callback)
            if kind not in _ATTRIBUTES:
                continue
            given = str(getattr(callback, _ATTRIBUTES[kind]))
            try:
                folder, below = split_path(given)
            except ValueError as error:
                raise InvalidProgram(
                    f"{supported_callbacks.WHERE}[{number}]",
                    f"{kind}: {error}",
                    next_step="Give a path below it, a whole path or a gs:// URI.",
                ) from None
            if folder is None and kind == "TensorBoard":
                # The given name is ignored, since it often has a date: the folder must be the same after a restart.
                boards += 1
                below = "" if boards == 1 else str(boards)
                folder = storage.join(self._folder, run_folder.TENSORBOARD)
            elif folder is None:
                folder = storage.join(self._folder, run_folder.CALLBACKS)
            scratch = self._scratch / str(number)
            local = scratch / below
            (local if kind == "TensorBoard" else local.parent).mkdir(parents=True, exist_ok=True)
            setattr(callback, _ATTRIBUTES[kind], str(local))
            self._destinations.append(Destination(scratch, folder))

    def restore_csv_log(self, callback: Any, epochs: int | None) -> None:
        """Fetch the published file of a CSVLogger, so that the logger appends after the first `epochs` epochs.

        None means a new training, in which only a logger with `append` continues the published file.
        """
        if supported_callbacks.kind(callback) != "CSVLogger" or (epochs is None and not callback.append):
            return
        local = Path(callback.filename)
        destination = next(
            destination for destination in self._destinations if local.is_relative_to(destination.scratch)
        )
        uri = storage.join(destination.published, local.relative_to(destination.scratch).as_posix())
        if not storage.exists(uri):
            return
        content = storage.read(uri).decode("utf-8")
        if epochs is not None:
            content = rows_of_first_epochs(content, callback.sep, epochs)
        with local.open("w", encoding="utf-8", newline="") as file:
            file.write(content)
        callback.append = True

    def publish(self) -> None:
        """Copy the changed files and publish the copies in the background. Raise Superseded of an earlier publication.

        A copy that is not published yet is replaced by a newer one of the same file.
        """
        if not self._chief or not self._destinations:
            return
        for destination in self._destinations:
            for path, state in _files(destination.scratch):
                if self._copied.get(path) == state:
                    continue
                below = path.relative_to(self._scratch)
                copy, unfinished = self._scratch / _COPIES / below, self._scratch / _COPIES / f"{below}.part"
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, unfinished)
                uri = storage.join(destination.published, path.relative_to(destination.scratch).as_posix())
                with self._lock:
                    self._copies[uri] = unfinished.replace(copy), state
                self._copied[path] = state
        if self._copies:
            self._outbox.put(_NAME, self._publish_copies)

    def wait(self) -> None:
        """Wait until the publication ends. Raise Superseded; other errors were reported."""
        with suppress(StorageUnavailable):
            self._outbox.wait(_NAME)

    def _publish_copies(self) -> None:
        self.check_fence()
        with self._lock:
            copies = dict(self._copies)
        for uri, (copy, state) in copies.items():
            try:
                storage.upload(copy, uri)
            except Superseded:
                raise
            except (Problem, OSError) as error:
                # A failed upload of a callback's file must not end the training.
                self._notice("CallbackFileNotPublished", f"{uri}: {error}", level="Warning")
                if isinstance(error, StorageUnavailable):
                    raise
                continue
            with self._lock:
                if self._copies[uri] == (copy, state):
                    del self._copies[uri]
                    copy.unlink()


def _files(folder: Path) -> Iterator[tuple[Path, _State]]:
    """Yield every file below the folder, with its state."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            yield path, (stat.st_mtime_ns, stat.st_size)
