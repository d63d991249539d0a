"""Run folder as a value: job, metrics history and result, also of an unfinished or damaged run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from mptraining.display.text import counted, duration, metrics
from mptraining_api import events, run_folder
from mptraining_api.events import GAUGES, Event, Finished, Notice, Progress, Recovered, Started
from mptraining_api.outcomes import SUCCEEDED
from mptraining_api.problems import InvalidData, nearest
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.run_folder import Result, parse_events_name

if TYPE_CHECKING:
    from mptraining.display.curves import Panel

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """Metrics and gauges at a step; `seconds` is the training time until then over all attempts, without pauses.

    `gauges` has the numbers of the Progress event under their names there (`mptraining_api.events`), such as
    learning_rate, gradient_norm, loss_scale, step_seconds and device_memory_used_bytes.
    """

    step: int
    seconds: float
    metrics: Mapping[str, float]
    epoch: int | None = None
    gauges: Mapping[str, float] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """Return the metric or gauge of that name; None if this point has none."""
        return self.metrics.get(name, self.gauges.get(name))


@dataclass(frozen=True, slots=True, repr=False)
class History:
    """The chief's events of all attempts. `seconds` is the total time of the attempts.

    `history["loss"]` is a list with one value per epoch, as in Keras' `History.history`; `series("loss")` has every
    recorded value; `to_pandas()` is the whole table; `plot()` draws it.
    """

    points: tuple[Point, ...] = ()
    seconds: float | None = None
    attempts: int = 0
    started: Started | None = None
    progress: Progress | None = None
    finished: Finished | None = None
    warnings: tuple[str, ...] = ()

    def keys(self) -> list[str]:
        """Return the names of the recorded metrics, then those of the gauges."""
        metrics = dict.fromkeys(name for point in self.points for name in point.metrics)
        return list(metrics | dict.fromkeys(name for point in self.points for name in point.gauges))

    def __getitem__(self, name: str) -> list[float]:
        """Return the last recorded value of each epoch that has one. Raises KeyError."""
        values = self.per_epoch(name)
        if not values:
            known = ", ".join(self.keys()) or "nothing"
            raise KeyError(f"{name!r} was not recorded. {nearest(name, self.keys())} Recorded: {known}")
        return values

    def per_epoch(self, name: str) -> list[float]:
        """Return the last recorded value of each epoch that has one; empty if none has."""
        values = {each.epoch: value for each in self.points if (value := each.value(name)) is not None}
        return list(values.values())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def series(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of every point that has the metric or gauge; empty if none has it."""
        return [(point.step, value) for point in self.points if (value := point.value(name)) is not None]

    @property
    def metrics(self) -> dict[str, float]:
        """Return the last value of every metric; those of the Finished event are the last ones."""
        found = {name: value for point in self.points for name, value in point.metrics.items()}
        return found | (self.finished.metrics if self.finished is not None else {})

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame: a row per point with the columns step, seconds, epoch, metrics and gauges.

        A value that was not recorded at a step is NaN. Raises InvalidProgram if pandas is not installed.
        """
        from mptraining.display.plot import load_pandas

        rows = [
            {"step": each.step, "seconds": each.seconds, "epoch": each.epoch, **each.metrics, **each.gauges}
            for each in self.points
        ]
        return load_pandas().DataFrame(rows, columns=["step", "seconds", "epoch", *self.keys()])

    def plot(self, *names: str) -> Any:
        """Plot the named metrics and gauges against the step; by default all metrics and the main gauges.

        Returns matplotlib's axes, one for each chart, and without matplotlib an object that a notebook shows as SVG.
        Raises InvalidProgram outside a notebook if matplotlib is not installed, KeyError for an unknown name.
        """
        from mptraining.display.plot import plot

        for name in names:
            self[name]  # raises KeyError
        return plot(self.panels(names))

    def __repr__(self) -> str:
        end = f" to step {self.points[-1].step}" if self.points else ""
        parts = [f"{len(self.points)} points{end}, {counted(self.attempts, 'attempt')}", metrics(self.metrics)]
        return f"<History: {'  '.join(filter(None, parts))}>"

    def _repr_html_(self) -> str:
        from mptraining.display.html import card

        return card(repr(self)[1:-1], panels=self.panels())

    def panels(self, names: Sequence[str] = ()) -> list[Panel]:
        """Return the charts that `plot` draws."""
        from mptraining.display import curves

        if not names:
            metrics = list(dict.fromkeys(name for point in self.points for name in point.metrics))
            names = curves.shown_by_default(metrics, {name: self.series(name) for name in GAUGES})
        return curves.panels({name: self.series(name) for name in names})


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """The content of a run folder; None for what it does not hold (yet). `gaps` names missing or unreadable files.

    `folder` is the name of the job for a cluster's job whose run folder cannot be reached.
    """

    folder: str
    job: ResolvedJob | None
    result: Result | None
    history: History
    gaps: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the job, else the last part of the folder."""
        return self.job.name if self.job is not None else self.folder.rstrip("/").rpartition("/")[2]

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the last value of every metric, from the result or else from the history."""
        if self.result is not None and self.result.metrics:
            return self.result.metrics
        return self.history.metrics

    @property
    def precision(self) -> str | None:
        if self.result is not None:
            return self.result.precision
        finished, progress, started = self.history.finished, self.history.progress, self.history.started
        known = (each.precision for each in (finished, progress, started) if each is not None)
        return next((each for each in known if each is not None), None)

    @property
    def reason(self) -> str | None:
        """Return the outcome of the last attempt, such as Succeeded or Diverged; None if it has not ended."""
        ended = self.result or self.history.finished
        return ended.reason if ended is not None else None

    @property
    def message(self) -> str:
        """Return why the last attempt ended; empty if it has not ended or there is nothing to say."""
        ended = self.result or self.history.finished
        return ended.message if ended is not None else ""

    @property
    def seconds(self) -> float | None:
        """Return the total time of the attempts; None if none was measured, as of a start that failed at once."""
        # The result has only the time of its own attempt, and events begin when the trainer does.
        if self.result is not None and self.history.attempts <= 1:
            return self.result.seconds
        finished = self.history.finished
        if self.history.started is None and finished is not None:
            return finished.seconds
        return self.history.seconds or None

    @property
    def finished(self) -> bool:
        return self.reason is not None

    @property
    def succeeded(self) -> bool:
        return self.reason == SUCCEEDED.reason

    def __repr__(self) -> str:
        return f"<Run {_one_line(self)}>"

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        from mptraining.display.html import card

        title, *rows = _lines(self)
        return card(title, lines=rows, panels=self.history.panels())


def _phase(run: Run) -> str:
    """Return Succeeded or Failed as a cluster does; Unfinished if the run has not ended, or ended without a report."""
    if not run.finished:
        return "Unfinished"
    return "Succeeded" if run.succeeded else "Failed"


def _one_line(run: Run) -> str:
    """Return name, folder, outcome, step and metrics."""
    where = "" if run.folder == run.name else f" in {run.folder}"
    parts = [f"{run.name}{where}: {run.reason or _phase(run)}", _step(run), metrics(run.metrics)]
    return "  ".join(part for part in parts if part)


def _lines(run: Run) -> list[str]:
    """Return the run as text: phase, reason, progress, settings, run folder, and the gaps of the folder."""
    known, ended = run.result or run.history.started, run.result or run.history.finished
    count = run.result.attempt if run.result else run.history.attempts
    reason = run.reason or "no worker has reported an end"
    decided = [
        known.strategy if known else run.job.strategy if run.job else "",
        run.precision or "",
        counted(known.workers if known else run.job.workers if run.job else None, "worker"),
        counted(known.replicas_in_sync if known else run.job.replicas if run.job else None, "replica"),
        f"global batch size {known.global_batch_size}" if known and known.global_batch_size else "",
    ]
    rows = [
        ("why", f"{reason}: {run.message}" if run.message else reason),
        *(("warning", text) for text in (ended.warnings if ended else None) or ()),
        ("progress", "  ".join(part for part in (_step(run), metrics(run.metrics)) if part)),
        ("runs as", ", ".join(filter(None, decided))),
        ("time", duration(run.seconds) if run.seconds else ""),
        ("run folder", run.folder if run.folder != run.name else ""),
        *(("gap", each) for each in run.gaps),
    ]
    return [
        f"{run.name}: {_phase(run)}{f', attempt {count}' if count else ''}",
        *(f"  {name:<10}  {text}" for name, text in rows if text),
    ]


def _step(run: Run) -> str:
    """Return the last step, of how many, and the percentage; empty before the first."""
    progress = run.history.progress
    points = run.history.points
    step = run.result.step if run.result else points[-1].step if points else None
    if step is None:
        return ""
    total = progress.total_steps if progress else None
    return f"step {step}/{total} ({100 * step // total}%)" if total else f"step {step}"


def history(attempts: Sequence[Sequence[Event]]) -> History:
    """Build the history of a run from the events of its attempts, each in order of time.

    If an attempt resumes from, or a recovery rolls back to, an earlier step, the points after that step are dropped,
    because those steps are trained again. The metrics of a Finished event of a later step than the last Progress are
    the last point: a script may end without another Progress.
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
                    points.append(
                        Point(event.step, past + event.time - begin, event.metrics, event.epoch, _gauges(event))
                    )
                case Notice() if event.level == "Warning":
                    warnings[event.message] = None
                case Finished():
                    finished = event
                    if event.step is not None and event.metrics and (not points or event.step > points[-1].step):
                        epoch = points[-1].epoch if points else None
                        points.append(Point(event.step, past + event.time - begin, event.metrics, epoch))
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


