"""The newest Warning event about each object of a namespace, from lists that all of its jobs share.

The API server has no cache of events: whatever a list selects, it reads and decodes every event of the namespace. In a
namespace with 10,000 jobs a list took 4.6 s, and a list for each job that started slowly delayed all of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from mptraining_api.kubernetes_api import EVENTS, ApiProblem
from mptraining_operator.jobs.plan.snapshot import SeenWarning
from mptraining_operator.jobs.watch import api_objects, parse
from mptraining_operator.runtime.cluster import Cluster

_log = logging.getLogger(__name__)

# Seconds for which a list serves other jobs, and at least this multiple of the time that it took, so that lists of one
# namespace take a twentieth of the time; but not longer than the last.
_REUSE = 10.0
_REUSE_FACTOR = 20.0
_LONGEST_REUSE = 120.0

_DECODER = msgspec.json.Decoder(api_objects.Event)


@dataclass(frozen=True)
class _Listed:
    """The newest warnings by the uid of their object, as (seconds since 1970, event), and how long they serve."""

    began: float
    until: float
    newest: dict[str, tuple[float, api_objects.Event]] = field(default_factory=dict)

    def serves(self, now: float) -> bool:
        # `now` before the beginning: the clock was set back.
        return self.began <= now < self.until


class WarningEvents:
    """Reads Warning events, one list of a namespace at a time. Thread-safe; `clock` is in seconds since 1970."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lists: dict[str, _Listed] = {}
        self._reading: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def newest(self, namespace: str, uid: str) -> SeenWarning:
        """Return the newest warning about the object of that uid, with empty texts if there is none.

        Without the right to list events, or an answer, there is none either: events only explain a wait.
        """
        with self._lock:
            reading = self._reading.setdefault(namespace, threading.Lock())
        with reading:
            listed = self._lists.get(namespace)
            if listed is None or not listed.serves(self._clock()):
                listed = self._list(namespace, listed)
                with self._lock:
                    now = self._clock()
                    self._lists = {name: listed for name, listed in self._lists.items() if listed.serves(now)}
                    self._lists[namespace] = listed
        _, event = listed.newest.get(uid, (0.0, api_objects.Event()))
        return SeenWarning(reason=event.reason, message=event.message, read_at=self._clock())

    def _list(self, namespace: str, before: _Listed | None) -> _Listed:
        """List the warnings; without an answer, return those of the list before."""
        began = self._clock()
        newest: dict[str, tuple[float, api_objects.Event]] = {}
        try:
            for items, _ in self._cluster.pages(EVENTS, namespace, fieldSelector="type=Warning"):
                for item in items:
                    try:
                        event = _DECODER.decode(item)
                    except msgspec.ValidationError as error:
                        _log.info("an event of namespace %s is skipped: %s", namespace, error)
                        continue
                    seen = parse.last_seen(event)
                    about = event.involved_object.uid
                    if parse.explains_wait(event) and seen >= newest.get(about, (0.0,))[0]:
                        newest[about] = seen, event
        except ApiProblem as problem:
            _log.info("the events of namespace %s could not be read: %s", namespace, problem)
            newest = before.newest if before else {}
        now = self._clock()
        return _Listed(began, now + min(max(_REUSE, _REUSE_FACTOR * (now - began)), _LONGEST_REUSE), newest)
