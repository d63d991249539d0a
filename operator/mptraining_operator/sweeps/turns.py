"""Turns of the sweeps of a namespace whose workers are limited (limits.workersPerNamespace).

A sweep creates a trial only when there are workers for it. Without turns the sweep whose trial has just ended takes
its workers again at once, and another sweep, or a job that waits, never gets any. The sweep with the fewest is the
next, of equal ones the one whose last trial is the oldest; if its trials are larger than what is free, the others
wait until it has them. Sweeps take nothing that a waiting job outside of sweeps can use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.runtime.values import Key
from mptraining_operator.sweeps.cache import StoredSweep

# Seconds until a sweep that waits for workers looks again.
LOOK_AGAIN = 1.0
# Seconds after which a sweep that has not looked again no longer waits.
_FORGOTTEN = 10 * LOOK_AGAIN


@dataclass(slots=True)
class _Contender:
    """A sweep: the workers of one trial, when one was granted last, and when one was last denied."""

    key: Key
    need: int = 1
    granted: float = 0.0
    asked: float | None = None


@dataclass(eq=False)
class Turns:
    """Grants of trials. `most` is limits.workersPerNamespace, None for no limit; `clock` is monotonic, in seconds.

    `wake_sweep` and `wake_job` queue a sweep or a job that may start now. Thread-safe.
    """

    jobs: Cache
    most: int | None
    clock: Callable[[], float]
    wake_sweep: Callable[[Key], None]
    wake_job: Callable[[Key], None]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._contenders: dict[str, _Contender] = {}

    @property
    def limited(self) -> bool:
        return self.most is not None

    def grant(self, sweep: StoredSweep, need: int) -> int | None:
        """Return how many trials of `need` workers the sweep may create now; None for any number.

        A sweep that gets 0 waits for its turn, and must ask again after `LOOK_AGAIN` seconds.
        """
        if self.most is None or need > self.most:
            # Jobs that no namespace has workers for say so themselves.
            return None
        with self._lock:
            now, namespace = self.clock(), sweep.key.namespace
            contender = self._contenders.setdefault(sweep.uid, _Contender(sweep.key))
            contender.key, contender.need = sweep.key, need
            free = self._free(namespace)
            if free < need or self._leave_to_jobs(namespace):
                contender.asked = now
                return 0
            others = [
                (uid, other)
                for uid, other in self._contenders.items()
                if uid != sweep.uid
                and other.key.namespace == namespace
                and other.asked is not None
                and now < other.asked + _FORGOTTEN
            ]
            first = min((self._rank(uid, other) for uid, other in others), default=None)
            if first is not None and first < self._rank(sweep.uid, contender):
                contender.asked = now
                for _, other in others:
                    self.wake_sweep(other.key)
                return 0
            return 1 if others else free // need

    def created(self, sweep: StoredSweep) -> None:
        """Record that a trial was created by a grant."""
        with self._lock:
            if (contender := self._contenders.get(sweep.uid)) is not None:
                contender.granted, contender.asked = self.clock(), None

    def leave(self, sweep_uid: str) -> None:
        """Forget a sweep that wants no trial: it has ended, is suspended, paused, or deleted."""
        with self._lock:
            if (contender := self._contenders.get(sweep_uid)) is not None:
                contender.asked = None

    def forget(self, sweep_uid: str) -> None:
        with self._lock:
            self._contenders.pop(sweep_uid, None)

    def _rank(self, uid: str, contender: _Contender) -> tuple[int, float]:
        live, counted = self.jobs.trial_workers(contender.key.namespace, uid)
        return max(counted, live * contender.need), contender.granted

    def _free(self, namespace: str) -> int:
        """Return the workers that no job has or will take: a trial that was created has none before it starts."""
        promised = 0
        for uid, contender in self._contenders.items():
            if contender.key.namespace == namespace:
                live, counted = self.jobs.trial_workers(namespace, uid)
                promised += max(0, live * contender.need - counted)
        return (self.most or 0) - self.jobs.workers_of(namespace) - promised

    def _leave_to_jobs(self, namespace: str) -> bool:
        """Return whether a job outside of sweeps waits that could run once enough trials have ended.

        Otherwise small trials, one after the other, starve a job that needs many workers. A job that
        waits for other jobs has no use for the workers of trials. Jobs for which there is room are queued.
        """
        most = self.most or 0
        jobs = self.jobs.outside_of_sweeps(namespace)
        used = sum(workers for _, workers in jobs)
        waiting = [
            job
            for job, workers in jobs
            if job.awaited_workers and not (job.paused or job.deleting) and used - workers + job.awaited_workers <= most
        ]
        free = most - self.jobs.workers_of(namespace)
        for job in waiting:
            if job.awaited_workers <= free:
                self.wake_job(job.key)
        return bool(waiting)
