"""Rate-limited writer of `status.progress`: a schedule of the newest report per job, and the thread that writes them.

A write is retried after a conflict or if the API server is overloaded or does not respond; it is dropped if the job is
deleted or the value is rejected.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mptraining_api.status import Progress, parse_time
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.status import Rank, Report, rank, to_status

# Seconds. The retries of a failed write wait 1, 2, 4, … seconds.
_FIRST_WAIT = 1.0
_LONGEST_WAIT = 60.0
# One token, less the rounding error of the sum of fractions, which would wake the thread too early.
_ONE = 1 - 1e-6


@dataclass(frozen=True, slots=True)
class Write:
    """One pending write, after `tries` failed ones."""

    key: Key
    uid: str
    progress: Progress
    rank: Rank
    # The earliest time of the write; entries of a heap with another time are stale.
    due: float
    tries: int = 0


@dataclass(frozen=True, slots=True)
class LastReport:
    """The last report of a job, and the time of its last write (-inf: never)."""

    uid: str
    progress: Progress | None
    rank: Rank
    written: float


class Schedule:
    """Token bucket over all jobs: `per_second` writes a second, with bursts of as many, but at least one.

    The first report of a rank above UNDER_WAY (last step, finished) is written even if the bucket is empty.
    """

    def __init__(self, minimum_seconds: float, per_second: float, *, most_known: int = 20_000) -> None:
        self._minimum = minimum_seconds
        self._per_second = per_second
        self._burst = max(1.0, per_second)
        self._most_known = most_known
        self._tokens = self._burst
        self._filled = -math.inf
        self._known: OrderedDict[Key, LastReport] = OrderedDict()
        self._waiting: dict[Key, Write] = {}
        # Heap entries: due time, sequence number, job.
        self._ordinary: list[tuple[float, int, Key]] = []
        self._urgent: list[tuple[float, int, Key]] = []
        self._number = 0

    def __len__(self) -> int:
        """Return the number of jobs with a pending write."""
        return len(self._waiting)

    def last_report(self, key: Key, uid: str) -> LastReport | None:
        """Return the last report of the job with this uid, or None."""
        found = self._known.get(key)
        return found if found is not None and found.uid == uid else None

    def offer(self, key: Key, uid: str, progress: Progress, rank: Rank, now: float, *, written: float) -> None:
        """Schedule the newest report of a job. `written` is the last known write for the job by any replica."""
        known = self.last_report(key, uid)
        same = known is not None and known.progress is not None and known.progress.attempt == progress.attempt
        before = known.rank if known is not None and same else Rank.UNDER_WAY
        # A replica whose clock is urgency must not delay the job for longer than the minimum interval.
        written = min(now, max(written, known.written if known else -math.inf))
        self._remember(key, LastReport(uid, progress, max(rank, before), written))
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.uid != uid:
            waiting = None
        # Only a rise in rank has priority: a job that repeats its last report is limited as all others.
        urgency = max(rank if rank > before else Rank.UNDER_WAY, waiting.rank if waiting else Rank.UNDER_WAY)
        if waiting is None:
            due = now if urgency else max(now, written + self._minimum)
            self._put(Write(key, uid, progress, urgency, due))
        elif urgency > waiting.rank:
            self._put(Write(key, uid, progress, urgency, now))
        else:
            # The newest report replaces the pending one at the same due time, so frequent reports do not delay it.
            self._waiting[key] = replace(waiting, progress=progress)

    def take(self, now: float) -> Write | None:
        """Remove and return the write that is due, or None."""
        self._fill(now)
        write = self._pop(self._urgent, now)
        if write is None and self._tokens >= _ONE:
            write = self._pop(self._ordinary, now)
        if write is None:
            return None
        self._tokens -= 1
        del self._waiting[write.key]
        known = self.last_report(write.key, write.uid)
        if known is not None:
            self._remember(write.key, replace(known, written=now))
        return write

    def retry(self, write: Write, now: float, retry_after: float | None) -> None:
        """Schedule a retry of a failed write, with the newer report if there is one."""
        wait = max(min(_LONGEST_WAIT, _FIRST_WAIT * 2**write.tries), min(retry_after or 0.0, _LONGEST_WAIT))
        newer = self._waiting.get(write.key)
        if newer is not None and newer.uid != write.uid:
            return
        again = newer or write
        again = replace(again, rank=max(again.rank, write.rank), due=now + wait, tries=write.tries + 1)
        self._put(again)

    def take_final_writes(self) -> list[Write]:
        """Remove and return all pending writes of a rank above UNDER_WAY, due or not."""
        found = [write for write in self._waiting.values() if write.rank]
        for write in found:
            del self._waiting[write.key]
        return found

    def forget(self, key: Key, uid: str) -> None:
        """Remove a deleted job."""
        if self.last_report(key, uid) is not None:
            del self._known[key]
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.uid == uid:
            del self._waiting[key]

    def wake_at(self, now: float) -> float:
        """Return when `take` may next return a write; inf if none is pending."""
        self._fill(now)
        wake = math.inf
        if self._first(self._urgent):
            wake = self._urgent[0][0]
        if self._first(self._ordinary):
            bucket = now if self._tokens >= _ONE else now + (1 - self._tokens) / self._per_second
            wake = min(wake, max(bucket, self._ordinary[0][0]))
        return wake

    def _remember(self, key: Key, known: LastReport) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > self._most_known:
            self._known.popitem(last=False)

    def _put(self, write: Write) -> None:
        self._waiting[write.key] = write
        self._number += 1
        heapq.heappush(self._urgent if write.rank else self._ordinary, (write.due, self._number, write.key))

    def _first(self, heap: list[tuple[float, int, Key]]) -> Write | None:
        """Return the first write that is not stale, or None; drop stale entries."""
        while heap:
            due, _, key = heap[0]
            write = self._waiting.get(key)
            if write is not None and write.due == due and bool(write.rank) == (heap is self._urgent):
                return write
            heapq.heappop(heap)
        return None

    def _pop(self, heap: list[tuple[float, int, Key]], now: float) -> Write | None:
        write = self._first(heap)
        if write is None or write.due > now:
            return None
        heapq.heappop(heap)
        return write

    def _fill(self, now: float) -> None:
        if self._filled > -math.inf:
            # A clock that was set back adds no tokens.
            self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled) * self._per_second)
        self._filled = now


_log = logging.getLogger(__name__)

# After this many conflicts in a row the job of that uid is taken for deleted.
_CONFLICTS = 5
# Seconds. The clock may be set back during a sleep, so sleeps are short.
_LONGEST_SLEEP = 30.0


class ProgressWriter:
    """The thread that writes reports to `status.progress` with `write(key, uid, progress)`.

    `write` raises errors with a `status` (0 or none: no response) and optionally `retry_after` in seconds. `clock` is
    in seconds since 1970. A job is written at most once per `minimum_seconds`, all jobs `per_second` times a second.
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
        """Write the pending last reports, each with one try, and stop; wait up to `seconds` for the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)

    @property
    def waiting(self) -> int:
        """The number of jobs whose newest report is not written yet."""
        with self._changed:
            return len(self._schedule)

    def offer(self, key: Key, uid: str, report: Report, previous: Progress | None) -> None:
        """Schedule the newest report of a job without blocking. `previous` is the observed `status.progress`."""
        now = self._clock()
        with self._changed:
            known = self._schedule.last_report(key, uid)
            written = _time(previous)
            # Another replica may have received a later report of the job.
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
            last = self._schedule.take_final_writes()
        for write in last:
            self._try(write)

    def _try(self, write: Write) -> None:
        try:
            self._write(write.key, write.uid, write.progress.to_document())
        except Exception as error:  # noqa: BLE001 - the thread must keep writing
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
                self._schedule.retry(write, self._clock(), getattr(error, "retry_after", None))
                _log.info("the progress of %s is written later: %s", write.key, error)
                return
        _log.warning("the progress of %s is not written: %s", write.key, error)


def _time(progress: Progress | None) -> float:
    return parse_time(progress.update_time) if progress is not None and progress.update_time else -math.inf
