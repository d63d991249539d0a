"""When which job's progress is written: pure, told the time, in seconds since 1970.

Of each job the newest report waits. It is due `minimum_seconds` after the job's last write; those that are due are
written in the order in which they became so, as a token bucket for all jobs allows. A job's last reports go ahead of
all others at once; what they draw from the bucket beyond its bottom the others wait for.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass, replace

from mptraining_api.status import Progress
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.status import Rank

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
