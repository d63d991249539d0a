"""Reflectors: watches of Jobs, pods and sweeps that decode only the fields that the operator reads.

A reflector watches from the version of a list, resumes a watch from the last version that it received, and lists again
when the API server does not have that version (410, 504), as client-go's Reflector does. It also lists again after a
minute without a bookmark: after the restore of an etcd backup, the API server is silent until it reaches that version.
kopf takes ten times the processor time for an event, because it starts a task for each object.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import msgspec

from mptraining_api.kubernetes_api import ApiProblem
from mptraining_operator.cluster import Cluster
from mptraining_operator.watch.api_objects import Bookmark, Status, WatchEvent
from mptraining_operator.watch.informer import CHILD_STREAMS, Receiver, Relister, Stream

_log = logging.getLogger(__name__)

# Gone: the version is too old. Gateway Timeout: it is too large.
_NO_VERSION = (410, 504)
# Seconds without an event or a bookmark, which the API server sends about once a minute; more than between two of them.
SILENT_SECONDS = 75.0
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_EVENT = msgspec.json.Decoder(WatchEvent)
_BOOKMARK = msgspec.json.Decoder(Bookmark)
_STATUS = msgspec.json.Decoder(Status)


class Reflector:
    """One watch in a thread of its own.

    `list_again` lists the resource and returns the version of the list; `clock` is monotonic, in seconds. `on_event`
    receives the resource of each event, `on_restart` that of a watch that ended with an error.
    """

    def __init__(
        self,
        cluster: Cluster,
        receiver: Receiver,
        stream: Stream,
        namespace: str | None,
        list_again: Callable[[], int],
        clock: Callable[[], float],
        on_event: Callable[[str], None] = lambda resource: None,
        on_restart: Callable[[str], None] = lambda resource: None,
    ) -> None:
        self._cluster = cluster
        self._receiver = receiver
        self._stream = stream
        self._namespace = namespace
        self._list_again = list_again
        self._clock = clock
        self._on_restart = on_restart
        self._on_event = on_event
        self._version = ""
        self._heard = 0.0
        # The HTTP code of the last error, which is logged once.
        self._problem: int | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {stream.resource.plural}", daemon=True)

    def start(self, version: int | None) -> None:
        """Start to watch from the version of a list; without one, list first."""
        self._version = str(version or "")
        self._heard = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Stop before the next event; the thread may wait for it until the API server ends the watch."""
        self._stopping.set()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            began = self._clock()
            try:
                self.watch_once()
            except ApiProblem as problem:
                # 0: the connection ended or is silent, which is usual; the watch resumes where it was.
                usual = problem.status in (0, *_NO_VERSION)
                level = logging.INFO if usual or problem.status == self._problem else logging.WARNING
                self._problem = problem.status
                _log.log(level, "the watch of %s ended: %s", self._stream.resource.plural, problem)
                self._on_restart(self._stream.resource.plural)
            except Exception:  # noqa: BLE001 - the thread must keep watching
                _log.exception("an error in the watch of %s", self._stream.resource.plural)
            short = self._clock() - began < pause
            pause = min(2 * pause, _LONGEST_PAUSE) if short else _FIRST_PAUSE
            if short:
                self._stopping.wait(pause)

    def watch_once(self) -> None:
        """Watch until the API server ends the watch; list first if it no longer has the version. Raises ApiProblem."""
        if not self._version:
            self._version = str(self._list_again())
            self._heard = self._clock()
        resource = self._stream.resource
        try:
            for line in self._cluster.watch(resource, self._namespace, self._version, **self._stream.selectors):
                if self._stopping.is_set():
                    return
                self._heard = self._clock()
                self._take(_EVENT.decode(line))
                self._problem = None
        except ApiProblem as problem:
            if problem.status in _NO_VERSION or self._clock() - self._heard > SILENT_SECONDS:
                self._version = ""
            raise

    def _take(self, event: WatchEvent) -> None:
        resource = self._stream.resource
        self._on_event(resource.plural)
        if event.type == "BOOKMARK":
            self._version = _BOOKMARK.decode(event.object).metadata.resource_version
            return
        if event.type == "ERROR":
            status = _STATUS.decode(event.object)
            raise ApiProblem(status.code, status.reason, status.message)
        try:
            found = self._stream.decode(event.object)
            self._version = found.metadata.resource_version
            if event.type == "DELETED":
                self._receiver.remove(resource, found)
            else:
                self._receiver.put(resource, found)
        except Exception:  # noqa: BLE001 - one malformed object must not stop the watch
            _log.exception("an event about one of the %s is skipped", resource.plural)


class Reflectors:
    """The reflectors of these streams in every namespace that the relister lists."""

    def __init__(
        self,
        cluster: Cluster,
        receiver: Receiver,
        relister: Relister,
        clock: Callable[[], float],
        on_event: Callable[[str], None] = lambda resource: None,
        on_restart: Callable[[str], None] = lambda resource: None,
        streams: tuple[Stream, ...] = CHILD_STREAMS,
    ) -> None:
        self._relister = relister
        self._all = {
            (stream.resource, namespace): Reflector(
                cluster,
                receiver,
                stream,
                namespace,
                lambda stream=stream, namespace=namespace: relister.list_one(stream, namespace),  # type: ignore[misc]
                clock,
                on_event,
                on_restart,
            )
            for stream in streams
            for namespace in relister.namespaces
        }

    def start(self) -> None:
        """Start after the first complete list."""
        for place, reflector in self._all.items():
            reflector.start(self._relister.versions.get(place))

    def stop(self) -> None:
        for reflector in self._all.values():
            reflector.stop()

    def ended(self) -> int:
        """Return the number of reflectors whose thread has ended."""
        return sum(not each.alive for each in self._all.values())
