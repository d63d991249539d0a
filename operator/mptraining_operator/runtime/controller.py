"""Controllers: worker threads that reconcile the objects of one kind, for one term of leadership at a time.

An error of one object neither ends a worker nor delays another object. A queue outlives the terms. An object with the
annotation `mptraining.dev/paused` is left alone with its children; deadlines continue, and are enforced when the pause
ends.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Protocol

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_api.spec import PAUSED
from mptraining_api.status import EventRecord
from mptraining_operator.runtime.informer import Informer, Stream
from mptraining_operator.runtime.leader_election import NotLeading, Term
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue

_log = logging.getLogger(__name__)

# Seconds until a worker without work notices the end of its term.
_TERM_CHECK_SECONDS = 1.0
# Seconds without progress after which a worker is stuck; a call takes 35 s at most (`kubernetes_api`).
_STUCK_SECONDS = 120.0
# The number of consecutive failures before an Event reports the problem; most problems are temporary.
_FAILURES_UNTIL_EVENT = 5


class Stored(Protocol):
    """An object in a cache."""

    @property
    def key(self) -> Key: ...

    @property
    def uid(self) -> str: ...

    @property
    def paused(self) -> bool: ...


class Reconciler(ABC):
    """The objects of one kind, and how they are reconciled.

    `kind` names an object in logs and Events; `while_paused` says what the operator does with a paused one; `expected`
    are errors that are not the operator's. An object is reconciled while the objects of its namespace in all `streams`
    are known.
    """

    kind: ClassVar[str]
    while_paused: ClassVar[str]
    expected: ClassVar[tuple[type[Exception], ...]] = (ApiProblem,)
    workers: int
    queue: WorkQueue
    streams: tuple[Stream, ...]

    @abstractmethod
    def objects(self) -> Sequence[Stored]:
        """Return all objects in the cache."""

    @abstractmethod
    def stored(self, key: Key) -> Stored | None:
        """Return the object in the cache."""

    @abstractmethod
    def reconcile(self, key: Key) -> None:
        """Reconcile one object, which may be gone; raise an error to try it again."""

    @abstractmethod
    def record(self, key: Key, record: EventRecord) -> None:
        """Record an Event about an object."""

    @abstractmethod
    def begin_term(self) -> None:
        """Prepare a term, after the lists and before the workers start."""

    @abstractmethod
    def check_cluster(self) -> None:
        """Read again and repair what is not watched: in a term, at its begin and after the lists of the informer."""


@dataclass(eq=False)
class Controller:
    """The workers of one reconciler. `monotonic` is in seconds."""

    reconciler: Reconciler
    informer: Informer
    metrics: Metrics
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self._queue = self.reconciler.queue
        # The uids of the objects whose pause an Event has reported.
        self._paused: dict[Key, str] = {}
        # Key and last progress by thread; without a lock, so that it can be read while a worker is stuck.
        self._working: dict[str, tuple[Key, float]] = {}
        self._threads: list[threading.Thread] = []
        self._term: Term | None = None
        self._changing_term = threading.Lock()

    def queue_all(self) -> None:
        for stored in self.reconciler.objects():
            self._queue.add(stored.key)

    def process(self, key: Key) -> None:
        """Reconcile one key once; an error is logged and retried with exponential backoff."""
        if not self.informer.is_known(self.reconciler.streams, key.namespace):
            return
        kind, extra = self.reconciler.kind, {self.reconciler.kind: str(key)}
        began = self.monotonic()
        try:
            if not self._is_paused(key):
                self.reconciler.reconcile(key)
            self._queue.forget(key)
        except NotLeading as ended:
            # For the next term of this replica.
            self._queue.add(key)
            _log.info("left unfinished: %s", ended, extra=extra)
        except Exception as error:  # noqa: BLE001 - an error of one key must not affect the others
            expected = isinstance(error, self.reconciler.expected)
            self.metrics.count_retry("Api" if isinstance(error, ApiProblem) else "Refused" if expected else "Bug")
            delay = self._queue.retry(key, getattr(error, "retry_after", None) or 0.0)
            problem = str(error) if expected else f"{type(error).__name__}: {error}"
            level = logging.WARNING if expected else logging.ERROR
            _log.log(level, "%s; tried again in %.0f s", problem, delay, extra=extra, exc_info=not expected)
            if self._queue.failures(key) == _FAILURES_UNTIL_EVENT:
                message = f"the operator cannot reconcile this {kind} and keeps retrying: {problem}"
                with suppress(Exception):
                    self.reconciler.record(key, EventRecord("OperatorProblem", message[:1000], "Warning"))
        finally:
            self.metrics.observe_reconcile(kind, self.monotonic() - began)

    def start(self, term: Term) -> bool:
        """Start the workers of `term`; return False if it is over, or if workers of an earlier term still run."""
        with self._changing_term:
            if term.over or any(thread.is_alive() for thread in self._threads):
                return False
            self._term = term
            kind = self.reconciler.kind
            threads = [
                threading.Thread(target=self._work, args=(term,), name=f"{kind}-worker-{number}", daemon=True)
                for number in range(self.reconciler.workers)
            ]
            for thread in threads:
                thread.start()
            # After their start: a thread that has not started cannot be joined.
            self._threads = threads
            return True

    def join(self, seconds: float) -> bool:
        """Wait after the end of the term, or `queue.stop()`; return whether all workers left within `seconds`."""
        until = self.monotonic() + seconds
        with self._changing_term:
            threads = self._threads
        for thread in threads:
            thread.join(max(0.0, until - self.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def note_progress(self) -> None:
        """Restart the time of the calling worker's work: one whose calls are answered, however slowly, is not stuck."""
        thread = threading.current_thread().name
        if thread in self._working:
            self._working[thread] = self._working[thread][0], self.monotonic()

    def stuck(self) -> str | None:
        """Return which worker has ended or makes no progress, for the health check; None if all work."""
        if self._term is not None and not self._term.over:
            ended = sum(not thread.is_alive() for thread in self._threads)
            if ended:
                return f"{ended} worker threads have ended"
        now = self.monotonic()
        for key, since in self._working.copy().values():
            if now - since > _STUCK_SECONDS:
                return f"a worker makes no progress with {key} for {now - since:.0f} s"
        return None

    def _work(self, term: Term) -> None:
        thread = threading.current_thread().name
        while not (term.over or self._queue.stopped):
            key = self._queue.take(timeout=_TERM_CHECK_SECONDS)
            if key is None:
                continue
            self._working[thread] = key, self.monotonic()
            try:
                self.process(key)
            finally:
                del self._working[thread]
                self._queue.done(key)

    def _is_paused(self, key: Key) -> bool:
        """Return whether the object is paused; report the beginning and the end of its pause."""
        stored = self.reconciler.stored(key)
        if stored is None:
            self._paused.pop(key, None)
            return False
        reported = self._paused.get(key) == stored.uid
        if stored.paused and not reported:
            self._paused[key] = stored.uid
            message = f"the operator {self.reconciler.while_paused}; to continue, remove the annotation {PAUSED}"
            self.reconciler.record(key, EventRecord("Paused", message))
        elif reported and not stored.paused:
            del self._paused[key]
            message = f"the operator reconciles this {self.reconciler.kind} again"
            self.reconciler.record(key, EventRecord("Unpaused", message))
        return stored.paused
