"""Run folder as a value: job, curves and result, also of an unfinished or damaged run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from mptraining.display.text import counted, duration, metrics
from mptraining.runs.event_files import RunEvents
from mptraining.runs.files import folder_files
from mptraining.runs.history import History
from mptraining_api import run_folder
from mptraining_api.outcomes import SUCCEEDED, run_state
from mptraining_api.problems import InvalidData
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.run_folder import Result
from mptraining_storage import storage

T = TypeVar("T")


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
        return self.history.launches.metrics(self.result, self.history.metrics)

    @property
    def precision(self) -> str | None:
        return self.history.launches.precision(self.result)

    @property
    def reason(self) -> str | None:
        """Return the outcome of the last attempt, such as Succeeded or Diverged; None if it has not ended."""
        ended = self.history.launches.end(self.result)
        return ended.reason if ended is not None else None

    @property
    def message(self) -> str:
        """Return why the last attempt ended; empty if it has not ended or there is nothing to say."""
        ended = self.history.launches.end(self.result)
        return ended.message if ended is not None else ""

    @property
    def seconds(self) -> float | None:
        """Return the total time of the attempts; None if the start failed before any was measured."""
        return self.history.launches.seconds(self.result)

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
    """Return how the run ended; Unfinished if it has not ended, or ended without a report."""
    return "Unfinished" if run.reason is None else run_state(run.reason)


def _one_line(run: Run) -> str:
    """Return name, folder, outcome, step and metrics."""
    where = "" if run.folder == run.name else f" in {run.folder}"
    parts = [f"{run.name}{where}: {run.reason or _phase(run)}", _step(run), metrics(run.metrics)]
    return "  ".join(part for part in parts if part)


def _lines(run: Run) -> list[str]:
    """Return the run as text: phase, reason, progress, settings, run folder, and the gaps of the folder."""
    known, ended = run.result or run.history.started, run.history.launches.end(run.result)
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
        *(("gap", entry) for entry in run.gaps),
    ]
    return [
        f"{run.name}: {_phase(run)}{f', attempt {count}' if count else ''}",
        *(f"  {name:<10}  {text}" for name, text in rows if text),
    ]


def _step(run: Run) -> str:
    """Return the last step, of how many, and the percentage; empty before the first."""
    progress = run.history.progress
    steps = run.history.curves.step
    step = run.result.step if run.result else int(steps[-1]) if len(steps) else None
    if step is None:
        return ""
    total = progress.total_steps if progress else None
    return f"step {step}/{total} ({100 * step // total}%)" if total else f"step {step}"


def load_run(folder: str) -> Run:
    """Read the run in `folder`, a path or gs:// URI.

    An unfinished or damaged run is read as far as possible. Raises InvalidData if the folder contains no run,
    StorageUnavailable if the bucket does not answer.
    """
    files = folder_files(folder)
    listed = files.list()
    gaps: list[str] = []

    def stored(name: str, read: Callable[[bytes], T]) -> T | None:
        if name not in listed:
            return None
        try:
            return read(files.read(name, 0, listed[name].size))
        except ValidationError:
            gaps.append(f"{storage.join(folder, name)} cannot be read")
            return None

    job, result = stored(run_folder.JOB, ResolvedJob.read), stored(run_folder.RESULT, Result.read)
    if job is None and result is None and not any(name.startswith(f"{run_folder.EVENTS}/") for name in listed):
        explanation = f"holds no run: {gaps[0] if gaps else f'there is no {run_folder.JOB} in it'}"
        raise InvalidData(folder, explanation, expected="the run folder of a job")
    if run_folder.JOB not in listed:
        gaps.append(f"{storage.join(folder, run_folder.JOB)} is missing")
    events = RunEvents(files)
    events.refresh(listed)
    events.fill()
    history = History.of([columns for _, columns in events.launches()])
    return Run(folder, job, history.launches.current(result), history, tuple(gaps))
