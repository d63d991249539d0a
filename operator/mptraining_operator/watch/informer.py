"""Informer: the watched resources, the intake of their objects into cache and queue, and lists of them.

The jobs of a namespace are reconciled after its first list. A list supersedes what was known before it began: an object
that it lacks was deleted. An error concerns one namespace: the others are listed and served.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, PODS, ApiProblem, Resource
from mptraining_operator.cluster import Cluster
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.resources import names
from mptraining_operator.watch import api_objects, parse
from mptraining_operator.watch.cache import Cache, Kind
from mptraining_operator.watch.work_queue import WorkQueue

# Seconds. Children change in bursts, which one reconcile handles.
COALESCE = 0.2


@dataclass(frozen=True, slots=True)
class Stream:
    """One kind of object that is watched and listed; `decode` parses the JSON of one object."""

    resource: Resource
    decode: Callable[[bytes], Any]
    label_selector: str = ""

    @property
    def selectors(self) -> dict[str, str]:
        """The query parameters of a list or watch."""
        return {"labelSelector": self.label_selector} if self.label_selector else {}


# Of MPTrainingJobs spec and status are kept whole: they stay mappings.
JOB_STREAM = Stream(JOBS, msgspec.json.decode)
CHILD_STREAMS = (
    Stream(BATCH_JOBS, msgspec.json.Decoder(api_objects.Job).decode, label_selector=names.JOB),
    Stream(PODS, msgspec.json.Decoder(api_objects.Pod).decode, label_selector=names.JOB),
)
# MPTrainingJobs last, so that their children are already in the cache.
STREAMS = (*CHILD_STREAMS, JOB_STREAM)


class Receiver(ABC):
    """Takes the objects of watches and lists into a cache, as their stream decodes them, and queues their keys.

    Thread-safe.
    """

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue

    def put(self, resource: Resource, found: Any, listed: int | None = None) -> str:
        """Store an added, modified or listed object; return its uid. `listed` is the number of its list."""
        key, uid, version = self._identity(resource, found)
        if key is not None and self._store(resource, key, version, found, listed):
            self._enqueue(resource, key)
        return uid

    def remove(self, resource: Resource, found: Any) -> None:
        """Remove a deleted object, given in its last state."""
        key, uid, version = self._identity(resource, found)
        if key is not None:
            self.forget(resource, key, uid, version)

    def forget(self, resource: Resource, key: Key, uid: str, version: int) -> None:
        """Remove the object of that uid, known at `version` to be deleted."""
        if self._drop(resource, key, uid, version):
            self._enqueue(resource, key)

    @abstractmethod
    def begin_list(self) -> int:
        """Return the number of a list that begins now, for `listed` of its objects."""

    @abstractmethod
    def known_before(self, resource: Resource, listed: int) -> list[tuple[Key, str]]:
        """Return the objects (key, uid) with no update since that list began: deleted, if the list lacks them."""

    @abstractmethod
    def _identity(self, resource: Resource, found: Any) -> tuple[Key | None, str, int]:
        """Return the key that the object belongs to, if any, and the object's uid and version."""

    @abstractmethod
    def _store(self, resource: Resource, key: Key, version: int, found: Any, listed: int | None) -> bool:
        """Store the object; return whether its key must be reconciled."""

    @abstractmethod
    def _drop(self, resource: Resource, key: Key, uid: str, version: int) -> bool:
        """Remove the object; return whether its key must be reconciled."""

    def _enqueue(self, resource: Resource, key: Key) -> None:  # noqa: ARG002 - one delay for all resources
        self._queue.add(key)


class Intake(Receiver):
    """The receiver of jobs and their children."""

    def __init__(self, cache: Cache, queue: WorkQueue) -> None:
        super().__init__(queue)
        self._cache = cache

    def begin_list(self) -> int:
        return self._cache.begin_list()

    def known_before(self, resource: Resource, listed: int) -> list[tuple[Key, str]]:
        kind: Kind = "jobs" if resource == JOBS else "pods" if resource == PODS else "batch_jobs"
        return self._cache.known_before(listed, kind)

    def _identity(self, resource: Resource, found: Any) -> tuple[Key | None, str, int]:
        if resource == JOBS:
            metadata = found["metadata"]
            version = parse.version_number(metadata.get("resourceVersion"))
            return Key(metadata["namespace"], metadata["name"]), metadata["uid"], version
        metadata = found.metadata
        return parse.owner(metadata), metadata.uid, parse.version_number(metadata.resource_version)

    def _store(self, resource: Resource, key: Key, version: int, found: Any, listed: int | None) -> bool:
        if resource == JOBS:
            return self._cache.put_job(parse.job(found), listed)
        if resource == PODS:
            return self._cache.put_pod(key, version, parse.pod(found), listed)
        return self._cache.put_batch_job(key, version, parse.batch_job(found), listed)

    def _drop(self, resource: Resource, key: Key, uid: str, version: int) -> bool:
        remove = self._cache.remove_job if resource == JOBS else self._cache.remove_child
        return remove(key, uid, version)

    def _enqueue(self, resource: Resource, key: Key) -> None:
        self._queue.add(key, 0.0 if resource == JOBS else COALESCE)


