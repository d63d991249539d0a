"""Best-effort recorder of Kubernetes Events about jobs and sweeps, in a thread of its own.

Repeated Events with the same message about the same job are one object with a count. Warnings are written before other
Events, and each job has a rate limit, so that the start of many jobs does not delay or drop the failure of one.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mptraining_api.kubernetes_api import EVENTS, ApiProblem
from mptraining_api.spec import API_VERSION
from mptraining_api.status import EventRecord, format_time
from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.values import OPERATOR, Key

_log = logging.getLogger(__name__)

# Events of one type that wait to be written; further ones are dropped.
LONGEST_QUEUE = 5_000
# Events of one type about one job: a token bucket with the size of client-go's spam filter (events_cache.go: 25), which
# refills faster than there (one in 300 s), because each restart of a job has its own message.
JOB_BURST = 25
JOB_REFILL_SECONDS = 30.0
# Kubernetes' limit for the message of an Event.
LONGEST_MESSAGE = 1_024
# Seconds between two Events: at most ten a second.
_PAUSE = 0.1
# Seconds before the count of a repeated Event is raised again.
_REPEATED_AFTER = 300.0
_REMEMBERED = 5_000


@dataclass(frozen=True, slots=True)
class _QueuedEvent:
    kind: str
    key: Key
    uid: str
    record: EventRecord

    @property
    def name(self) -> str:
        """The name of the Event object: equal for equal records about the same object."""
        record = self.record
        text = "\n".join((self.uid, record.type, record.reason, record.message))
        return f"{self.key.name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(eq=False)
class EventRecorder:
    """Queues of Events and the thread that writes them.

    `clock` is in seconds since 1970. Events that are dropped are counted; a repeated Event within five minutes is not.
    """

    cluster: Cluster
    host: str
    clock: Callable[[], float]
    metrics: Metrics

    def __post_init__(self) -> None:
        # Guards the queues, the buckets and `_written`; notified when an Event is queued and at the stop.
        self._changed = threading.Condition()
        self._warnings: deque[_QueuedEvent] = deque()
        self._others: deque[_QueuedEvent] = deque()
        # Tokens and the time of the last one taken, by uid and type.
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        # Count and time of the last write, by the name of the Event object.
        self._written: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-recorder", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Write the Events still in the queue, for up to `seconds`, and stop."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        # SIGTERM may come before the start.
        if self._thread.ident is not None:
            self._thread.join(seconds)
        if left := len(self._warnings) + len(self._others):
            _log.warning("%d events were not written before the end", left)

    def record(self, kind: str, key: Key, uid: str, record: EventRecord) -> None:
        """Queue an Event without blocking; drop it if its queue is full or the object has had too many."""
        event = _QueuedEvent(kind, key, uid, record)
        with self._changed:
            now = self.clock()
            if self._repeated_soon(event, now):
                return
            events = self._warnings if record.type == "Warning" else self._others
            full = len(events) >= LONGEST_QUEUE
            if not full and self._take_token((event.uid, record.type), now):
                events.append(event)
                self._changed.notify()
                return
        self.metrics.count_dropped_event("QueueFull" if full else "RateLimited")

    def _repeated_soon(self, event: _QueuedEvent, now: float) -> bool:
        count, last = self._written.get(event.name, (0, 0.0))
        return bool(count) and now - last < _REPEATED_AFTER

    def _take_token(self, bucket: tuple[str, str], now: float) -> bool:
        tokens, last = self._buckets.pop(bucket, (float(JOB_BURST), now))
        tokens = min(float(JOB_BURST), tokens + max(0.0, now - last) / JOB_REFILL_SECONDS)
        taken = tokens >= 1.0
        self._buckets[bucket] = tokens - taken, now
        while len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        return taken

    def write_next(self, block: bool = False) -> bool:
        """Write the oldest queued warning, else the oldest other Event; return False if there is none.

        With `block`, wait for an Event until `stop`. For the thread and tests.
        """
        with self._changed:
            while block and not (self._warnings or self._others or self._stopping.is_set()):
                self._changed.wait()
            events = self._warnings or self._others
            if not events:
                return False
            event = events.popleft()
        try:
            self._write(event)
        except ApiProblem as problem:
            _log.info("an event was not written: %s", problem, extra={"job": str(event.key)})
        except Exception:  # noqa: BLE001 - the thread must keep writing
            _log.exception("an event was not written", extra={"job": str(event.key)})
        return True

    def _run(self) -> None:
        while self.write_next(block=True):
            if not self._stopping.is_set():
                self._stopping.wait(_PAUSE)

    def _write(self, event: _QueuedEvent) -> None:
        now = self.clock()
        if self._repeated_soon(event, now):
            return
        count = self._written.get(event.name, (0, 0.0))[0] + 1
        if count > 1 and not self._raise_count(event, count, now):
            count = 1
        if count == 1:
            try:
                self.cluster.create(EVENTS, event.key.namespace, self._event(event, now))
            except ApiProblem as problem:
                # The Event was written before this replica started.
                if problem.status != 409:
                    raise
        with self._changed:
            self._written[event.name] = count, now
            self._written.move_to_end(event.name)
            while len(self._written) > _REMEMBERED:
                self._written.popitem(last=False)

    def _raise_count(self, event: _QueuedEvent, count: int, now: float) -> bool:
        """Update the count of an Event; return whether the Event still exists."""
        change = {"count": count, "lastTimestamp": format_time(now)}
        try:
            self.cluster.patch(EVENTS, event.key.namespace, event.name, change)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            return False
        return True

    def _event(self, event: _QueuedEvent, now: float) -> dict[str, Any]:
        record, key = event.record, event.key
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": key.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": event.kind,
                "namespace": key.namespace,
                "name": key.name,
                "uid": event.uid,
            },
            "reason": record.reason,
            "message": record.message[:LONGEST_MESSAGE],
            "type": record.type,
            "count": 1,
            "firstTimestamp": format_time(now),
            "lastTimestamp": format_time(now),
            "source": {"component": OPERATOR, "host": self.host},
            "reportingComponent": OPERATOR,
            "reportingInstance": self.host,
        }
