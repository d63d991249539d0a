"""Facts of a run that its list needs, without its curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mptraining.runs.columns import Columns
from mptraining_api.events import Finished, Progress, Started
from mptraining_api.run_folder import Result

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """The first and last facts of one launch of an attempt. Times in seconds since 1970."""

    attempt: int
    first: float
    last: float
    begin: float
    started: Started | None
    progress: Progress | None
    finished: Finished | None

    @classmethod
    def of(cls, attempt: int, columns: Columns) -> LaunchFacts:
        first, last, begin = columns.first, columns.last, columns.begin
        return cls(attempt, first, last, begin, columns.started, columns.progress, columns.finished)

    @property
    def process_start(self) -> float:
        """Return when the process started, as far as its events tell."""
        start_up = self.started.start_up_seconds if self.started else None
        return min(self.first, self.begin - (start_up or 0.0))


class Launches(tuple[LaunchFacts, ...]):
    """The launches of a run in order of time. `result` is that of the run, None without one."""

    __slots__ = ()

    @property
    def started(self) -> Started | None:
        return next((launch.started for launch in reversed(self) if launch.started is not None), None)

    @property
    def progress(self) -> Progress | None:
        return next((launch.progress for launch in reversed(self) if launch.progress is not None), None)

    @property
    def finished(self) -> Finished | None:
        """Return the Finished event of the last launch."""
        return self[-1].finished if self else None

    def current(self, result: Result | None) -> Result | None:
        """Return the result, unless a later attempt has started since, so that it is out of date."""
        started = self.started
        return None if result is None or (started is not None and started.attempt > result.attempt) else result

    def end(self, result: Result | None) -> Result | Finished | None:
        """Return what tells how the run ended; None before its end."""
        return result or self.finished

    def precision(self, result: Result | None) -> str | None:
        """Return the last known precision; a recovery may have changed it."""
        entries = (result, self.finished, self.progress, self.started)
        return next((entry.precision for entry in entries if entry is not None and entry.precision is not None), None)

    def seconds(self, result: Result | None) -> float | None:
        """Return the total time of the attempts; None if the start failed before any was measured."""
        # The result has only the time of its own attempt, and events begin when the trainer does.
        if result is not None and len(self) <= 1:
            return result.seconds
        if self.started is None and self.finished is not None:
            return self.finished.seconds
        return sum(launch.last - launch.begin for launch in self) or None

    def metrics(self, result: Result | None, recorded: Mapping[str, float]) -> Mapping[str, float]:
        """Return the last value of every metric; `recorded` are those of the Progress events."""
        if result is not None and result.metrics:
            return result.metrics
        return {**recorded, **(self.finished.metrics if self.finished is not None else {})}


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job of the cluster; `progress` as in a row of the board."""

    namespace: str
    name: str
    phase: str
    reason: str
    folder: str | None
    resolved: Document | None
    progress: Document | None
    values: Document
    # The flags of `mptj` that select its cluster.
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run and the cluster's job that it is of; `best` and `last` hold values of metrics as far as they were read.

    `result` is None if it is out of date.
    """

    run_id: str
    name: str
    folder: str | None
    resolved: Document | None = None
    result: Result | None = None
    launches: Launches = field(default_factory=Launches)
    # The names of its series, as far as they were read.
    series: tuple[str, ...] = ()
    best: Mapping[str, float] | None = None
    last: Mapping[str, float] = field(default_factory=dict)
    # The learning rate at its highest, as far as it was read.
    highest_rate: float | None = None
    job: JobFacts | None = None
