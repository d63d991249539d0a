"""Informer: lists and watches of resources, as client-go's; each resource in each namespace has its own errors.

A list supersedes what was known before it began: an object that it lacks was deleted. A watch begins at the version of
a list, resumes from the last version that it received, and begins with a list again when the API server does not have
that version (410, 504) or has been silent for longer than between two bookmarks: after the restore of an etcd backup,
it is silent until it reaches that version. kopf watches the primary resources (`kopf_streams`), which are listed here.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import msgspec

from mptraining_api.kubernetes_api import ApiProblem, Resource
from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.runtime.metrics import Metrics
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue

_log = logging.getLogger(__name__)

# The right is missing, as in a namespace that was deleted with its RoleBinding, or the resource is.
_REFUSED = (403, 404)
# Gone: the version is too old. Gateway Timeout: it is too large.
_NO_VERSION = (410, 504)
# Seconds without an event or a bookmark, which the API server sends about once a minute; more than between two of them.
SILENT_SECONDS = 75.0
# Seconds between two lists of the leader: a proxy may lose an event, and kopf reports no deletion between two watches.
RELIST_SECONDS = 600.0
# Seconds until the list after a watch of kopf began again, and between two such lists: one covers all its objects.
_SOON = 5.0
_FRESH = 60.0
# Seconds until a list or a watch that failed is tried again; the pause doubles.
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch; `object` is JSON of the watched kind, or a metav1.Status in an event of type ERROR."""

    type: str
    object: msgspec.Raw


_EVENT = msgspec.json.Decoder(WatchEvent)


class Stream(ABC):
    """One resource that is watched: its objects go into a cache, and their keys into a queue. Thread-safe."""

    resource: ClassVar[Resource]
    label_selector: ClassVar[str] = ""
    # Watched by kopf.
    primary: ClassVar[bool] = False
    # Seconds from a change to the reconcile, which handles all changes until then.
    coalesce: ClassVar[float] = 0.0
    # How to install the resource, for the log.
    install: ClassVar[str] = ""

    def __init__(self, queue: WorkQueue) -> None:
        self.queue = queue

    @property
    def selectors(self) -> dict[str, str]:
        """The query parameters of a list or watch."""
        return {"labelSelector": self.label_selector} if self.label_selector else {}

    def put(self, received: Any, listed: int | None = None) -> str:
        """Store an added, modified or listed object; return its uid. `listed` is the number of its list."""
        key, uid, version = self._identity(received)
        if key is not None and self._store(key, version, received, listed):
            self.queue.add(key, self.coalesce)
        return uid

    def remove(self, received: Any) -> None:
        """Remove a deleted object, given in its last state."""
        key, uid, version = self._identity(received)
        if key is not None:
            self.forget(key, uid, version)

    def forget(self, key: Key, uid: str, version: int) -> None:
        """Remove the object of that uid, known at `version` to be deleted."""
        if self._drop(key, uid, version):
            self.queue.add(key, self.coalesce)

    @abstractmethod
    def decode(self, text: bytes) -> Any:
        """Decode the JSON of one object."""

    def of_mapping(self, raw: dict[str, Any]) -> Any:
        """Return what `decode` returns for the object that kopf decoded."""
        return self.decode(msgspec.json.encode(raw))

    @abstractmethod
    def begin_list(self) -> int:
        """Return the number of a list that begins now, for `listed` of its objects."""

    @abstractmethod
    def known_before(self, listed: int) -> list[tuple[Key, str]]:
        """Return the objects (key, uid) with no update since that list began: deleted, if the list lacks them."""

    @abstractmethod
    def _identity(self, received: Any) -> tuple[Key | None, str, int]:
        """Return the key that the object belongs to, if any, and the object's uid and version."""

    @abstractmethod
    def _store(self, key: Key, version: int, received: Any, listed: int | None) -> bool:
        """Store the object; return whether its key must be reconciled."""

    @abstractmethod
    def _drop(self, key: Key, uid: str, version: int) -> bool:
        """Remove the object; return whether its key must be reconciled."""