_log = logging.getLogger(__name__)

# The right is missing, as in a namespace that was deleted with its RoleBinding, or the resource is.
_REFUSED = (403, 404)
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 15.0
# Seconds until a namespace is listed again that could not be listed; the pause doubles.
_LONGEST_NAMESPACE_PAUSE = 30.0
# Seconds until the relist after kopf listed again, whose list does not report deletions.
_SOON = 5.0
# Seconds between such relists: kopf reports each object of its list, and one relist covers all of them.
_FRESH = 60.0

CRD_MISSING = "the resource MPTrainingJob is not installed: kubectl apply -f charts/mptraining/files/crd.yaml"


class Relister:
    """List all resources once and again every `seconds`, in a thread of its own.

    kopf does not report deletions that happened between two of its watches, and a proxy may lose one. Later lists have
    Jobs and pods only where `decides` returns True: the lists of standbys would cost the API server as much.

    `streams` are listed in their order, and `always` by standbys as well; `crd_missing` is logged when the API server
    does not serve one of them. `clock` is monotonic, in seconds; empty `namespaces` are all. A namespace that cannot be
    listed, as it was deleted or the right was withdrawn, is tried again by itself. `on_available` is called when it
    is listed again, `on_listed` after each list of the thread; neither may raise. `observe_list` receives the resource
    and the seconds of each complete list of it.
    """

    def __init__(
        self,
        cluster: Cluster,
        receiver: Receiver,
        *,
        seconds: float,
        namespaces: tuple[str, ...],
        clock: Callable[[], float],
        on_available: Callable[[], None] = lambda: None,
        on_listed: Callable[[], None] = lambda: None,
        decides: Callable[[], bool] = lambda: True,
        observe_list: Callable[[str, float], None] = lambda resource, seconds: None,
        streams: tuple[Stream, ...] = STREAMS,
        always: tuple[Stream, ...] = (JOB_STREAM,),
        crd_missing: str = CRD_MISSING,
    ) -> None:
        self._cluster = cluster
        self._receiver = receiver
        self._streams = streams
        self._always = always
        self._crd_missing = crd_missing
        self._seconds = seconds
        self.namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._clock = clock
        self._on_available = on_available
        self._on_listed = on_listed
        self._decides = decides
        self._observe_list = observe_list
        # The namespaces whose last list failed.
        self._problems: dict[str | None, ApiProblem] = {}
        # Those whose objects are unknown since then, or since the beginning of the term.
        self._unknown: set[str | None] = set()
        self._requested = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relist", daemon=True)
        self._completed: float | None = None
        self.complete = threading.Event()
        # The version of the last list by resource and namespace.
        self.versions: dict[tuple[Resource, str | None], int] = {}

    def start(self) -> None:
        """Start the thread; `complete` is set after the first complete list."""
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._requested.set()

    def age(self) -> float | None:
        """Return the seconds since the last complete list, or None before the first."""
        return None if self._completed is None else self._clock() - self._completed

    def is_unknown(self, namespace: str) -> bool:
        """Return whether the namespace could not be listed: plans of its jobs would be made from nothing."""
        return namespace in self._unknown

    def listed_namespaces(self) -> tuple[str | None, ...]:
        """Return the namespaces that are not unknown; None is all of them."""
        return tuple(namespace for namespace in self.namespaces if namespace not in self._unknown)

    def unavailable(self) -> dict[str, str]:
        """Return the reason of each of the given namespaces whose last list failed."""
        return {namespace: problem.reason for namespace, problem in self._problems.copy().items() if namespace}

    def request_relist(self) -> None:
        """Request a relist after a watch stream restarted: within seconds, or later if the last list is recent."""
        self._requested.set()

    def seconds_until_relist(self) -> float:
        """Return the seconds until a list that is requested now."""
        age = self.age()
        if age is None:
            return _SOON
        # No later than the next periodic list.
        return min(max(_SOON, _FRESH - age), max(0.0, self._seconds - age))

    def list_until_complete(self, stopping: threading.Event) -> bool:
        """Make a complete list that begins now, with retries; return False if `stopping` is set first.

        The thread lists the namespaces again that could not be listed; until then they are unknown.
        """
        pause = _FIRST_PAUSE
        while not stopping.is_set():
            try:
                self.run_once(begins_term=True)
            except ApiProblem as problem:
                _log.warning("%s; trying again in %.0f s", self._describe(problem), pause)
                pause = max(_FIRST_PAUSE, problem.retry_after or 0.0)
            except Exception:  # noqa: BLE001 - the caller waits for this list
                _log.exception("an error while listing; trying again in %.0f s", pause)
            else:
                if self._problems:
                    self.request_relist()
                return True
            stopping.wait(pause)
        return False

    def run_once(
        self,
        streams: tuple[Stream, ...] = (),
        namespaces: tuple[str | None, ...] = (),
        *,
        begins_term: bool = False,
    ) -> None:
        """List these resources of these namespaces once, or all. Raises ApiProblem if no namespace can be listed.

        Objects listed before the error stay in the cache.
        """
        for namespace in namespaces or self.namespaces:
            try:
                for stream in streams or self._streams:
                    self.versions[stream.resource, namespace] = self.list_one(stream, namespace)
            except ApiProblem as problem:
                self._set_problem(namespace, problem, unknown=begins_term)
            else:
                self._clear_problem(namespace)
        problems = tuple(self._problems.copy().values())
        if len(problems) == len(self.namespaces):
            raise problems[0]
        self._completed = self._clock()
        self.complete.set()

    def _set_problem(self, namespace: str | None, problem: ApiProblem, *, unknown: bool) -> None:
        before = self._problems.get(namespace)
        self._problems[namespace] = problem
        # A list that fails for another reason leaves what the watches report.
        if unknown or problem.status in _REFUSED:
            self._unknown.add(namespace)
        if namespace is not None and (before is None or before.status != problem.status):
            message = "namespace %s is not served until it can be listed again: %s"
            _log.warning(message, namespace, self._describe(problem))

    def _clear_problem(self, namespace: str | None) -> None:
        self._unknown.discard(namespace)
        if self._problems.pop(namespace, None) is not None:
            if namespace is not None:
                _log.info("namespace %s is served", namespace)
            self._on_available()

    def list_one(self, stream: Stream, namespace: str | None) -> int:
        """List one resource and return the version of the list. Raises ApiProblem."""
        resource, began = stream.resource, self._clock()
        listed = self._receiver.begin_list()
        seen: set[str] = set()
        version = 0
        for items, listed_at in self._cluster.pages(resource, namespace, **stream.selectors):
            version = listed_at
            for item in items:
                try:
                    seen.add(self._receiver.put(resource, stream.decode(item), listed))
                except Exception:  # noqa: BLE001 - one malformed object must not stop the list
                    metadata = msgspec.json.decode(item)["metadata"]
                    seen.add(metadata["uid"])
                    where = f"{metadata.get('namespace')}/{metadata.get('name')}"
                    _log.exception("one of the %s is skipped: %s", resource.plural, where)
        for key, uid in self._receiver.known_before(resource, listed):
            if uid not in seen and namespace in (None, key.namespace):
                self._receiver.forget(resource, key, uid, version)
        self._observe_list(resource.plural, self._clock() - began)
        return version

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                self.run_once(self._wanted_streams())
                pause = _FIRST_PAUSE
                self._on_listed()
                self._wait_for_next_list()
            except ApiProblem as problem:
                _log.warning("%s; trying again in %.0f s", self._describe(problem), pause)
                self._stopping.wait(max(pause, problem.retry_after or 0.0))
                pause = min(pause * 2, _LONGEST_PAUSE)
            except Exception:  # noqa: BLE001 - the thread must keep listing
                _log.exception("an error while listing; trying again in %.0f s", _LONGEST_PAUSE)
                self._stopping.wait(_LONGEST_PAUSE)

    def _wanted_streams(self) -> tuple[Stream, ...]:
        return self._streams if self._decides() or not self.complete.is_set() else self._always

    def _wait_for_next_list(self) -> None:
        """Wait until the next list is due or requested; list namespaces again meanwhile that could not be listed."""
        due, pause = self._clock() + self._seconds, _FIRST_PAUSE
        while (left := due - self._clock()) > 0:
            missing = tuple(self._problems)
            if self._requested.wait(min(left, pause) if missing else left):
                self._stopping.wait(self.seconds_until_relist())
                self._requested.clear()
                return
            if not missing:
                return
            self.run_once(self._wanted_streams(), missing)
            pause = min(2 * pause, _LONGEST_NAMESPACE_PAUSE)

    def _describe(self, problem: ApiProblem) -> str:
        """Describe the problem for the log, with the next step if one is known."""
        if problem.status == 0:
            return f"the API server does not answer ({problem.message})"
        if problem.status == 404:
            return self._crd_missing
        return f"the API server's answer to a list: {problem}"
