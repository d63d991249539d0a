"""Pause of the operator by its setting, and of single jobs by their annotation `mptraining.dev/paused`.

A paused operator watches, keeps its Lease and writes progress, but executes no plan. It leaves a paused job and its
children alone; deadlines continue, and are enforced when the pause ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mptraining_api.spec import PAUSED
from mptraining_operator.plan.actions import EventRecord
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.watch.cache import Cache

_log = logging.getLogger(__name__)

RecordEvent = Callable[[Key, EventRecord], None]


class Pause:
    """State of the pauses. Thread-safe for different jobs.

    `record_event` receives one Event when a job is paused and one when it continues.
    """

    def __init__(self, cache: Cache, record_event: RecordEvent, *, operator_paused: bool) -> None:
        self._cache = cache
        self._record_event = record_event
        self._operator_paused = operator_paused
        # The uids of jobs whose pause an Event has reported.
        self._reported: dict[Key, str] = {}
        if operator_paused:
            _log.warning("paused by the setting paused: no job is started, restarted or ended")

    @property
    def operator_paused(self) -> bool:
        return self._operator_paused

    def paused_jobs(self) -> int:
        """Return the number of jobs that their annotation pauses."""
        return sum(job.paused for job in self._cache.jobs())

    def pause_operator(self, paused: bool) -> bool:
        """Pause the operator, or let it continue; return whether a pause ended, so that every job must be queued."""
        before, self._operator_paused = self._operator_paused, paused
        if before == paused:
            return False
        if paused:
            _log.warning("paused by the setting paused: no job is started, restarted or ended")
        else:
            _log.warning("no longer paused: every job is reconciled")
        return not paused

    def holds(self, key: Key) -> bool:
        """Return whether the job must be left alone; report the beginning and the end of its own pause."""
        job = self._cache.stored(key)
        if job is None:
            self._reported.pop(key, None)
            return self._operator_paused
        reported = self._reported.get(key) == job.uid
        if job.paused and not reported:
            self._reported[key] = job.uid
            message = f"the operator leaves this job and its pods alone; to continue, remove the annotation {PAUSED}"
            self._record_event(key, EventRecord("Paused", message))
        elif reported and not job.paused:
            del self._reported[key]
            self._record_event(key, EventRecord("Unpaused", "the operator reconciles this job again"))
        return self._operator_paused or job.paused
