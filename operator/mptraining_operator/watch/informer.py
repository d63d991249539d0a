"""Informer: the watched resources, the intake of their objects into cache and queue, and lists of them.

The first list completes before any job is reconciled. An object that was last changed before a list and is absent from
it was deleted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, PODS, ApiProblem, Resource
from mptraining_operator.cluster import Cluster
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.resources import names
from mptraining_operator.watch import api_objects, parse
from mptraining_operator.watch.cache import Cache
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


@dataclass(frozen=True, slots=True)
class _Identity:
    key: Key | None
    uid: str
    version: int


def _identity(resource: Resource, found: Any) -> _Identity:
    """Return the job that an object belongs to, with the object's uid and version."""
    if resource == JOBS:
        metadata = found["metadata"]
        version = parse.version_number(metadata.get("resourceVersion"))
        return _Identity(Key(metadata["namespace"], metadata["name"]), metadata["uid"], version)
    metadata = found.metadata
    return _Identity(parse.owner(metadata), metadata.uid, parse.version_number(metadata.resource_version))


class Receiver(Protocol):
    """The receiver of the objects of watches and lists, as their stream decodes them. Thread-safe."""

    def put(self, resource: Resource, found: Any) -> str:
        """Store an added or modified object; return its uid."""

    def remove(self, resource: Resource, found: Any) -> None:
        """Remove a deleted object, given in its last state."""

    def forget(self, resource: Resource, key: Key, uid: str, version: int) -> None:
        """Remove the object of that uid, known at `version` to be deleted."""

    def older_than(self, resource: Resource, version: int) -> list[tuple[Key, str]]:
        """Return the objects (key, uid) last changed before `version`: deleted, if a list at `version` lacks them."""


class Intake:
    """The Receiver of jobs and their children: store objects in the cache and queue their jobs."""

    def __init__(self, cache: Cache, queue: WorkQueue) -> None:
        self._cache = cache
        self._queue = queue

    def put(self, resource: Resource, found: Any) -> str:
        """Store an added or modified object; return its uid."""
        about = _identity(resource, found)
        if about.key is not None and self._put(resource, about.key, about.version, found):
            self._enqueue(resource, about.key)
        return about.uid

    def remove(self, resource: Resource, found: Any) -> None:
        """Remove a deleted object, given in its last state."""
        about = _identity(resource, found)
        if about.key is not None:
            self.forget(resource, about.key, about.uid, about.version)

    def forget(self, resource: Resource, key: Key, uid: str, version: int) -> None:
        """Remove the object of that uid, known at `version` to be deleted."""
        remove = self._cache.remove_job if resource == JOBS else self._cache.remove_child
        if remove(key, uid, version):
            self._enqueue(resource, key)

    def older_than(self, resource: Resource, version: int) -> list[tuple[Key, str]]:
        """Return the objects (key, uid) last changed before `version`: deleted, if a list at `version` lacks them."""
        if resource == JOBS:
            return self._cache.jobs_older_than(version)
        return self._cache.children_older_than(version, "batch_jobs" if resource == BATCH_JOBS else "pods")

    def _put(self, resource: Resource, key: Key, version: int, found: Any) -> bool:
        if resource == JOBS:
            return self._cache.put_job(parse.job(found))
        if resource == PODS:
            return self._cache.put_pod(key, version, parse.pod(found))
        return self._cache.put_batch_job(key, version, parse.batch_job(found))

    def _enqueue(self, resource: Resource, key: Key) -> None:
        self._queue.add(key, 0.0 if resource == JOBS else COALESCE)


_log = logging.getLogger(__name__)

_LONGEST_PAUSE = 15.0
# Seconds until the relist after kopf listed again, whose list does not report deletions.
_SOON = 5.0
# Seconds between such relists: kopf reports each object of its list, and one relist covers all of them.
_FRESH = 60.0

CRD_MISSING = "the resource MPTrainingJob is not installed: kubectl apply -f manifests/crd.yaml"


