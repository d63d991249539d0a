"""The streams of a job: MPTrainingJobs, which kopf watches, and their Jobs and pods."""

from __future__ import annotations

from typing import Any

import msgspec

from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, PODS
from mptraining_operator.jobs.resources import names
from mptraining_operator.jobs.watch import api_objects, parse
from mptraining_operator.jobs.watch.cache import Cache, Kind
from mptraining_operator.runtime.informer import Stream
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue

_BATCH_JOB = msgspec.json.Decoder(api_objects.Job)
_POD = msgspec.json.Decoder(api_objects.Pod)


class _CachedStream(Stream):
    kind: Kind

    def __init__(self, cache: Cache, queue: WorkQueue) -> None:
        super().__init__(queue)
        self._cache = cache

    def begin_list(self) -> int:
        return self._cache.begin_list()

    def known_before(self, listed: int) -> list[tuple[Key, str]]:
        return self._cache.known_before(listed, self.kind)


class JobStream(_CachedStream):
    """MPTrainingJobs; spec and status are kept whole, so that they stay mappings."""

    resource = JOBS
    kind = "jobs"
    primary = True
    install = "the resource is not installed: kubectl apply -f charts/mptraining/files/crd.yaml"

    def decode(self, text: bytes) -> Any:
        return msgspec.json.decode(text)

    def of_mapping(self, raw: dict[str, Any]) -> Any:
        return raw

    def _identity(self, received: Any) -> tuple[Key, str, int]:
        metadata = received["metadata"]
        version = parse.version_number(metadata.get("resourceVersion"))
        return Key(metadata["namespace"], metadata["name"]), metadata["uid"], version

    def _store(self, _: Key, version: int, received: Any, listed: int | None) -> bool:  # noqa: ARG002 - in `received`
        return self._cache.put_job(parse.job(received), listed)

    def _drop(self, key: Key, uid: str, version: int) -> bool:
        return self._cache.remove_job(key, uid, version)


class _ChildStream(_CachedStream):
    label_selector = names.JOB
    # Children change in bursts.
    coalesce = 0.2

    def _identity(self, received: Any) -> tuple[Key | None, str, int]:
        metadata = received.metadata
        return parse.owner(metadata), metadata.uid, parse.version_number(metadata.resource_version)

    def _drop(self, key: Key, uid: str, version: int) -> bool:
        return self._cache.remove_child(key, uid, version)


class BatchJobStream(_ChildStream):
    resource = BATCH_JOBS
    kind = "batch_jobs"

    def decode(self, text: bytes) -> api_objects.Job:
        return _BATCH_JOB.decode(text)

    def _store(self, key: Key, version: int, received: Any, listed: int | None) -> bool:
        return self._cache.put_batch_job(key, version, parse.batch_job(received), listed)


class PodStream(_ChildStream):
    resource = PODS
    kind = "pods"

    def decode(self, text: bytes) -> api_objects.Pod:
        return _POD.decode(text)

    def _store(self, key: Key, version: int, received: Any, listed: int | None) -> bool:
        return self._cache.put_pod(key, version, parse.pod(received), listed)
