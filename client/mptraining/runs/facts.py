"""Facts of a run that its list needs, without its curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mptraining.runs.columns import Columns
from mptraining_api.events import Finished, Progress, Started

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
        """Return the facts of a launch whose events are `columns`."""
        first, last, begin = columns.first, columns.last, columns.begin
        return cls(attempt, first, last, begin, columns.started, columns.progress, columns.finished)

    @property
    def process_start(self) -> float:
        """Return when the process started, as far as its events tell."""
        start_up = self.started.start_up_seconds if self.started else None
        return min(self.first, self.begin - (start_up or 0.0))


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
    # Of `mptj`, to select the cluster.
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run and the cluster's job that it is of; `best` and `last` hold values of metrics as far as they were read."""

    id: str
    name: str
    folder: str | None
    resolved: Document | None = None
    result: Document | None = None
    launches: tuple[LaunchFacts, ...] = ()
    # The names of its series, as far as they were read.
    series: tuple[str, ...] = ()
    best: Mapping[str, float] | None = None
    last: Mapping[str, float] = field(default_factory=dict)
    # The learning rate at its highest, as far as it was read.
    highest_rate: float | None = None
    job: JobFacts | None = None
