"""The time as the API server tells it: stamps, waits and deadlines must not depend on the clock of one machine.

Every answer carries a `Date` in whole seconds. So the server's clock is ahead of ours by something between what it
says less the moment of the answer, and a second more less the moment of the question: a slow answer tells little, and
never something wrong.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from email.utils import parsedate_to_datetime

_log = logging.getLogger(__name__)

# Differences below are not worth a word: they decide nothing.
_WORTH_SAYING = 5.0


def ahead(believed: float, *, sent: float, received: float, date: float) -> float:
    """By how many seconds the server is ahead: as believed, or the nearest that this answer allows.

    `sent` and `received` by the own clock, `date` by the server's; seconds since 1970.
    """
    return min(max(believed, date - received), date + 1.0 - sent)


def read(date: str) -> float | None:
    """An HTTP date (RFC 9110, section 5.6.7) in seconds since 1970; None for anything else."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


class ServerTime:
    """Call it for the seconds since 1970, by the server as far as it is known. Thread-safe."""

    def __init__(self, own: Callable[[], float]) -> None:
        """`own` is this machine's clock; until the first answer it is all there is."""
        self.own = own
        self._ahead = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.own() + self._ahead

    def heard(self, date: str | None, *, sent: float) -> None:
        """An answer with that `Date` has just come, to what was sent at `sent` by the own clock."""
        told = read(date) if date else None
        if told is None:
            return
        with self._lock:
            before = self._ahead
            self._ahead = ahead(before, sent=sent, received=self.own(), date=told)
            changed = abs(self._ahead - before)
        if changed > _WORTH_SAYING:
            words = "this machine's clock and the API server's are %.0f s apart; times are told by the API server's"
            _log.warning(words, abs(self._ahead))
