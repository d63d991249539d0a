"""Run folder as a value: job, metrics history and result, also of an unfinished or damaged run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from mptraining_api import events, run_folder
from mptraining_api.events import Event, Finished, Notice, Progress, Recovered, Started
from mptraining_api.problems import InvalidData
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.run_folder import Result

T = TypeVar("T")

_EVENTS_FILE = re.compile(r"(\d+)-(.+)-(\d+)-(\d+)\.jsonl")


@dataclass(frozen=True, slots=True)
class Point:
    """Metrics at a step; `seconds` is the training time until then over all attempts, without the pauses between."""

    step: int
    seconds: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class History:
    """The chief's events of all attempts. `seconds` is the total time of the attempts."""

    points: tuple[Point, ...] = ()
    seconds: float | None = None
    attempts: int = 0
    started: Started | None = None
    progress: Progress | None = None
    finished: Finished | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """The content of a run folder; None for what it does not hold (yet). `gaps` names missing or unreadable files."""

    folder: str
    job: ResolvedJob | None
    result: Result | None
    history: History
    gaps: tuple[str, ...] = ()

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the last value of every metric, from the result or else from the history."""
        if self.result is not None and self.result.metrics:
            return self.result.metrics
        return {name: value for point in self.history.points for name, value in point.metrics.items()}

    @property
    def precision(self) -> str | None:
        if self.result is not None:
            return self.result.precision
        return self.history.started.precision if self.history.started else None

    @property
    def succeeded(self) -> bool:
        return self.result is not None and self.result.reason == "Succeeded"


def history(attempts: Sequence[Sequence[Event]]) -> History:
    """Build the history of a run from the events of its attempts, each in order of time.

    If an attempt resumes from, or a recovery rolls back to, an earlier step, the points after that step are dropped,
    because those steps are trained again.
    """
    points: list[Point] = []
    past = 0.0
    started, progress, finished = None, None, None
    warnings: dict[str, None] = {}
    for attempt in attempts:
        begin = next((each.time for each in attempt if isinstance(each, Started)), attempt[0].time)
        finished = None
        for event in attempt:
            match event:
                case Started():
                    started = event
                    points = [each for each in points if each.step <= event.first_step]
                case Recovered():
                    points = [each for each in points if each.step <= event.to_step]
                case Progress():
                    progress = event
                    points.append(Point(event.step, past + event.time - begin, event.metrics))
                case Notice() if event.level == "Warning":
                    warnings[event.message] = None
                case Finished():
                    finished = event
        past += attempt[-1].time - begin
    return History(
        points=tuple(points),
        seconds=past if attempts else None,
        attempts=len(attempts),
        started=started,
        progress=progress,
        finished=finished,
        warnings=tuple(warnings),
    )


def load_run(folder: str) -> Run:
    """Read the run in `folder`, a path or gs:// URI.

    An unfinished or damaged run is read as far as possible. Raises InvalidData if the folder contains no run,
    StorageUnavailable if the bucket does not answer.
    """
    from mptraining_records.storage import storage

    names = [each.uri for each in storage.list_objects(storage.join(folder, run_folder.EVENTS))]
    gaps: list[str] = []

    job = _stored(folder, run_folder.JOB, ResolvedJob.read, gaps)
    result = _stored(folder, run_folder.RESULT, Result.read, gaps)
    if job is None and result is None and not names:
        found = f"holds no run: {gaps[0] if gaps else f'there is no {run_folder.JOB} in it'}"
        raise InvalidData(folder, found, expected="the run folder of a job")
    job_file = storage.join(folder, run_folder.JOB)
    if job is None and not any(job_file in gap for gap in gaps):
        gaps.append(f"{job_file} is missing")
    attempts = _attempts((name, storage.read(name)) for name in _of_the_chief(names))
    curves = history(attempts)
    if result is not None and curves.started is not None and curves.started.attempt > result.attempt:
        # A later attempt has started: the result is of an earlier attempt and out of date.
        result = None
    return Run(folder, job, result, curves, tuple(gaps))


def _stored(folder: str, name: str, read: Callable[[bytes], T], gaps: list[str]) -> T | None:
    """Read a file of the folder; return None if it is missing, or if it is invalid, which is added to `gaps`."""
    from mptraining_records.storage import storage

    uri = storage.join(folder, name)
    if not storage.exists(uri):
        return None
    try:
        return read(storage.read(uri))
    except ValidationError:
        gaps.append(f"{uri} cannot be read")
        return None


def _of_the_chief(names: Sequence[str]) -> list[str]:
    matches = [(name, _EVENTS_FILE.fullmatch(name.rpartition("/")[2])) for name in names]
    return [name for name, match in matches if match and match[3] == "0"]


def _attempts(files: Iterable[tuple[str, bytes]]) -> list[list[Event]]:
    """Return the events of each launch of each attempt (a job queue may start an attempt twice), in order of time."""
    launches: dict[tuple[int, str], list[Event]] = {}
    for name, content in files:
        match = _EVENTS_FILE.fullmatch(name.rpartition("/")[2])
        assert match
        found = (events.parse(line) for line in content.decode("utf-8", errors="replace").splitlines())
        launches.setdefault((int(match[1]), match[2]), []).extend(each for each in found if each is not None)
    per_launch = [sorted(each, key=lambda event: event.time) for each in launches.values() if each]
    return sorted(per_launch, key=lambda each: (each[0].attempt, each[0].time))
