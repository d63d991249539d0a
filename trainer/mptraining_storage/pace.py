"""The usual duration of a request, learnt from the requests that have ended, and the limit for a slow one."""

from __future__ import annotations

import threading
from collections import deque

_KEPT = 128
_FEWEST = 16
# A request takes about as long as the transfer of so many bytes, however few it asks for.
_FIXED_BYTES = 1 << 20
# One connection in 20 may be slow by itself. A request that takes twice as long as those is sent again.
_SHARE, _FACTOR = 0.95, 2.0
SHORTEST_SECONDS = 0.25
# The limit before `_FEWEST` requests have ended: that of connections with 100 kB/s.
_FIRST_COST = 1e-5


class Pace:
    """Durations of the last requests for content. Thread-safe."""

    def __init__(self) -> None:
        self._costs: deque[float] = deque(maxlen=_KEPT)
        self._cost = _FIRST_COST
        self._lock = threading.Lock()

    def add(self, seconds: float, count: int) -> None:
        """Add a request that brought `count` bytes, whether it was complete or given up."""
        with self._lock:
            self._costs.append(seconds / (count + _FIXED_BYTES))
            if len(self._costs) >= _FEWEST:
                self._cost = _FACTOR * sorted(self._costs)[int(_SHARE * len(self._costs))]

    def limit(self, count: int) -> float:
        """Return the seconds after which a request for `count` bytes is slow.

        It grows with the requests that are given up, so that a network that is slow as a whole is not overloaded.
        """
        return max(SHORTEST_SECONDS, self._cost * (count + _FIXED_BYTES))
