"""Storage that does not answer: said while it is asked again, and whose fault it is when it never does."""

from __future__ import annotations

import math

from mptraining_api.events import Notice
from mptraining_api.launch import Seat
from mptraining_api.problems import InvalidData, Problem, StorageUnavailable
from mptraining_records.storage.gcs import SCHEME
from mptraining_records.storage.retry import contact
from mptraining_trainer.reporting.telemetry import Telemetry

_SECONDS = 10.0


class StorageWatch:
    """Passes on what the storage's clients say of new tries, one line in ten seconds."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._said_at = -math.inf
        self._unsaid = 0
        contact.on_retry = self.heard

    def heard(self, line: str) -> None:
        """One new try; from any thread."""
        now = self._telemetry.now()
        if now - self._said_at < _SECONDS:
            self._unsaid += 1
            return
        self._said_at = now
        more = f" ({self._unsaid} new tries since the last line)" if self._unsaid else ""
        self._unsaid = 0
        # Not `notice`, which says a message once in a run.
        self._telemetry.say(Notice, level="Warning", topic="StorageRetried", message=line + more)


def judged(problem: Problem, seat: Seat) -> Problem:
    """The problem, but InvalidData where storage that does not answer is a mistake in the job.

    Every run asks its storage before the first step. If the service has not answered this first attempt once, an
    address, a name server or a network policy is wrong, and no retry will mend it. Later it may heal.
    """
    # A field of the job may stand before the URI.
    remote = SCHEME in problem.where or SCHEME in problem.found
    if not isinstance(problem, StorageUnavailable) or not remote or contact.answered or seat.attempt > 1:
        return problem
    return InvalidData(
        problem.where,
        problem.found,
        next_step="It never answered: check the address, the name server and the network policies of this machine",
    )
