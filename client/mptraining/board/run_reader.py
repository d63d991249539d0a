"""One run folder, read incrementally: job.json, result.json and the chief's events."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from mptraining.board.curves import Curves, best, last, merge
from mptraining.board.event_batches import Batch, Other
from mptraining.board.event_files import Launch, ReadRange
from mptraining.board.listing import File, Files
from mptraining.board.rows import RunFacts, launch_facts
from mptraining_api import run_folder
from mptraining_api.run_folder import metric_direction, parse_events_name


class _Job(msgspec.Struct, rename="camel"):
    """The types of what is drawn of a job.json."""

    accelerator: dict[str, Any] | None = None
    precision: dict[str, Any] | None = None
    keras: str | None = None
    program: dict[str, Any] | None = None
    training: dict[str, Any] | None = None
    learning_rate: dict[str, Any] | None = None
    choices: list[Any] | None = None


class _Result(msgspec.Struct, rename="camel"):
    """The types of what is drawn of a result.json."""

    exit_code: int = 1
    attempt: int = 0
    metrics: dict[str, float | str | None] | None = None
    seconds: float | None = None
    precision: str | None = None
    keras: str | None = None


def run_id(folder: str) -> str:
    """Return an identifier that is the same whenever the board starts, so that views can be shared."""
    return hashlib.sha256(folder.rstrip("/").encode()).hexdigest()[:12]


class RunReader:
    """Reads one run. `refresh` is for one thread at a time; the other methods are thread-safe.

    `refresh`, `curves` and `other_events` wait for the storage and for each other. All else waits for nothing: what is
    shown of a run whose storage is slow is what was read of it last.
    """

    def __init__(self, files: Files, name: str, *, id: str | None = None) -> None:
        """Without `id`, the folder identifies the run."""
        self.files = files
        self.folder = files.folder
        self.id = id or run_id(files.folder)
        self.name = name
        self.listed: Mapping[str, File] = {}
        self.resolved: Mapping[str, Any] | None = None
        self.result: Mapping[str, Any] | None = None
        self._launches: dict[tuple[int, str], Launch] = {}
        # None until all events were read.
        self._best: dict[str, float] | None = None
        self._last: dict[str, float] = {}
        self._curves: Curves | None = None
        self._facts = RunFacts(id=self.id, name=name, folder=self.folder)
        self._lock = threading.RLock()

    def refresh(self) -> bool:
        """Read what changed since; return whether anything did. Raises Problem if the storage fails."""
        listed = self.files.list()
        if listed == self.listed:
            return False
        with self._lock:
            # What could not be read is read again at the next refresh.
            self._read_changes(listed)
            self._publish()
            self.listed = listed
        return True

    def _read_changes(self, listed: Mapping[str, File]) -> None:
        if _changed(self.listed, listed, run_folder.JOB):
            self.resolved = self._document(run_folder.JOB, listed, _Job)
        if _changed(self.listed, listed, run_folder.RESULT):
            self.result = self._document(run_folder.RESULT, listed, _Result)
        for key, parts in self._chief_files(listed).items():
            launch = self._launches.setdefault(key, Launch(*key))
            self._add(launch.refresh(parts))

    @property
    def facts(self) -> RunFacts:
        return self._facts

    def _publish(self) -> None:
        batches = self._in_order()
        final = (self.result or {}).get("metrics") or {}
        self._facts = RunFacts(
            id=self.id,
            name=self.name,
            folder=self.folder,
            resolved=self.resolved,
            result=self.result,
            launches=tuple(launch_facts(attempt, batch) for attempt, batch in batches),
            series=tuple(dict.fromkeys([*(name for _, batch in batches for name in batch.values), *final])),
            best=self._best,
            last=self._last if self._best is not None else self._last_of(batches),
        )

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
            if self._curves is not None:
                return self._curves
            found = self._fill()
            self._publish()
            return found

    def _fill(self) -> Curves:
        for each in self._launches.values():
            each.fill()
        found = self._curves = merge([batch for _, batch in self._in_order()])
        self._best, self._last = best(found.values), last(found.values)
        return found

    def other_events(self) -> list[tuple[int, Other]]:
        """Return all events of the chief that are not Progress, with their attempts. Raises Problem."""
        with self._lock:
            self.curves()
            return [(attempt, event) for attempt, batch in self._in_order() for event in batch.others]

    def range_reader(self, name: str) -> ReadRange:
        """Return the function that reads ranges of the file of that name."""
        return partial(self.files.read, name)

    def memory(self) -> int:
        """Return the bytes that `forget` would free."""
        curves = self._curves
        return 0 if curves is None else 16 * len(curves.step) * (3 + len(curves.values))

    def forget(self) -> None:
        """Drop the curves, unless they are being read; they are read again when they are needed.

        The best values stay.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._curves = None
            for each in self._launches.values():
                each.forget()
        finally:
            self._lock.release()

    def _add(self, new: list[Batch] | None) -> None:
        """Take over new batches: None is a launch that was seen for the first time."""
        if new == []:
            return
        self._curves = None
        filled = all(each.filled for each in self._launches.values())
        if new is None or self._best is None or any(each.cuts for each in new):
            self._best = None
            if filled:
                self._fill()
            return
        for batch in new:
            for name, value in best(batch.values).items():
                better = max if metric_direction(name) == "up" else min
                self._best = {**self._best, name: better(value, self._best.get(name, value))}
            self._last = {**self._last, **last(batch.values)}

    @staticmethod
    def _last_of(batches: Sequence[tuple[int, Batch]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for _, batch in batches:
            found |= last(batch.values)
        return found

    def _in_order(self) -> list[tuple[int, Batch]]:
        """Return the launches with events, in order of time."""
        found = [(each.attempt, batch) for each in self._launches.values() if (batch := each.batch()) is not None]
        return sorted(found, key=lambda each: (each[0], each[1].first))

    def _chief_files(self, listed: Mapping[str, File]) -> dict[tuple[int, str], dict[int, tuple[int, ReadRange]]]:
        found: dict[tuple[int, str], dict[int, tuple[int, ReadRange]]] = {}
        for name, file in listed.items():
            if (parsed := parse_events_name(name)) and parsed.worker == 0:
                parts = found.setdefault((parsed.attempt, parsed.incarnation), {})
                parts[parsed.part] = (file.size, self.range_reader(name))
        return found

    def _document(self, name: str, listed: Mapping[str, File], types: type[msgspec.Struct]) -> Mapping[str, Any] | None:
        return _document(self.files.read(name, 0, listed[name].size), types) if name in listed else None


def _document(data: bytes, types: type[msgspec.Struct]) -> Mapping[str, Any] | None:
    """Return the JSON object; None if it is none of ours, as other programs write files of these names, too."""
    try:
        found: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        msgspec.convert(found, types)
        # A number that cannot be written as JSON again cannot be in an answer.
        msgspec.json.encode(found)
    except (msgspec.DecodeError, OverflowError, RecursionError):
        return None
    return found


def _changed(before: Mapping[str, File], now: Mapping[str, File], name: str) -> bool:
    return before.get(name) != now.get(name)
