"""Writes `status.progress`: takes reports without making anybody wait, writes them in a thread of its own.

What a write failed by decides whether it is tried again: the API server overloaded, out of reach or in conflict, yes;
the job gone or the value refused, no.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Any

from mptraining_api.status import Progress
from mptraining_operator.plan.conditions import seconds
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.progress_schedule import Schedule, Write
from mptraining_operator.progress.status import Report, rank, to_status

_log = logging.getLogger(__name__)

# A conflict that lasts is no race: the job of that uid is gone.
_CONFLICTS = 5
# What is read from a clock may be set back while nobody looks.
_LONGEST_SLEEP = 30.0


class ProgressWriter:
    """`write(key, uid, progress)` applies the document to the status of the job with that uid.

    It raises errors with a `status` (0 or none: no answer) and perhaps `retry_after` in seconds. `clock` in seconds
    since 1970; a job is written at most once per `minimum_seconds`, all jobs together `per_second` times a second.
    """

    def __init__(
        self,
        write: Callable[[Key, str, dict[str, Any]], object],
        clock: Callable[[], float],
        minimum_seconds: float,
        per_second: float,
    ) -> None:
        self._write = write
        self._clock = clock
        self._schedule = Schedule(minimum_seconds, per_second)
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="progress writer", daemon=True)
        self.written = 0
        self.failed = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Writes the last reports of jobs that still wait, each once more, and ends within `seconds` or so."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)

    @property
    def waiting(self) -> int:
        """Jobs whose newest report is not written yet."""
        with self._changed:
            return len(self._schedule)

    def offer(self, key: Key, uid: str, report: Report, previous: Progress | None) -> None:
        """The newest report of a job; never waits. `previous` is `status.progress` as last seen."""
        now = self._clock()
        with self._changed:
            known = self._schedule.known(key, uid)
            written = _time(previous)
            # Another replica may have heard of the job since this one did.
            if known is not None and known.progress is not None and _time(known.progress) >= written:
                previous = known.progress
            self._schedule.offer(key, uid, to_status(report, previous, now), rank(report), now, written=written)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    break
                now = self._clock()
                write = self._schedule.take(now)
                if write is None:
                    pause = self._schedule.wake_at(now) - now
                    self._changed.wait(max(0.0, min(pause, _LONGEST_SLEEP)))
                    continue
            self._try(write)
        with self._changed:
            last = self._schedule.last_ones()
        for write in last:
            self._try(write)

    def _try(self, write: Write) -> None:
        try:
            self._write(write.key, write.uid, write.progress.to_document())
        except Exception as error:  # noqa: BLE001 - whatever it is, the next job's turn comes
            self._failed(write, error)
        else:
            self.written += 1

    def _failed(self, write: Write, error: Exception) -> None:
        self.failed += 1
        status = getattr(error, "status", None) or 0
        with self._changed:
            if status == 404 or (status == 409 and write.tries >= _CONFLICTS):
                self._schedule.forget(write.key, write.uid)
                return
            if status in (0, 408, 409, 429) or status >= 500:
                self._schedule.failed(write, self._clock(), getattr(error, "retry_after", None))
                _log.info("the progress of %s is written later: %s", write.key, error)
                return
        _log.warning("the progress of %s is not written: %s", write.key, error)


def _time(progress: Progress | None) -> float:
    return seconds(progress.update_time) if progress is not None and progress.update_time else -math.inf
