"""Which jobs to look at, and when: each once, however often it was asked for; never two workers at one job.

Thread-safe. The clock is injected and counts seconds from anywhere, as `time.monotonic` does.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable

from mptraining_operator.plan.snapshot import Key

FIRST_RETRY = 0.25
LONGEST_RETRY = 60.0


class WorkQueue:
    """A key is either nowhere, due at one time, or in work; asked for while in work, it is due again afterwards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        # Pairs of (due, order of arrival, key); stale once `_due` says something else about the key.
        self._heap: list[tuple[float, int, Key]] = []
        self._arrivals = 0
        self._due: dict[Key, float] = {}
        self._in_work: dict[Key, float] = {}
        self._again: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._stopped = False

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Looks at `key` in `delay` seconds; sooner if it was due sooner."""
        with self._changed:
            self._add(key, self._clock() + max(0.0, delay))

    def retry(self, key: Key, minimum: float = 0.0) -> float:
        """Looks at `key` again after a failure, later each time, not before `minimum` seconds; returns the seconds."""
        with self._changed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            delay = max(minimum, min(FIRST_RETRY * 2.0 ** min(failures, 16), LONGEST_RETRY))
            self._add(key, self._clock() + delay)
            return delay

    def succeeded(self, key: Key) -> None:
        """Forgets the failures of `key`."""
        with self._changed:
            self._failures.pop(key, None)

    def failures(self, key: Key) -> int:
        """How often `key` failed in a row."""
        with self._changed:
            return self._failures.get(key, 0)

    def take(self, timeout: float | None = None) -> Key | None:
        """The key that has been due longest; waits for one. None when stopped, or after `timeout` seconds."""
        with self._changed:
            give_up = None if timeout is None else self._clock() + timeout
            while not self._stopped:
                now = self._clock()
                due = self._next_due()
                if due is not None and due <= now:
                    _, _, key = heapq.heappop(self._heap)
                    del self._due[key]
                    self._in_work[key] = now
                    return key
                if give_up is not None and now >= give_up:
                    return None
                ends = [moment for moment in (due, give_up) if moment is not None]
                self._changed.wait(min(ends) - now if ends else None)
            return None

    def done(self, key: Key) -> None:
        """The worker is through with `key`: whoever asked meanwhile is heard now."""
        with self._changed:
            self._in_work.pop(key, None)
            again = self._again.pop(key, None)
            if again is not None:
                self._add(key, again)

    def stop(self) -> None:
        """Hands out nothing more, and wakes everybody who waits."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def depth(self) -> int:
        """Keys that are due now."""
        with self._changed:
            now = self._clock()
            return sum(1 for due in self._due.values() if due <= now)

    def oldest_age(self) -> float:
        """Seconds that the key at the head has been due; 0 when none is."""
        with self._changed:
            due = self._next_due()
            return 0.0 if due is None else max(0.0, self._clock() - due)

    def longest_work(self) -> tuple[Key, float] | None:
        """The key that has been in work longest, and its seconds."""
        with self._changed:
            if not self._in_work:
                return None
            key, since = min(self._in_work.items(), key=lambda item: item[1])
            return key, self._clock() - since

    def _add(self, key: Key, due: float) -> None:
        if key in self._in_work:
            self._again[key] = min(due, self._again.get(key, due))
            return
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._arrivals += 1
        heapq.heappush(self._heap, (due, self._arrivals, key))
        self._changed.notify()

    def _next_due(self) -> float | None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