@dataclass(eq=False)
class Source:
    """One resource in one namespace, or in all (None): its lists, and whether its objects are known.

    Unknown objects must not be planned with: no list of this term has succeeded, or the right to list was withdrawn.
    `clock` is monotonic, in seconds.
    """

    cluster: Cluster
    stream: Stream
    namespace: str | None
    clock: Callable[[], float]
    metrics: Metrics

    def __post_init__(self) -> None:
        self.known = False
        # Whether the API server has answered a list, be it that it refuses.
        self.answered = False
        self.problem: ApiProblem | None = None
        # When it is listed next, and when it was listed last.
        self.due = self.listed_at = -math.inf
        # The version of the last list, and the newest that was listed or watched.
        self.version = self.newest = 0
        # Whether versions have gone back in the last list, as after the restore of a backup of etcd.
        self.restored = False
        # The list thread, a watch and a new term may list at the same time: the last one counts.
        self._listing = threading.Lock()
        self._pause = FIRST_PAUSE

    def list(self, *, begins_term: bool = False) -> None:
        """List the resource; an error is kept in `problem`, and the list is due again."""
        with self._listing:
            self._list_and_judge(begins_term=begins_term)

    def _list_and_judge(self, *, begins_term: bool) -> None:
        plural, began = self.stream.resource.plural, self.clock()
        self.restored = False
        try:
            version = self._list()
        except ApiProblem as problem:
            self.problem = problem
            self.answered = self.answered or problem.status in _REFUSED
            # A list that fails for another reason leaves what the watches report.
            self.known = self.known and not (begins_term or problem.status in _REFUSED)
            self.due = self.clock() + max(self._pause, problem.retry_after or 0.0)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            return
        self.restored = version < self.newest
        self.version = self.newest = version
        self.problem, self._pause = None, FIRST_PAUSE
        self.known = self.answered = True
        self.listed_at = self.clock()
        self.due = self.listed_at + RELIST_SECONDS
        self.metrics.observe_list(plural, self.listed_at - began)

    def _list(self) -> int:
        listed = self.stream.begin_list()
        seen: set[str] = set()
        version = 0
        pages = self.cluster.pages(self.stream.resource, self.namespace, **self.stream.selectors)
        for items, version in pages:  # noqa: B007 - that of the last page
            for item in items:
                try:
                    seen.add(self.stream.put(self.stream.decode(item), listed))
                except Exception:  # noqa: BLE001 - one malformed object must not stop the list
                    metadata = msgspec.json.decode(item)["metadata"]
                    seen.add(metadata["uid"])
                    where = f"{metadata.get('namespace')}/{metadata.get('name')}"
                    _log.exception("one of the %s is skipped: %s", self.stream.resource.plural, where)
        for key, uid in self.stream.known_before(listed):
            if uid not in seen and self.namespace in (None, key.namespace):
                self.stream.forget(key, uid, version)
        return version


