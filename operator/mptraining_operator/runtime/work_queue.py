"""Work queue of keys with delays and exponential retry; a key is queued once and processed by one worker at a time.

Thread-safe. The injected clock is monotonic and in seconds, as `time.monotonic`.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable

from mptraining_operator.runtime.values import Key

FIRST_RETRY = 0.25
LONGEST_RETRY = 60.0


class WorkQueue:
    """A key is absent, due at one time, or being processed; one added while processed is due again afterwards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        # Entries (due, sequence number, key); an entry is stale if `_due` has another time for the key.
        self._heap: list[tuple[float, int, Key]] = []
        self._sequence = 0
        self._due: dict[Key, float] = {}
        self._processing: set[Key] = set()
        self._again: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._stopped = False

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Queue `key` after `delay` seconds; an earlier due time is kept."""
        with self._changed:
            self._add(key, self._clock() + max(0.0, delay))

    def retry(self, key: Key, minimum: float = 0.0) -> float:
        """Queue `key` after a failure with exponential backoff of at least `minimum` seconds; return the delay."""
        with self._changed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            delay = max(minimum, min(FIRST_RETRY * 2.0 ** min(failures, 16), LONGEST_RETRY))
            self._add(key, self._clock() + delay)
            return delay

    def forget(self, key: Key) -> None:
        """Reset the failure count of `key`."""
        with self._changed:
            self._failures.pop(key, None)

    def failures(self, key: Key) -> int:
        with self._changed:
            return self._failures.get(key, 0)

    def take(self, timeout: float | None = None) -> Key | None:
        """Wait for and return the key that has been due the longest; None when stopped or after `timeout` seconds."""
        with self._changed:
            give_up = None if timeout is None else self._clock() + timeout
            while not self._stopped:
                now, due = self._clock(), self._next_due()
                if due is not None and due <= now:
                    _, _, key = heapq.heappop(self._heap)
                    del self._due[key]
                    self._processing.add(key)
                    return key
                if give_up is not None and now >= give_up:
                    return None
                ends = [end for end in (due, give_up) if end is not None]
                self._changed.wait(min(ends) - now if ends else None)
            return None

    def done(self, key: Key) -> None:
        """Mark `key` as processed; queue it again if it was added meanwhile."""
        with self._changed:
            self._processing.discard(key)
            again = self._again.pop(key, None)
            if again is not None:
                self._add(key, again)

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
            return sum(1 for due in self._due.values() if due <= now)

    def next_due(self) -> float | None:
        """Return the time at which the first key is due, or None if the queue is empty."""
        with self._changed:
            return self._next_due()

    def oldest_age(self) -> float:
        """Return the seconds that the first key has been due, or 0 if none is due."""
        due = self.next_due()
        return 0.0 if due is None else max(0.0, self._clock() - due)

    def _add(self, key: Key, due: float) -> None:
        if key in self._processing:
            self._again[key] = min(due, self._again.get(key, due))
            return
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, key))
        self._changed.notify()

    def _next_due(self) -> float | None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
