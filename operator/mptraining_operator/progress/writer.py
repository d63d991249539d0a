"""Writes `status.progress`: takes reports without making anybody wait, writes them in a thread of its own.

What a write failed by decides whether it is tried again: the API server overloaded, out of reach or in conflict, yes;
the job gone or the value refused, no.
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

from mptraining_api.status import Progress
from mptraining_operator.plan.conditions import seconds
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.status import Rank, Report, rank, to_status

# A failed write waits 1, 2, 4, … seconds.
_FIRST_WAIT = 1.0
_LONGEST_WAIT = 60.0
# A token, less what adding up fractions loses: else the thread would wake for nothing.
_ONE = 1 - 1e-6


@dataclass(frozen=True, slots=True)
class Write:
    """One write that is to be done; `tries` have failed before."""

    key: Key
    uid: str
    progress: Progress
    rank: Rank
    # From when on; a heap's entries that say otherwise are stale.
    due: float
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Known:
    """What was last heard of a job, and when it was last written (-inf: never)."""

    uid: str
    progress: Progress | None
    rank: Rank
    written: float


class Schedule:
    """`per_second` writes over all jobs, as many at once at most, but one at least."""

    def __init__(self, minimum_seconds: float, per_second: float, *, most_known: int = 20_000) -> None:
        self._minimum = minimum_seconds
        self._per_second = per_second
        self._burst = max(1.0, per_second)
        self._most_known = most_known
        self._tokens = self._burst
        self._filled = -math.inf
        self._known: OrderedDict[Key, Known] = OrderedDict()
        self._waiting: dict[Key, Write] = {}
        # Time, a number to break ties, and whose.
        self._ordinary: list[tuple[float, int, Key]] = []
        self._last_ones: list[tuple[float, int, Key]] = []
        self._number = 0

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    def known(self, key: Key, uid: str) -> Known | None:
        """What was last offered about this very job."""
        found = self._known.get(key)
        return found if found is not None and found.uid == uid else None

    def offer(self, key: Key, uid: str, progress: Progress, rank: Rank, now: float, *, written: float) -> None:
        """The newest report of a job. `written`: when any replica last wrote about it, as far as is known."""
        known = self.known(key, uid)
        same = known is not None and known.progress is not None and known.progress.attempt == progress.attempt
        before = known.rank if known is not None and same else Rank.UNDER_WAY
        # A clock ahead of ours must not hold a job back for longer than the minimum.
        written = min(now, max(written, known.written if known else -math.inf))
        self._remember(key, Known(uid, progress, max(rank, before), written))
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.uid != uid:
            waiting = None
        # Only a step up goes ahead: who says its end again and again waits as others do.
        ahead = max(rank if rank > before else Rank.UNDER_WAY, waiting.rank if waiting else Rank.UNDER_WAY)
        if waiting is None:
            due = now if ahead else max(now, written + self._minimum)
            self._put(Write(key, uid, progress, ahead, due))
        elif ahead > waiting.rank:
            self._put(Write(key, uid, progress, ahead, now))
        else:
            # Its place in the queue stays: the newest wins, and nobody is put off for speaking often.
            self._waiting[key] = replace(waiting, progress=progress)

    def take(self, now: float) -> Write | None:
        """The write to do now; from then on it waits no more."""
        self._fill(now)
        write = self._pop(self._last_ones, now)
        if write is None and self._tokens >= _ONE:
            write = self._pop(self._ordinary, now)
        if write is None:
            return None
        self._tokens -= 1
        del self._waiting[write.key]
        known = self.known(write.key, write.uid)
        if known is not None:
            self._remember(write.key, replace(known, written=now))
        return write

    def failed(self, write: Write, now: float, retry_after: float | None) -> None:
        """The write did not succeed: it, or what was offered meanwhile, is due again later."""
        wait = max(min(_LONGEST_WAIT, _FIRST_WAIT * 2**write.tries), min(retry_after or 0.0, _LONGEST_WAIT))
        newer = self._waiting.get(write.key)
        if newer is not None and newer.uid != write.uid:
            return
        again = newer or write
        again = replace(again, rank=max(again.rank, write.rank), due=now + wait, tries=write.tries + 1)
        self._put(again)

    def last_ones(self) -> list[Write]:
        """All waiting reports that may not be lost, due or not; they wait no more."""
        found = [write for write in self._waiting.values() if write.rank]
        for write in found:
            del self._waiting[write.key]
        return found

    def forget(self, key: Key, uid: str) -> None:
        """The job is gone."""
        if self.known(key, uid) is not None:
            del self._known[key]
        waiting = self._waiting.get(key)
        if waiting is not None and waiting.uid == uid:
            del self._waiting[key]

    def wake_at(self, now: float) -> float:
        """When `take` may next give something; inf when nothing waits."""
        self._fill(now)
        wake = math.inf
        if self._first(self._last_ones):
            wake = self._last_ones[0][0]
        if self._first(self._ordinary):
            bucket = now if self._tokens >= _ONE else now + (1 - self._tokens) / self._per_second
            wake = min(wake, max(bucket, self._ordinary[0][0]))
        return wake

    def _remember(self, key: Key, known: Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > self._most_known:
            self._known.popitem(last=False)

    def _put(self, write: Write) -> None:
        self._waiting[write.key] = write
        self._number += 1
        heapq.heappush(self._last_ones if write.rank else self._ordinary, (write.due, self._number, write.key))

    def _first(self, heap: list[tuple[float, int, Key]]) -> Write | None:
        """The first entry that still holds; stale ones are dropped."""
        while heap:
            due, _, key = heap[0]
            write = self._waiting.get(key)
            if write is not None and write.due == due and bool(write.rank) == (heap is self._last_ones):
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
            # A clock that was set back fills nothing.
            self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled) * self._per_second)
        self._filled = now


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
