"""Pause of single jobs by their annotation `mptraining.dev/paused`.

The operator leaves a paused job and its children alone; deadlines continue, and are enforced when the pause ends.
"""

from __future__ import annotations

from collections.abc import Callable

from mptraining_api.spec import PAUSED
from mptraining_operator.plan.actions import EventRecord
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.watch.cache import Cache

RecordEvent = Callable[[Key, EventRecord], None]


class Pause:
    """State of the pauses. Thread-safe for different jobs.

    `record_event` receives one Event when a job is paused and one when it continues.
    """

    def __init__(self, cache: Cache, record_event: RecordEvent) -> None:
        self._cache = cache
        self._record_event = record_event
        # The uids of jobs whose pause an Event has reported.
        self._reported: dict[Key, str] = {}

    def paused_jobs(self) -> int:
        """Return the number of jobs that their annotation pauses."""
        return sum(job.paused for job in self._cache.jobs())

    def holds(self, key: Key) -> bool:
        """Return whether the job must be left alone; report the beginning and the end of its own pause."""
        job = self._cache.stored(key)
        if job is None:
            self._reported.pop(key, None)
            return False
        reported = self._reported.get(key) == job.uid
        if job.paused and not reported:
            self._reported[key] = job.uid
            message = f"the operator leaves this job and its pods alone; to continue, remove the annotation {PAUSED}"
            self._record_event(key, EventRecord("Paused", message))
        elif reported and not job.paused:
            del self._reported[key]
            self._record_event(key, EventRecord("Unpaused", "the operator reconciles this job again"))
        return job.paused
