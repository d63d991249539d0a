"""Work queue of job keys with delays and exponential retry; a key is queued once and processed by one worker at a time.

Of the keys that are due, starts of jobs come first, and ended jobs last. Thread-safe. The injected clock is monotonic
and in seconds, as `time.monotonic`.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections.abc import Callable, Mapping
from enum import IntEnum

from mptraining_operator.plan.snapshot import Key

FIRST_RETRY = 0.25
LONGEST_RETRY = 60.0


class Urgency(IntEnum):
    """How soon a key is taken when many are due."""

    START = 0
    RUN = 1
    ENDED = 2


# Seconds for which keys that are not starts wait for pods of jobs that have started, and between two looks at that.
_HELD = 20.0
_CROWD_CHECK_SECONDS = 0.2

# Seconds that a due key of each urgency yields to later keys of a more urgent kind: no key waits forever.
_YIELDS = {Urgency.START: 0.0, Urgency.RUN: 30.0, Urgency.ENDED: 120.0}


class WorkQueue:
    """A key is absent, due at one time, or being processed; one added while processed is due again afterwards.

    `urgency` is called when a key is added. At most `others` keys that are not starts are processed at once: when the
    API server is busy, their calls would delay the pods of jobs that have just started. While `crowded`, they wait.
    Once they have waited for 20 s, at most `late` of them are processed at once.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        urgency: Callable[[Key], Urgency] = lambda key: Urgency.RUN,
        others: float = math.inf,
        late: float = math.inf,
        crowded: Callable[[], bool] = lambda: False,
    ) -> None:
        self._clock = clock
        self._urgency = urgency
        self._others = others
        self._late = late
        self._crowded = crowded
        self._changed = threading.Condition()
        # Entries (due, sequence number, key) by urgency; an entry is stale if `_due` has another one for the key.
        self._heaps: dict[Urgency, list[tuple[float, int, Key]]] = {each: [] for each in Urgency}
        self._sequence = 0
        self._due: dict[Key, tuple[float, Urgency]] = {}
        self._processing: dict[Key, Urgency] = {}
        self._again: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._stopped = False

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Queue `key` after `delay` seconds; an earlier due time is kept."""
        urgency = self._urgency(key)
        with self._changed:
            self._add(key, self._clock() + max(0.0, delay), urgency)

    def retry(self, key: Key, minimum: float = 0.0) -> float:
        """Queue `key` after a failure with exponential backoff of at least `minimum` seconds; return the delay."""
        urgency = self._urgency(key)
        with self._changed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            delay = max(minimum, min(FIRST_RETRY * 2.0 ** min(failures, 16), LONGEST_RETRY))
            self._add(key, self._clock() + delay, urgency)
            return delay

    def forget(self, key: Key) -> None:
        """Reset the failure count of `key`."""
        with self._changed:
            self._failures.pop(key, None)

    def failures(self, key: Key) -> int:
        """Return the number of consecutive failures of `key`."""
        with self._changed:
            return self._failures.get(key, 0)

    def take(self, timeout: float | None = None) -> Key | None:
        """Wait for and return the most urgent due key; None when stopped or after `timeout` seconds."""
        with self._changed:
            give_up = None if timeout is None else self._clock() + timeout
            while not self._stopped:
                now = self._clock()
                heads = self._heads()
                ready = self._ready(heads)
                due = [urgency for urgency, at in ready.items() if at <= now]
                held = Urgency.START not in due and any(now < heads[each] + _HELD for each in due) and self._crowded()
                if held:
                    due = [each for each in due if heads[each] + _HELD <= now]
                if due:
                    first = min(due, key=lambda urgency: heads[urgency] + _YIELDS[urgency])
                    _, _, key = heapq.heappop(self._heaps[first])
                    del self._due[key]
                    self._processing[key] = first
                    return key
                if give_up is not None and now >= give_up:
                    return None
                if held:
                    # The end of a crowd wakes no worker.
                    ready = {urgency: max(at, now + _CROWD_CHECK_SECONDS) for urgency, at in ready.items()}
                ends = [*ready.values(), *([] if give_up is None else [give_up])]
                self._changed.wait(min(ends) - now if ends else None)
            return None

    def done(self, key: Key) -> None:
        """Mark `key` as processed; queue it again if it was added meanwhile."""
        urgency = self._urgency(key)
        with self._changed:
            self._processing.pop(key, None)
            again = self._again.pop(key, None)
            if again is not None:
                self._add(key, again, urgency)
            self._changed.notify()

    def stop(self) -> None:
        """Stop handing out keys and wake all waiting workers."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def depth(self) -> int:
        """Return the number of keys that are due now."""
        with self._changed:
            now = self._clock()
            return sum(1 for due, _ in self._due.values() if due <= now)

    def oldest_age(self) -> float:
        """Return the seconds that the first key has been due, or 0 if none is due."""
        with self._changed:
            heads = self._heads()
            return max(0.0, self._clock() - min(heads.values())) if heads else 0.0

    def _add(self, key: Key, due: float, urgency: Urgency) -> None:
        if key in self._processing:
            self._again[key] = min(due, self._again.get(key, due))
            return
        before = self._due.get(key)
        entry = (due, urgency) if before is None else (min(due, before[0]), urgency)
        if entry == before:
            return
        self._due[key] = entry
        self._sequence += 1
        heapq.heappush(self._heaps[urgency], (entry[0], self._sequence, key))
        self._changed.notify()

    def _ready(self, heads: Mapping[Urgency, float]) -> dict[Urgency, float]:
        """Return the time from which a worker may take the first key of each urgency; `done` wakes a waiting worker."""
        others = sum(urgency != Urgency.START for urgency in self._processing.values())
        if others < self._others:
            return dict(heads)
        starts: dict[Urgency, float] = {urgency: at for urgency, at in heads.items() if urgency == Urgency.START}
        if others >= self._late:
            return starts
        return {urgency: at + _HELD for urgency, at in heads.items()} | starts

    def _heads(self) -> dict[Urgency, float]:
        """Return the time at which the first key of each urgency is due."""
        heads = {}
        for urgency, heap in self._heaps.items():
            while heap and self._due.get(heap[0][2]) != (heap[0][0], urgency):
                heapq.heappop(heap)
            if heap:
                heads[urgency] = heap[0][0]
        return heads