def _gauges(event: Progress) -> dict[str, float]:
    return {name: value for name in GAUGES if (value := getattr(event, name)) is not None}


def load_run(folder: str) -> Run:
    """Read the run in `folder`, a path or gs:// URI.

    An unfinished or damaged run is read as far as possible. Raises InvalidData if the folder contains no run,
    StorageUnavailable if the bucket does not answer.
    """
    from mptraining_storage import storage

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
    of_the_chief = [name for name in names if (parsed := parse_events_name(name)) and parsed.worker == 0]
    attempts = _attempts((name, storage.read(name)) for name in of_the_chief)
    curves = history(attempts)
    if result is not None and curves.started is not None and curves.started.attempt > result.attempt:
        # A later attempt has started: the result is of an earlier attempt and out of date.
        result = None
    return Run(folder, job, result, curves, tuple(gaps))


def _stored(folder: str, name: str, read: Callable[[bytes], T], gaps: list[str]) -> T | None:
    """Read a file of the folder; return None if it is missing, or if it is invalid, which is added to `gaps`."""
    from mptraining_storage import storage

    uri = storage.join(folder, name)
    if not storage.exists(uri):
        return None
    try:
        return read(storage.read(uri))
    except ValidationError:
        gaps.append(f"{uri} cannot be read")
        return None


def _attempts(files: Iterable[tuple[str, bytes]]) -> list[list[Event]]:
    """Return the events of each launch of each attempt (a job queue may start an attempt twice), in order of time."""
    launches: dict[tuple[int, str], list[Event]] = {}
    for name, content in files:
        parsed = parse_events_name(name)
        assert parsed
        found = (events.parse(line) for line in content.decode("utf-8", errors="replace").splitlines())
        launches.setdefault((parsed.attempt, parsed.incarnation), []).extend(each for each in found if each is not None)
    per_launch = [sorted(each, key=lambda event: event.time) for each in launches.values() if each]
    return sorted(per_launch, key=lambda each: (each[0].attempt, each[0].time))
