"""The files that callbacks write: locally, then published into the run folder, whatever storage that is.

TensorFlow's own writers know neither the emulator nor every kind of credentials, and several workers must not write
one file. So each worker's callbacks write into a scratch folder of its own, and the chief publishes what changed:
TensorBoard's event files to `tensorboard/`, all others to `callbacks/`, and what was given as a whole path or gs://
to that place.
"""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mptraining_api import run_folder
from mptraining_api.problems import InvalidProgram, Problem, Superseded
from mptraining_records.storage import storage
from mptraining_trainer.model.supported_callbacks import WHERE
from mptraining_trainer.model.supported_callbacks import kind as callback_kind

_ATTRIBUTES = {"CSVLogger": "filename", "ModelCheckpoint": "filepath", "TensorBoard": "log_dir"}


@dataclass(frozen=True)
class Place:
    """Where a callback's files are published: everything below `scratch` goes below the URI `published`."""

    scratch: Path
    published: str


def split(path: str) -> tuple[str | None, str]:
    """The folder of a whole path or a gs:// URI (None for a relative path), and what stands below it.

    Elements with a placeholder, such as `{epoch}`, stand below. Raises ValueError for a relative path that leads out
    of its folder.
    """
    if "://" not in path and not path.startswith("/"):
        below = posixpath.normpath(path)
        if below == ".." or below.startswith("../"):
            raise ValueError(f"{path!r} leads out of the run folder")
        return None, below
    scheme, _, rest = path.rpartition("://")
    elements = rest.rstrip("/").split("/")
    fixed = next((number for number, element in enumerate(elements) if "{" in element), len(elements) - 1)
    # A bucket, or the root, is no file.
    fixed = max(1, min(fixed, len(elements) - 1))
    return (f"{scheme}://" if scheme else "") + "/".join(elements[:fixed]), "/".join(elements[fixed:])


def kept_rows(content: str, separator: str, epochs: int) -> str:
    """The header and the rows of a CSVLogger's file that are of the first `epochs` epochs."""
    rows = list(csv.reader(io.StringIO(content, newline=""), delimiter=separator))
    kept = rows[:1] + [row for row in rows[1:] if row and row[0].isdigit() and int(row[0]) < epochs]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator).writerows(kept)
    return text.getvalue()


class CallbackFiles:
    """Redirects the callbacks' paths into `scratch`, and publishes from there in a thread of its own.

    `notice` is told what could not be published. `check` is to be set to what raises Superseded when a newer attempt
    has the run folder.
    """

    def __init__(
        self,
        folder: str,
        scratch: Path,
        *,
        chief: bool,
        notice: Callable[..., None],
    ) -> None:
        self._folder = folder
        self._scratch = scratch
        self._chief = chief
        self.check: Callable[[], None] = lambda: None
        self._notice = notice
        self._places: list[Place] = []
        self._published: dict[Path, tuple[int, int]] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="callbacks")
        self._pending: Future[None] | None = None

    def redirect(self, callbacks: Sequence[Any]) -> None:
        """Lets every callback that writes write into the scratch folder. Raises InvalidProgram for a path outside."""
        boards = 0
        for number, callback in enumerate(callbacks):
            kind = callback_kind(callback)
            if kind not in _ATTRIBUTES:
                continue
            given = str(getattr(callback, _ATTRIBUTES[kind]))
            try:
                folder, below = split(given)
            except ValueError as error:
                raise InvalidProgram(
                    f"{WHERE}[{number}]",
                    f"{kind}: {error}",
                    next_step="Give a path below it, a whole path or a gs:// URI.",
                ) from None
            if folder is None and kind == "TensorBoard":
                # Whatever it is called, a date more often than not: one folder, the same after a restart.
                boards += 1
                below = "" if boards == 1 else str(boards)
                folder = storage.join(self._folder, run_folder.TENSORBOARD)
            elif folder is None:
                folder = storage.join(self._folder, run_folder.CALLBACKS)
            scratch = self._scratch / str(number)
            local = scratch / below
            (local if kind == "TensorBoard" else local.parent).mkdir(parents=True, exist_ok=True)
            setattr(callback, _ATTRIBUTES[kind], str(local))
            self._places.append(Place(scratch, folder))

    def bring_back(self, callback: Any, epochs: int | None) -> None:
        """Fetches what a CSVLogger wrote before and lets it go on behind the first `epochs` epochs.

        With None a new training begins: only a logger that says `append` goes on with what is there.
        """
        if callback_kind(callback) != "CSVLogger" or (epochs is None and not callback.append):
            return
        local = Path(callback.filename)
        place = next(place for place in self._places if local.is_relative_to(place.scratch))
        uri = storage.join(place.published, local.relative_to(place.scratch).as_posix())
        if not storage.exists(uri):
            return
        content = storage.read(uri).decode("utf-8")
        if epochs is not None:
            content = kept_rows(content, callback.sep, epochs)
        with local.open("w", encoding="utf-8", newline="") as file:
            file.write(content)
        callback.append = True

    def publish(self) -> None:
        """Begins to publish what changed since the last time; returns at once. Raises what the time before met."""
        self.settle()
        if self._chief and self._places:
            self._pending = self._writer.submit(self._publish)

    def settle(self) -> None:
        """Waits until nothing is being published: the callbacks may write again. Raises Superseded."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        self._writer.shutdown()

    def _publish(self) -> None:
        self.check()
        for place in self._places:
            for path, state in _files(place.scratch):
                if self._published.get(path) == state:
                    continue
                uri = storage.join(place.published, path.relative_to(place.scratch).as_posix())
                try:
                    storage.upload(path, uri)
                except Superseded:
                    raise
                except (Problem, OSError) as error:
                    # Tried again with the next ones. What a callback writes down is no reason to end a training.
                    self._notice("CallbackFileNotPublished", f"{uri}: {error}", level="Warning")
                    continue
                self._published[path] = state


def _files(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Every file below the folder, with what changes when it is written."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found = path.stat()
            yield path, (found.st_mtime_ns, found.st_size)
