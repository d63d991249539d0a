"""Intake of MPTrainingSweeps, which are watched and listed, into their cache; each change queues its sweep."""

from __future__ import annotations

from typing import Any

import msgspec

from mptraining_api.kubernetes_api import SWEEPS, Resource
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.sweeps.cache import Sweep, SweepCache, parse
from mptraining_operator.watch.informer import Stream
from mptraining_operator.watch.parse import version_number
from mptraining_operator.watch.work_queue import WorkQueue

SWEEP_STREAM = Stream(SWEEPS, msgspec.json.Decoder(Sweep).decode)
# Seconds. Several trials of a sweep may change at once, which one reconcile handles.
COALESCE = 0.05


class SweepIntake:
    """The `watch.informer.Receiver` of sweeps."""

    def __init__(self, cache: SweepCache, queue: WorkQueue) -> None:
        self._cache = cache
        self._queue = queue

    def begin_list(self) -> int:
        """Return the number of a list that begins now, for `listed` of its objects."""
        return self._cache.begin_list()

    def put(self, resource: Resource, found: Any, listed: int | None = None) -> str:  # noqa: ARG002 - one resource
        """Store an added, modified or listed sweep; return its uid."""
        sweep = parse(found)
        if self._cache.put(sweep, listed):
            self._queue.add(sweep.key)
        return sweep.uid

    def remove(self, resource: Resource, found: Any) -> None:
        """Remove a deleted sweep, given in its last state."""
        metadata = found.metadata
        key = Key(metadata.namespace, metadata.name)
        self.forget(resource, key, metadata.uid, version_number(metadata.resource_version))

    def forget(self, resource: Resource, key: Key, uid: str, version: int) -> None:  # noqa: ARG002 - one resource
        """Remove the sweep of that uid, known at `version` to be deleted; the garbage collector deletes its jobs."""
        if self._cache.remove(key, uid, version):
            self._queue.add(key)

    def known_before(self, resource: Resource, listed: int) -> list[tuple[Key, str]]:  # noqa: ARG002 - one resource
        """Return the sweeps (key, uid) with no update since that list began: deleted, if the list lacks them."""
        return self._cache.known_before(listed)

    def trial_changed(self, namespace: str, sweep_uid: str) -> None:
        """Queue the sweep of that uid in the namespace, one of whose jobs has changed."""
        key = self._cache.key_of(sweep_uid)
        if key is not None and key.namespace == namespace:
            self._queue.add(key, COALESCE)
