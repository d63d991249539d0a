"""What arrives from streams and lists: cut down, put into the cache, and its job queued when that changed anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mptraining_operator import cluster
from mptraining_operator.cluster import Resource
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.resources import names
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache
from mptraining_operator.watch.parse import RawObject
from mptraining_operator.watch.work_queue import WorkQueue

# News of children comes in crowds: one look is enough for those of a moment.
COALESCE = 0.2


@dataclass(frozen=True, slots=True)
class Stream:
    """One kind of object that is watched and listed."""

    resource: Resource
    label_selector: str = ""
    field_selector: str = ""

    @property
    def selectors(self) -> dict[str, str]:
        """As the query of a list."""
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: text for name, text in selectors.items() if text}


# Jobs last: by then their children are known.
STREAMS = (
    Stream(cluster.BATCH_JOBS, label_selector=names.JOB),
    Stream(cluster.PODS, label_selector=names.JOB),
    # Nothing else says that a quota or a policy refuses pods.
    Stream(cluster.EVENTS, field_selector="involvedObject.kind=Job,reason=FailedCreate"),
    Stream(cluster.JOBS),
)


class Intake:
    """Thread-safe, as cache and queue are."""

    def __init__(self, cache: Cache, queue: WorkQueue) -> None:
        self._cache = cache
        self._queue = queue
        self._put: dict[Resource, Callable[[RawObject], tuple[Key, bool] | None]] = {
            cluster.JOBS: self._put_job,
            cluster.BATCH_JOBS: self._put_batch_job,
            cluster.PODS: self._put_pod,
            cluster.EVENTS: self._put_event,
        }

    def put(self, resource: Resource, raw: RawObject) -> None:
        """The object as it is."""
        found = self._put[resource](raw)
        if found is not None and found[1]:
            self._ask_for(resource, found[0])

    def remove(self, resource: Resource, raw: RawObject) -> None:
        """The object as it was last, now gone."""
        key = _key(resource, raw)
        if key is not None:
            self.forget(resource, key, parse.uid(raw), parse.version(raw))

    def forget(self, resource: Resource, key: Key, uid: str, version: int) -> None:
        """The object of that uid is gone, which is known at `version`."""
        remove = self._cache.remove_job if resource == cluster.JOBS else self._cache.remove_child
        if remove(key, uid, version):
            self._ask_for(resource, key)

    def _ask_for(self, resource: Resource, key: Key) -> None:
        self._queue.add(key, 0.0 if resource == cluster.JOBS else COALESCE)

    def _put_job(self, raw: RawObject) -> tuple[Key, bool]:
        job = parse.job(raw)
        return job.key, self._cache.put_job(job)

    def _put_batch_job(self, raw: RawObject) -> tuple[Key, bool] | None:
        key = parse.owner(raw)
        return None if key is None else (key, self._cache.put_batch_job(key, parse.version(raw), parse.batch_job(raw)))

    def _put_pod(self, raw: RawObject) -> tuple[Key, bool] | None:
        key = parse.owner(raw)
        return None if key is None else (key, self._cache.put_pod(key, parse.version(raw), parse.pod(raw)))

    def _put_event(self, raw: RawObject) -> tuple[Key, bool] | None:
        key, refusal = parse.refused_job(raw), parse.pod_refusal(raw)
        if key is None or refusal is None:
            return None
        return key, self._cache.put_refusal(key, parse.version(raw), refusal)


def _key(resource: Resource, raw: RawObject) -> Key | None:
    if resource == cluster.JOBS:
        return Key(raw["metadata"]["namespace"], raw["metadata"]["name"])
    return parse.refused_job(raw) if resource == cluster.EVENTS else parse.owner(raw)
