"""Rate-limited writer of `status.progress`: the newest report of each job, in a thread.

A write is retried if the API server is overloaded or does not respond; it is dropped if the job is deleted or the value
is rejected.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mptraining_api.events import Finished
from mptraining_api.status import Progress, parse_time
from mptraining_operator.progress.status import Report, to_status
from mptraining_operator.runtime.values import Key

_log = logging.getLogger(__name__)

_MOST_JOBS = 20_000
# Seconds. The clock may be set back during a sleep, so sleeps are short.
_LONGEST_SLEEP = 30.0
# The due time of a job's last report: before those of all others.
_FIRST = -math.inf


@dataclass(slots=True)
class _Job:
    """The newest report of a job, the attempt whose end is reported (0: none), and the last write (-inf: never)."""

    key: Key
    progress: Progress
    ended: int
    written: float


class Schedule:
    """Order of the writes: the last report of a job first, then the due job that waits longest.

    A job is due `minimum_seconds` after its last write. Times are in seconds since 1970.
    """

    def __init__(self, minimum_seconds: float, *, most_jobs: int = _MOST_JOBS) -> None:
        self._minimum = minimum_seconds
        self._most = most_jobs
        # By the job's uid; the jobs that have not reported for longest are forgotten.
        self._jobs: dict[str, _Job] = {}
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        """Return the number of jobs whose newest report is not written."""
        return len(self._due)

    def offer(self, key: Key, uid: str, report: Report, previous: Progress | None, now: float) -> None:
        """Schedule the newest report of a job. `previous` is the observed `status.progress`, written by any replica."""
        job = self._jobs.pop(uid, None)
        written = _updated(previous)
        ended, written_before = (job.ended, job.written) if job else (0, -math.inf)
        # The observed one may be older than the last one from here, or that of another replica and newer.
        if job is not None and _updated(job.progress) >= written:
            previous = job.progress
        # A replica whose clock is ahead must not delay the job for longer than the minimum interval.
        written = min(now, max(written, written_before))
        # Only the first report of the end has priority: a job that repeats it is limited as all others.
        first_of_end = isinstance(report, Finished) and report.attempt != ended
        due = _FIRST if first_of_end else max(now, written + self._minimum)
        self._jobs[uid] = _Job(
            key, to_status(report, previous, now), report.attempt if first_of_end else ended, written
        )
        # A newer report keeps the place of the pending one, so that frequent reports do not delay it.
        self._due[uid] = min(due, self._due.get(uid, math.inf))
        while len(self._jobs) > self._most:
            oldest = next(iter(self._jobs))
            del self._jobs[oldest]
            self._due.pop(oldest, None)

    def next(self) -> tuple[float, str]:
        """Return due time and uid of the next write; (inf, "") if none is pending."""
        uid = min(self._due, key=self._due.__getitem__, default="")
        return self._due.get(uid, math.inf), uid

    def take(self, uid: str, now: float) -> tuple[Key, Progress]:
        """Return the pending write of a job, which counts as written now."""
        del self._due[uid]
        job = self._jobs[uid]
        job.written = now
        return job.key, job.progress

    def retry(self, uid: str, at: float) -> None:
        """Schedule the newest report of a job again, after a failed write."""
        if uid in self._jobs:
            self._due[uid] = at


@dataclass(eq=False)
class ProgressWriter:
    """The thread that writes reports to `status.progress` with `write(key, uid, progress)`.

    `write` raises errors with a `status` (0 or none: no response) and optionally `retry_after` in seconds. `clock` is
    in seconds since 1970. A job is written at most once per `minimum_seconds`, all jobs `per_second` times a second.
    """

    write: Callable[[Key, str, dict[str, Any]], object]
    clock: Callable[[], float]
    minimum_seconds: float
    per_second: float

    def __post_init__(self) -> None:
        self._interval = 1 / self.per_second
        self._schedule = Schedule(self.minimum_seconds)
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Stop; wait up to `seconds` for the thread."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def offer(self, key: Key, uid: str, report: Report, previous: Progress | None) -> None:
        """Schedule the newest report of a job without blocking. `previous` is the observed `status.progress`."""
        with self._changed:
            self._schedule.offer(key, uid, report, previous, self.clock())
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                due, uid = self._schedule.next()
                began = self.clock()
                if due > began:
                    self._changed.wait(min(due - began, _LONGEST_SLEEP))
                    continue
            self._write_one(uid)
            self._stopping.wait(min(self._interval, began + self._interval - self.clock()))

    def _write_one(self, uid: str) -> None:
        with self._changed:
            key, progress = self._schedule.take(uid, self.clock())
        try:
            self.write(key, uid, progress.to_document())
        except Exception as error:  # noqa: BLE001 - the thread must keep writing
            status = getattr(error, "status", 0)
            if status in (0, 408, 409, 429) or status >= 500:
                wait = max(self.minimum_seconds, getattr(error, "retry_after", None) or 0.0)
                with self._changed:
                    self._schedule.retry(uid, self.clock() + wait)
                _log.info("the progress of %s is written later: %s", key, error)
            elif status != 404:
                _log.warning("the progress of %s is not written: %s", key, error)


def _updated(progress: Progress | None) -> float:
    return parse_time(progress.update_time) if progress is not None and progress.update_time else -math.inf
