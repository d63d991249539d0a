"""One run folder, read incrementally: job.json, result.json and the chief's events."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import ValidationError

from mptraining.runs.columns import Curves, best, last, merge
from mptraining.runs.event_files import RunEvents
from mptraining.runs.facts import Document, Launches, LaunchFacts, RunFacts
from mptraining.runs.files import File, Files
from mptraining_api import run_folder
from mptraining_api.events import Event
from mptraining_api.run_folder import Result


class _Job(msgspec.Struct, rename="camel"):
    """The types of what is drawn of a job.json."""

    accelerator: dict[str, Any] | None = None
    precision: dict[str, Any] | None = None
    keras: str | None = None
    program: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    learning_rate: dict[str, Any] | None = None
    jit_compile: str | None = None
    choices: list[Any] | None = None


def run_id(folder: str) -> str:
    """Return an identifier that is the same whenever the board starts, so that views can be shared."""
    return hashlib.sha256(folder.rstrip("/").encode()).hexdigest()[:12]


class RunReader:
    """Reads one run. `refresh` is for one thread at a time; the other methods are thread-safe.

    `refresh`, `curves` and `other_events` wait for the storage and for each other. All else waits for nothing: what is
    shown of a run whose storage is slow is what was read of it last.
    """

    def __init__(self, files: Files, name: str) -> None:
        self.files = files
        self.folder = files.folder
        self.run_id = run_id(files.folder)
        self.name = name
        self.listed: Mapping[str, File] = {}
        self.resolved: Document | None = None
        self.result: Result | None = None
        self._events = RunEvents(files)
        # None until all events were read.
        self._best: dict[str, float] | None = None
        self._curves: Curves | None = None
        self._facts = RunFacts(run_id=self.run_id, name=name, folder=self.folder)
        self._lock = threading.RLock()

    def refresh(self) -> bool:
        """Read what changed since; return whether anything did. Raises Problem if the storage fails."""
        listed = self.files.list()
        if listed == self.listed:
            return False
        with self._lock:
            # What could not be read is read again at the next refresh.
            for name in (run_folder.JOB, run_folder.RESULT):
                if self.listed.get(name) != listed.get(name):
                    self._read_document(name, listed.get(name))
            if self._events.refresh(listed):
                self._curves, self._best = None, None
            self._publish()
            self.listed = listed
        return True

    @property
    def facts(self) -> RunFacts:
        return self._facts

    @property
    def complete(self) -> bool:
        """Return whether the best values are known, so that no background reading is needed."""
        return self._best is not None

    @property
    def size(self) -> int:
        """Return the size of all files of events in bytes."""
        return sum(file.size for name, file in self.listed.items() if name.startswith(run_folder.EVENTS))

    def curves(self) -> Curves:
        """Read all events of the chief and return the run's curves. Raises Problem."""
        with self._lock:
            if self._curves is None:
                self._events.fill()
                self._publish()
            return self._curves or Curves()

    def other_events(self) -> list[tuple[int, Event]]:
        """Return all events of the chief that are not Progress, with their attempts. Raises Problem."""
        with self._lock:
            self.curves()
            launches = self._events.launches()
            return [(launch.attempt, event) for launch, columns in launches for _, event in columns.others]

    def memory(self) -> int:
        """Return the bytes that `forget` would free."""
        return 0 if self._curves is None else 2 * self._curves.size

    def forget(self) -> None:
        """Drop the curves, unless they are being read; they are read again when they are needed.

        The best values stay.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._curves = None
            self._events.forget()
        finally:
            self._lock.release()

    def _publish(self) -> None:
        launches = self._events.launches()
        facts = Launches(LaunchFacts.of(launch.attempt, columns) for launch, columns in launches)
        if self._events.filled and self._curves is None:
            self._curves = merge([columns for _, columns in launches])
            self._best = best(self._curves.values)
        read = [self._curves.values] if self._curves else [columns.values for _, columns in launches]
        names = [*(name for part in read for name in part), *(self.result.metrics if self.result else ())]
        self._facts = RunFacts(
            run_id=self.run_id,
            name=self.name,
            folder=self.folder,
            resolved=self.resolved,
            result=facts.current(self.result),
            launches=facts,
            series=tuple(dict.fromkeys(names)),
            best=self._best,
            last={name: value for part in read for name, value in last(part).items()},
            highest_rate=max(
                (float(part["learningRate"].values.max()) for part in read if "learningRate" in part), default=None
            ),
        )

    def _read_document(self, name: str, file: File | None) -> None:
        content = self.files.read(name, 0, file.size) if file is not None else b""
        if name == run_folder.JOB:
            self.resolved = _job(content)
            return
        try:
            self.result = Result.read(content)
        except ValidationError:
            self.result = None


def _job(data: bytes) -> Document | None:
    """Return the JSON object; None if another program wrote it: others use this file name, too."""
    try:
        document: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        msgspec.convert(document, _Job)
        # A number that cannot be written as JSON again cannot be in an answer.
        msgspec.json.encode(document)
    except (msgspec.DecodeError, OverflowError, RecursionError):
        return None
    return document