@dataclass(eq=False)
class Reflector(Source):
    """A source that is also watched, in a thread of its own. `relist` lists it when its watch cannot resume."""

    relist: Callable[[Source], None]

    def __post_init__(self) -> None:
        super().__post_init__()
        # The version of the last event.
        self._watched = ""
        # Whether the watch begins with a list. A running one must end, too, when versions have gone back: the API
        # server is silent until it reaches the one watched from.
        self._list_first = True
        self._heard = 0.0
        # The HTTP code of the last error, which is logged once.
        self._logged: int | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {self.stream.resource.plural}", daemon=True)

    def start(self) -> None:
        """Start to watch from the version of the last list; without one, list first."""
        self._watched, self._list_first = str(self.version), not self.version
        self._heard = self.clock()
        self._thread.start()

    def begin_again(self) -> None:
        """Begin again with a list, at the next event or after the silence."""
        self._list_first = True

    def stop(self) -> None:
        """Stop before the next event; the thread may wait for it until the API server ends the watch."""
        self._stopping.set()

    @property
    def ended(self) -> bool:
        """Whether the thread has ended, not whether it has begun."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def _run(self) -> None:
        plural, pause = self.stream.resource.plural, FIRST_PAUSE
        while not self._stopping.is_set():
            began = self.clock()
            try:
                self.watch_once()
            except ApiProblem as problem:
                # 0: the connection ended or is silent, which is usual; the watch resumes where it was.
                usual = problem.status in (0, *_NO_VERSION)
                level = logging.INFO if usual or problem.status == self._logged else logging.WARNING
                self._logged = problem.status
                _log.log(level, "the watch of %s ended: %s", plural, problem)
                self.metrics.count_watch_restart(plural)
            except Exception:  # noqa: BLE001 - the thread must keep watching
                _log.exception("an error in the watch of %s", plural)
            short = self.clock() - began < pause
            pause = min(2 * pause, LONGEST_PAUSE) if short else FIRST_PAUSE
            if short:
                self._stopping.wait(pause)

    def watch_once(self) -> None:
        """Watch until the API server ends the watch; list first if it no longer has the version. Raises ApiProblem."""
        if self._list_first:
            self.relist(self)
            if self.problem is not None:
                raise self.problem
            self._watched, self._heard, self._list_first = str(self.version), self.clock(), False
        events = self.cluster.watch(self.stream.resource, self.namespace, self._watched, **self.stream.selectors)
        try:
            for line in events:
                if self._stopping.is_set() or self._list_first:
                    return
                self._heard = self.clock()
                self._take(_EVENT.decode(line))
                self._logged = None
        except ApiProblem as problem:
            if problem.status in _NO_VERSION or self.clock() - self._heard > SILENT_SECONDS:
                self.begin_again()
            raise

    def _heard_version(self, version: str) -> None:
        self._watched = version
        self.newest = max(self.newest, int(version))

    def _take(self, event: WatchEvent) -> None:
        plural = self.stream.resource.plural
        self.metrics.watch_event(plural)
        if event.type == "BOOKMARK":
            self._heard_version(msgspec.json.decode(event.object)["metadata"]["resourceVersion"])
            return
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object)
            raise ApiProblem(status.get("code", 0), status.get("reason", ""), status.get("message", ""))
        try:
            received = self.stream.decode(event.object)
            self._heard_version(received.metadata.resource_version)
            if event.type == "DELETED":
                self.stream.remove(received)
            else:
                self.stream.put(received)
        except Exception:  # noqa: BLE001 - one malformed object must not stop the watch
            _log.exception("an event about one of the %s is skipped", plural)


@dataclass(eq=False)
class Informer:
    """The sources of these streams in each namespace; empty `served` are all.

    A thread lists each source until it succeeds, and while `leading`, every ten minutes again: a standby's watches are
    enough until it leads. `on_known` is called when a source is known that was not, `on_restored` when resourceVersions
    have gone back, and `on_relisted` after the lists of the thread. `clock` is monotonic, in seconds.
    """

    cluster: Cluster
    streams: Sequence[Stream]
    served: Sequence[str]
    clock: Callable[[], float]
    metrics: Metrics
    _: KW_ONLY
    leading: Callable[[], bool]
    on_known: Callable[[], None]
    on_restored: Callable[[], None]
    on_relisted: Callable[[], None]

    def __post_init__(self) -> None:
        self.namespaces: tuple[str | None, ...] = tuple(self.served) or (None,)
        # Children before the objects that they belong to, which are planned as soon as they are known.
        ordered = sorted(self.streams, key=lambda stream: stream.primary)
        self.sources: tuple[Source, ...] = tuple(
            Source(self.cluster, stream, namespace, self.clock, self.metrics)
            if stream.primary
            else Reflector(
                self.cluster, stream, namespace, self.clock, self.metrics, lambda source: self._list((source,))
            )
            for namespace in self.namespaces
            for stream in ordered
        )
        self._reflectors = [source for source in self.sources if isinstance(source, Reflector)]
        # The namespaces with a problem that was logged.
        self._reported: set[tuple[str | None, int]] = set()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="list", daemon=True)
        # Set once the API server has answered about every source.
        self.answered = threading.Event()

    def start(self) -> None:
        """List everything, in a thread."""
        self._thread.start()

    def watch(self) -> None:
        """Start the watches, once `answered`."""
        for reflector in self._reflectors:
            reflector.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        for reflector in self._reflectors:
            reflector.stop()

    def ended_watches(self) -> bool:
        """Return whether the thread of a watch has ended; it may not have begun."""
        return any(reflector.ended for reflector in self._reflectors)

    def is_known(self, streams: Sequence[Stream], namespace: str | None) -> bool:
        """Return whether the objects of all these streams in the namespace are known."""
        return all(
            source.known
            for source in self.sources
            if source.stream in streams and (source.namespace is None or source.namespace == namespace)
        )

    def unavailable(self) -> dict[str, str]:
        """Return the reason of each of the given namespaces of which a list failed."""
        return {
            source.namespace: source.problem.reason for source in self.sources if source.namespace and source.problem
        }

    def request_list(self) -> None:
        """Request lists after a watch of kopf began again: within seconds, or later if the last ones are recent."""
        now = self.clock()
        for source in self.sources:
            source.due = min(source.due, max(now + _SOON, source.listed_at + _FRESH))
        self._wake.set()

    def list_primary(self, namespace: str | None) -> None:
        """List the primary resources of the namespace, whose watches have ended."""
        self._list([source for source in self.sources if source.stream.primary and source.namespace == namespace])
        self._wake.set()

    def begin_term(self) -> None:
        """List every source again; one that cannot be listed is unknown, and the thread lists it until it can."""
        self._list(self.sources, begins_term=True)
        self._wake.set()

    def list_due(self) -> float | None:
        """List the sources that are due; return the seconds until the next one is, or None if none will be."""
        now, leading = self.clock(), self.leading()
        due = [source for source in self.sources if source.due <= now and self._is_listed(source, leading)]
        if due:
            self._list(due)
            if leading and any(source.problem is None for source in due):
                self.on_relisted()
        dues = [source.due for source in self.sources if self._is_listed(source, leading)]
        return max(0.0, min(dues) - self.clock()) if dues else None

    def _is_listed(self, source: Source, leading: bool) -> bool:
        return leading or not source.known or source.problem is not None

    def _list(self, sources: Sequence[Source], *, begins_term: bool = False) -> None:
        became_known = False
        for source in sources:
            was_known = source.known
            source.list(begins_term=begins_term)
            self._report(source)
            became_known = became_known or (source.known and not was_known)
        if all(source.answered for source in self.sources):
            self.answered.set()
        if became_known:
            self.on_known()
        if any(source.restored for source in sources):
            _log.warning("resourceVersions have gone back, as after the restore of a backup of etcd")
            for reflector in self._reflectors:
                reflector.begin_again()
            self.on_restored()

    def _report(self, source: Source) -> None:
        """Log a problem of a namespace once, and its end."""
        problem, where = source.problem, source.namespace
        if problem is not None:
            if (where, problem.status) in self._reported:
                return
            self._reported.add((where, problem.status))
            missing = problem.status == 404 and source.stream.install
            cause = f"{source.stream.resource.plural} cannot be listed: {missing or problem}"
            if problem.status == 0:
                cause = f"the API server does not answer: {problem}"
            if where:
                cause = f"namespace {where} is not served until it can be listed again: {cause}"
            _log.warning("%s", cause)
        elif all(other.problem is None for other in self.sources if other.namespace == where):
            before = {report for report in self._reported if report[0] == where}
            self._reported -= before
            if before and where:
                _log.info("namespace %s is served", where)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                seconds = self.list_due()
            except Exception:  # noqa: BLE001 - the thread must keep listing
                _log.exception("an error while listing; trying again in %.0f s", LONGEST_PAUSE)
                seconds = LONGEST_PAUSE
            self._wake.wait(seconds)
