"""Cache of all MPTrainingSweeps and its intake; an earlier update than the stored one (`watch.versions`) is ignored.

The jobs of a sweep are in the cache of jobs (`watch.cache`), which has an index of them.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec
from pydantic import ValidationError

from mptraining_api.kubernetes_api import SWEEPS
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import API_VERSION, PAUSED, is_paused
from mptraining_api.status import format_time
from mptraining_api.sweep.spec import SWEEP_KIND, MPTrainingSweep
from mptraining_api.sweep.status import SweepStatus
from mptraining_operator.jobs.watch import api_objects
from mptraining_operator.jobs.watch.parse import optional_time, unreadable_status, version_number
from mptraining_operator.runtime.informer import Stream
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.versions import Versions
from mptraining_operator.runtime.work_queue import WorkQueue

# The uids of removed sweeps are kept, because a late page of a list may still contain them; the oldest are dropped.
_REMOVED_KEPT = 1_000
# Seconds. Several trials of a sweep may change at once, which one reconcile handles.
COALESCE = 0.05
_NOTHING = msgspec.Raw(b"{}")


class Sweep(msgspec.Struct, frozen=True):
    """An MPTrainingSweep as a watch or a list has it; spec and status stay JSON."""

    metadata: api_objects.Metadata
    spec: msgspec.Raw = _NOTHING
    status: msgspec.Raw = _NOTHING


class _Summary(msgspec.Struct, frozen=True):
    """The part of a status that metrics need."""

    phase: str = ""
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    stopped: int = 0
    failed: int = 0


# Labels of the metric, and in small letters the counts of a status.
TRIAL_STATES = ("Pending", "Running", "Succeeded", "Stopped", "Failed")
_SUMMARY = msgspec.json.Decoder(_Summary)
_SWEEP = msgspec.json.Decoder(Sweep)


@dataclass(frozen=True, slots=True)
class StoredSweep:
    """An MPTrainingSweep in the cache: JSON bytes, parsed only for a plan; `created` in seconds since 1970."""

    key: Key
    uid: str
    version: int
    generation: int
    created: float
    deleting: bool
    paused: bool
    spec: bytes
    status: bytes
    phase: str
    trials: Mapping[str, int]

    def sweep(self) -> tuple[MPTrainingSweep | None, str]:
        """Return the sweep, or None and a description of what this version cannot read."""
        metadata = {
            "name": self.key.name,
            "namespace": self.key.namespace,
            "uid": self.uid,
            "generation": self.generation,
            "creationTimestamp": format_time(self.created),
        }
        spec = msgspec.json.decode(self.spec)
        document = {"apiVersion": API_VERSION, "kind": SWEEP_KIND, "metadata": metadata, "spec": spec}
        try:
            return MPTrainingSweep.parse_document(document), ""
        except InvalidSpec as problem:
            return None, str(problem)

    def sweep_status(self) -> tuple[SweepStatus | None, str]:
        """Return the status, or None and the reason if this version cannot read it."""
        try:
            return SweepStatus.read(self.status), ""
        except ValidationError as error:
            return None, unreadable_status(error)

    @property
    def work(self) -> tuple[object, ...]:
        """The fields that a plan depends on."""
        return (self.uid, self.generation, self.deleting, self.paused, self.spec, self.status)


def parse(sweep: Sweep) -> StoredSweep:
    """Parse a sweep as its stream decodes it. Raises msgspec.ValidationError if its status is no status at all."""
    metadata = sweep.metadata
    status = bytes(sweep.status)
    summary = _SUMMARY.decode(status)
    return StoredSweep(
        key=Key(sys.intern(metadata.namespace), metadata.name),
        uid=metadata.uid,
        version=version_number(metadata.resource_version),
        generation=metadata.generation,
        created=optional_time(metadata.creation_timestamp) or 0.0,
        deleting=metadata.deletion_timestamp is not None,
        paused=is_paused({PAUSED: metadata.annotations.paused}),
        spec=bytes(sweep.spec),
        status=status,
        phase=sys.intern(summary.phase),
        trials=MappingProxyType({state: getattr(summary, state.lower()) for state in TRIAL_STATES}),
    )


class SweepCache:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sweeps: dict[Key, StoredSweep] = {}
        # The sweep of each uid: jobs name their owner by it.
        self._keys: dict[str, Key] = {}
        self._versions = Versions(_REMOVED_KEPT)

    def begin_list(self) -> int:
        """Return the number of a list that begins now, for `listed` of its sweeps."""
        with self._lock:
            return self._versions.begin_list()

    def put(self, sweep: StoredSweep, listed: int | None = None) -> bool:
        """Store a sweep, unless it is an earlier update than the stored one; return whether it must be reconciled."""
        with self._lock:
            before = self._sweeps.get(sweep.key)
            # The stored sweep may be another one of the same name.
            stored = before.uid if before is not None else sweep.uid
            if not all(self._versions.is_later(uid, sweep.version, listed) for uid in {sweep.uid, stored}):
                return False
            if before is not None and before.uid != sweep.uid:
                self._forget(before, before.version)
            self._versions.put(sweep.uid, sweep.version)
            self._sweeps[sweep.key] = sweep
            self._keys[sweep.uid] = sweep.key
            return before is None or before.work != sweep.work

    def remove(self, key: Key, uid: str, version: int) -> bool:
        """Remove a deleted sweep; an earlier or later sweep of the same name is kept. Return whether it was known."""
        with self._lock:
            sweep = self._sweeps.get(key)
            if sweep is None or sweep.uid != uid:
                self._versions.remove(uid, version)
                return False
            self._forget(sweep, version)
            return True

    def get(self, key: Key) -> StoredSweep | None:
        with self._lock:
            return self._sweeps.get(key)

    def key_of(self, uid: str) -> Key | None:
        """Return the key of the sweep of that uid, or None if there is no such sweep."""
        with self._lock:
            return self._keys.get(uid)

    def sweeps(self) -> tuple[StoredSweep, ...]:
        """Return all sweeps, without parsing."""
        with self._lock:
            return tuple(self._sweeps.values())

    def known_before(self, listed: int) -> list[tuple[Key, str]]:
        """Return the sweeps (key, uid) with no update since that list began: deleted, if the list lacks them."""
        with self._lock:
            sweeps = self._sweeps.values()
            return [(sweep.key, sweep.uid) for sweep in sweeps if self._versions.known_before(sweep.uid, listed)]

    def by_phase(self) -> Mapping[str, int]:
        """Return the number of sweeps by phase; a sweep without a phase counts as Pending."""
        return Counter(sweep.phase or "Pending" for sweep in self.sweeps())

    def trials_by_state(self) -> Mapping[str, int]:
        """Return the number of trials of all sweeps by state, as their statuses count them."""
        total: Counter[str] = Counter()
        for sweep in self.sweeps():
            total.update(sweep.trials)
        return total

    def _forget(self, sweep: StoredSweep, version: int) -> None:
        del self._sweeps[sweep.key]
        self._keys.pop(sweep.uid, None)
        self._versions.remove(sweep.uid, version)


class SweepStream(Stream):
    """MPTrainingSweeps; the garbage collector deletes the jobs of a deleted one."""

    resource = SWEEPS
    primary = True
    install = "the resource is not installed: kubectl apply -f charts/mptraining/files/crd-sweeps.yaml"

    def __init__(self, cache: SweepCache, queue: WorkQueue) -> None:
        super().__init__(queue)
        self.cache = cache

    def decode(self, text: bytes) -> Sweep:
        return _SWEEP.decode(text)

    def begin_list(self) -> int:
        return self.cache.begin_list()

    def known_before(self, listed: int) -> list[tuple[Key, str]]:
        return self.cache.known_before(listed)

    def trial_changed(self, namespace: str, sweep_uid: str) -> None:
        """Queue the sweep of that uid in the namespace, one of whose jobs has changed."""
        key = self.cache.key_of(sweep_uid)
        if key is not None and key.namespace == namespace:
            self.queue.add(key, COALESCE)

    def _identity(self, received: Any) -> tuple[Key, str, int]:
        metadata = received.metadata
        return Key(metadata.namespace, metadata.name), metadata.uid, version_number(metadata.resource_version)

    def _store(self, _: Key, version: int, received: Any, listed: int | None) -> bool:  # noqa: ARG002 - in `received`
        return self.cache.put(parse(received), listed)

    def _drop(self, key: Key, uid: str, version: int) -> bool:
        return self.cache.remove(key, uid, version)