class Relister:
    """List all resources once and again every `seconds`, in a thread of its own.

    kopf does not report deletions that happened between two of its watches, and a proxy may lose one. Later lists have
    Jobs and pods only where `decides` returns True: the lists of standbys would cost the API server as much.

    `streams` are listed in their order, and `always` by standbys as well; `crd_missing` is logged when the API server
    does not serve one of them. `clock` is monotonic, in seconds; empty `namespaces` are all. `on_served_again` is
    called when the API server serves a resource again, `on_listed` after each list of the thread; neither may raise.
    `observe_list` receives the resource and the seconds of each complete list of it.
    """

    def __init__(
        self,
        cluster: Cluster,
        receiver: Receiver,
        *,
        seconds: float,
        namespaces: tuple[str, ...],
        clock: Callable[[], float],
        on_served_again: Callable[[], None] = lambda: None,
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
        self._on_served_again = on_served_again
        self._on_listed = on_listed
        self._decides = decides
        self._observe_list = observe_list
        self._unserved = False
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
        """Make a complete list that begins now, with retries; return False if `stopping` is set first."""
        pause = 1.0
        while not stopping.is_set():
            try:
                self.run_once()
            except ApiProblem as problem:
                _log.warning("%s; trying again in %.0f s", self._describe(problem), pause)
                pause = max(1.0, problem.retry_after or 0.0)
            except Exception:  # noqa: BLE001 - the caller waits for this list
                _log.exception("an error while listing; trying again in %.0f s", pause)
            else:
                return True
            stopping.wait(pause)
        return False

    def run_once(self, streams: tuple[Stream, ...] = ()) -> None:
        """List these resources once, or all. Raises ApiProblem; objects listed before the error stay in the cache."""
        try:
            for stream in streams or self._streams:
                for namespace in self.namespaces:
                    self.versions[stream.resource, namespace] = self.list_one(stream, namespace)
        except ApiProblem as problem:
            self._unserved = self._unserved or problem.status == 404
            raise
        if self._unserved:
            self._unserved = False
            self._on_served_again()
        self._completed = self._clock()
        self.complete.set()

    def list_one(self, stream: Stream, namespace: str | None) -> int:
        """List one resource and return the version of the list. Raises ApiProblem."""
        resource, began = stream.resource, self._clock()
        seen: set[str] = set()
        version = 0
        for items, listed_at in self._cluster.pages(resource, namespace, **stream.selectors):
            version = listed_at
            for item in items:
                try:
                    seen.add(self._receiver.put(resource, stream.decode(item)))
                except Exception:  # noqa: BLE001 - one malformed object must not stop the list
                    metadata = msgspec.json.decode(item)["metadata"]
                    seen.add(metadata["uid"])
                    where = f"{metadata.get('namespace')}/{metadata.get('name')}"
                    _log.exception("one of the %s is skipped: %s", resource.plural, where)
        for key, uid in self._receiver.older_than(resource, version):
            if uid not in seen and namespace in (None, key.namespace):
                self._receiver.forget(resource, key, uid, version)
        self._observe_list(resource.plural, self._clock() - began)
        return version

    def _run(self) -> None:
        pause = 1.0
        while not self._stopping.is_set():
            try:
                self.run_once(self._streams if self._decides() or not self.complete.is_set() else self._always)
            except ApiProblem as problem:
                _log.warning("%s; trying again in %.0f s", self._describe(problem), pause)
                self._stopping.wait(max(pause, problem.retry_after or 0.0))
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            except Exception:  # noqa: BLE001 - the thread must keep listing
                _log.exception("an error while listing; trying again in %.0f s", _LONGEST_PAUSE)
                self._stopping.wait(_LONGEST_PAUSE)
                continue
            pause = 1.0
            self._on_listed()
            if self._requested.wait(self._seconds):
                self._stopping.wait(self.seconds_until_relist())
                self._requested.clear()

    def _describe(self, problem: ApiProblem) -> str:
        """Describe the problem for the log, with the next step if one is known."""
        if problem.status == 0:
            return f"the API server does not answer ({problem.message})"
        if problem.status == 404:
            return self._crd_missing
        return f"the API server's answer to a list: {problem}"
