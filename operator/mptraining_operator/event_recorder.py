"""Kubernetes events about jobs, for `kubectl describe`: best effort, on a thread of its own, never in anyone's way.

The same words about the same job are one event whose count rises.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from mptraining_api.spec import API_VERSION, KIND
from mptraining_operator.cluster import EVENTS, ApiProblem, Raw, Resource
from mptraining_operator.plan.actions import EventRecord
from mptraining_operator.plan.snapshot import Key, Snapshot
from mptraining_operator.resources.names import OPERATOR

_log = logging.getLogger(__name__)

# More than these wait only when the API server is slow; the newest are dropped then.
LONGEST_QUEUE = 1_000
# Kubernetes' bound for the message of an event.
LONGEST_MESSAGE = 1_024
# Between two events: ten a second at most.
_PAUSE = 0.1
# The same words are not said again before these: seconds.
_REPEATED_AFTER = 300.0
_REMEMBERED = 5_000


class Events(Protocol):
    """What is needed of `cluster.Cluster`."""

    def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any]) -> Raw: ...

    def patch(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> Raw: ...


@dataclass(frozen=True, slots=True)
class _Said:
    key: Key
    uid: str
    announcement: EventRecord

    @property
    def name(self) -> str:
        """Of the event: the same for the same words about the same job."""
        told = self.announcement
        words = "\n".join((self.uid, told.type, told.reason, told.message))
        return f"{self.key.name}.{hashlib.sha256(words.encode()).hexdigest()[:16]}"


class Announcer:
    """`announce` only puts into a queue; `clock` in seconds since 1970."""

    def __init__(self, events: Events, *, host: str, clock: Callable[[], float]) -> None:
        self._events = events
        self._host = host
        self._clock = clock
        self._waiting: queue.Queue[_Said | None] = queue.Queue(LONGEST_QUEUE)
        # How often, and when last, by the event's name.
        self._said: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="announce", daemon=True)
        self.dropped = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Says what is still waiting, as far as the time goes."""
        self._stopping.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(seconds)

    def announce(self, snapshot: Snapshot, announcement: EventRecord) -> None:
        """Says it soon, or never when too much is waiting."""
        try:
            self._waiting.put_nowait(_Said(snapshot.key, snapshot.uid, announcement))
        except queue.Full:
            self.dropped += 1

    def say_next(self, block: bool = False) -> bool:
        """Says what has waited longest; False when nothing waits or all is over. For the thread, and for tests."""
        try:
            said = self._waiting.get(block)
        except queue.Empty:
            return False
        if said is None:
            return False
        try:
            self._say(said)
        except ApiProblem as problem:
            _log.info("an event was not written: %s", problem, extra={"job": str(said.key)})
        except Exception:  # noqa: BLE001 - the next event may fare better
            _log.exception("an event was not written", extra={"job": str(said.key)})
        return True

    def _run(self) -> None:
        while self.say_next(block=True):
            if not self._stopping.is_set():
                self._stopping.wait(_PAUSE)

    def _say(self, said: _Said) -> None:
        now = self._clock()
        count, last = self._said.get(said.name, (0, 0.0))
        if count and now - last < _REPEATED_AFTER:
            return
        if count and self._repeat(said, count + 1, now):
            self._remember(said, count + 1, now)
            return
        try:
            self._events.create(EVENTS, said.key.namespace, self._event(said, now))
        except ApiProblem as problem:
            # Said before this operator started.
            if problem.status != 409:
                raise
        self._remember(said, 1, now)

    def _repeat(self, said: _Said, count: int, now: float) -> bool:
        """Whether the event still exists and now counts one more."""
        try:
            self._events.patch(EVENTS, said.key.namespace, said.name, {"count": count, "lastTimestamp": _time(now)})
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            return False
        return True

    def _remember(self, said: _Said, count: int, now: float) -> None:
        self._said[said.name] = count, now
        self._said.move_to_end(said.name)
        while len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)

    def _event(self, said: _Said, now: float) -> dict[str, Any]:
        told, key = said.announcement, said.key
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": said.name, "namespace": key.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": key.namespace,
                "name": key.name,
                "uid": said.uid,
            },
            "reason": told.reason,
            "message": told.message[:LONGEST_MESSAGE],
            "type": told.type,
            "count": 1,
            "firstTimestamp": _time(now),
            "lastTimestamp": _time(now),
            "source": {"component": OPERATOR, "host": self._host},
            "reportingComponent": OPERATOR,
            "reportingInstance": self._host,
        }


def _time(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
