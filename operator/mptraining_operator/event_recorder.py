"""Best-effort recorder of Kubernetes Events about jobs, in a thread of its own.

Repeated Events with the same message about the same job are one object with a count.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mptraining_api.kubernetes_api import EVENTS, ApiProblem
from mptraining_api.spec import API_VERSION, KIND
from mptraining_api.status import format_time
from mptraining_operator.cluster import Cluster
from mptraining_operator.plan.actions import EventRecord
from mptraining_operator.plan.snapshot import Key, Snapshot
from mptraining_operator.resources.names import OPERATOR

_log = logging.getLogger(__name__)

# The queue fills only if the API server is slow; further Events are then dropped.
LONGEST_QUEUE = 1_000
# Kubernetes' limit for the message of an Event.
LONGEST_MESSAGE = 1_024
# Seconds between two Events: at most ten a second.
_PAUSE = 0.1
# Seconds before the count of a repeated Event is raised again.
_REPEATED_AFTER = 300.0
_REMEMBERED = 5_000


@dataclass(frozen=True, slots=True)
class _QueuedEvent:
    key: Key
    uid: str
    record: EventRecord

    @property
    def name(self) -> str:
        """The name of the Event object: equal for equal records about the same job."""
        record = self.record
        text = "\n".join((self.uid, record.type, record.reason, record.message))
        return f"{self.key.name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


class EventRecorder:
    """Queue of Events and the thread that writes them; `clock` is in seconds since 1970."""

    def __init__(self, cluster: Cluster, *, host: str, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._host = host
        self._clock = clock
        self._waiting: queue.Queue[_QueuedEvent | None] = queue.Queue(LONGEST_QUEUE)
        # Count and time of the last write, by the name of the Event object.
        self._written: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-recorder", daemon=True)
        self.dropped = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Write the Events still in the queue, for up to `seconds`, and stop."""
        self._stopping.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        # SIGTERM may come before the start.
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def record(self, snapshot: Snapshot, record: EventRecord) -> None:
        """Queue an Event without blocking; drop it if the queue is full."""
        try:
            self._waiting.put_nowait(_QueuedEvent(snapshot.key, snapshot.uid, record))
        except queue.Full:
            self.dropped += 1

    def write_next(self, block: bool = False) -> bool:
        """Write the oldest queued Event; return False if the queue is empty or stopped. For the thread and tests."""
        try:
            event = self._waiting.get(block)
        except queue.Empty:
            return False
        if event is None:
            return False
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
        now = self._clock()
        count, last = self._written.get(event.name, (0, 0.0))
        if count and now - last < _REPEATED_AFTER:
            return
        if count and self._repeat(event, count + 1, now):
            self._remember(event, count + 1, now)
            return
        try:
            self._cluster.create(EVENTS, event.key.namespace, self._event(event, now))
        except ApiProblem as problem:
            # The Event was written before this replica started.
            if problem.status != 409:
                raise
        self._remember(event, 1, now)

    def _repeat(self, event: _QueuedEvent, count: int, now: float) -> bool:
        """Update the count of an Event; return whether the Event still exists."""
        try:
            self._cluster.patch(
                EVENTS, event.key.namespace, event.name, {"count": count, "lastTimestamp": format_time(now)}
            )
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            return False
        return True

    def _remember(self, event: _QueuedEvent, count: int, now: float) -> None:
        self._written[event.name] = count, now
        self._written.move_to_end(event.name)
        while len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    def _event(self, event: _QueuedEvent, now: float) -> dict[str, Any]:
        record, key = event.record, event.key
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": key.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
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
            "source": {"component": OPERATOR, "host": self._host},
            "reportingComponent": OPERATOR,
            "reportingInstance": self._host,
        }
