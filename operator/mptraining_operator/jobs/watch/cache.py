"""Thread-safe cache of all jobs and their children; updates may arrive in any order.

Watch streams, lists and the responses to the operator's own writes update it; `watch.versions` decides which update of
an object is the later one. Each `put_…` and `remove_…` returns whether the job must be reconciled.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from mptraining_operator.jobs.plan.snapshot import Limits, Lookups, SeenBatchJob, SeenPod, SeenWarning, Snapshot
from mptraining_operator.jobs.watch.parse import StoredJob, read_job, read_status
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.versions import Versions

Kind = Literal["jobs", "batch_jobs", "pods"]

# Seconds until the result of a lookup expires.
LOOKUP_SECONDS = 30.0
# The uids of removed objects are kept, because a late page of a list may still contain them; the oldest are dropped.
_REMOVED_KEPT = 20_000


@dataclass(slots=True)
class _Record:
    job: StoredJob | None = None
    batch_jobs: dict[str, SeenBatchJob] = field(default_factory=dict)
    pods: dict[str, SeenPod] = field(default_factory=dict)
    lookups: Lookups | None = None
    # The expiry of each lookup, by node.
    stale_at: dict[str, float] = field(default_factory=dict)
    # Workers of a start that is being written.
    reserved: int = 0
    # The workers of this record that are in the sum of its namespace.
    counted: int = 0

    @property
    def empty(self) -> bool:
        return self.job is None and not (self.batch_jobs or self.pods or self.reserved)

    @property
    def job_uids(self) -> tuple[str, ...]:
        return (self.job.uid,) if self.job is not None else ()

    @property
    def workers(self) -> int:
        live_pods = sum(not pod.terminated for pod in self.pods.values())
        return max(self.job.workers if self.job else 0, self.reserved, live_pods)


class Cache:
    """`on_trial` receives the namespace and the sweep's uid of a trial that was added, removed or changed in what plans
    read.
    """

    def __init__(
        self, clock: Callable[[], float], on_trial: Callable[[str, str], None] = lambda namespace, sweep_uid: None
    ) -> None:
        self._clock = clock
        self._on_trial = on_trial
        self._lock = threading.Lock()
        self._records: dict[Key, _Record] = {}
        self._versions = Versions(_REMOVED_KEPT)
        # The sum of the jobs' workers by namespace: a snapshot must not cost a look at each job of the namespace.
        self._workers: Counter[str] = Counter()
        # The jobs of each sweep, by namespace and uid: a look at one sweep must not cost a look at every job. The API
        # server does not check owner references, so that a job of another namespace may name the sweep's uid.
        self._trials: dict[tuple[str, str], set[Key]] = {}

    def begin_list(self) -> int:
        """Return the number of a list that begins now, for `listed` of its objects."""
        with self._lock:
            return self._versions.begin_list()

    def put_job(self, job: StoredJob, listed: int | None = None) -> bool:
        """Store a job, unless it is an earlier update than the stored one."""
        with self._lock:
            changed = self._put_job(job, listed)
        if changed and job.sweep_uid:
            self._on_trial(job.key.namespace, job.sweep_uid)
        return changed

    def _put_job(self, job: StoredJob, listed: int | None) -> bool:
        record = self._records.get(job.key)
        before = record.job if record else None
        # The stored job may be another one of the same name.
        stored = before.uid if before is not None else job.uid
        if not all(self._versions.is_later(uid, job.version, listed) for uid in {job.uid, stored}):
            return False
        record = self._records.setdefault(job.key, _Record())
        if before is not None and before.uid != job.uid:
            self._forget_job(job.key, before.uid, before.version)
            record = self._records.setdefault(job.key, _Record())
        self._versions.put(job.uid, job.version)
        self._index(before, job)
        record.job = job
        self._update_sums(job.key, record)
        return before is None or before.work != job.work

    def remove_job(self, key: Key, uid: str, version: int) -> bool:
        """Remove a deleted job; an earlier or later job of the same name is kept."""
        with self._lock:
            record = self._records.get(key)
            job = record.job if record is not None and record.job is not None and record.job.uid == uid else None
            self._forget_job(key, uid, version)
        if job is not None and job.sweep_uid:
            self._on_trial(key.namespace, job.sweep_uid)
        return job is not None

    def put_batch_job(self, key: Key, version: int, job: SeenBatchJob, listed: int | None = None) -> bool:
        with self._lock:
            later = self._versions.is_later(job.uid, version, listed)
            if not later or self._versions.is_removed(job.owner_uid, listed):
                return False
            record = self._records.setdefault(key, _Record())
            before = record.batch_jobs.get(job.uid)
            record.batch_jobs[job.uid] = job
            self._versions.put(job.uid, version)
            self._update_sums(key, record)
            return before is None or before.state != job.state

    def put_pod(self, key: Key, version: int, pod: SeenPod, listed: int | None = None) -> bool:
        """Store a pod, also of a deleted job: it outlives the job by its grace period, or as its node is not ready."""
        with self._lock:
            if not self._versions.is_later(pod.uid, version, listed):
                return False
            record = self._records.setdefault(key, _Record())
            before = record.pods.get(pod.uid)
            record.pods[pod.uid] = pod
            self._versions.put(pod.uid, version)
            self._update_sums(key, record)
            # The Job reports its ready pods: the usual steps of a start need no reconcile.
            usual = pod.starts_as_usual and pod.owner_uid in record.batch_jobs
            return before != pod and not (usual and (before is None or before.starts_as_usual))

    def remove_child(self, key: Key, uid: str, version: int) -> bool:
        """Remove a deleted Job or pod."""
        with self._lock:
            self._versions.remove(uid, version)
            record = self._records.get(key)
            if record is None:
                return False
            removed = record.batch_jobs.pop(uid, None) or record.pods.pop(uid, None)
            self._update_sums(key, record)
            self._drop_if_empty(key, record)
            return removed is not None

    def remove_missing(self, key: Key, uid: str) -> bool:
        """Remove an object that the API server no longer has, before a watch stream reports the deletion."""
        with self._lock:
            record = self._records.get(key)
            if record is None:
                return False
            version = self._versions.version(uid)
            child = record.batch_jobs.get(uid) or record.pods.get(uid)
            job = record.job if record.job is not None and record.job.uid == uid else None
        if job is not None:
            return self.remove_job(key, uid, job.version)
        return child is not None and self.remove_child(key, uid, version)

    def controls(self, key: Key, batch_job_uid: str) -> bool:
        """Return whether the cache has that Indexed Job with the job as its controller."""
        with self._lock:
            record = self._records.get(key)
            if record is None or record.job is None or batch_job_uid not in record.batch_jobs:
                return False
            return record.batch_jobs[batch_job_uid].owner_uid == record.job.uid

    def reserve_workers(self, key: Key, workers: int) -> None:
        """Count so many workers of a job whose start is being written, until the reservation is set to 0."""
        with self._lock:
            record = self._records.setdefault(key, _Record())
            record.reserved = workers
            self._update_sums(key, record)
            self._drop_if_empty(key, record)

    def update_lookups(self, key: Key, uid: str, **changes: Any) -> bool:
        """Replace fields of the job's Lookups; return whether they changed. False if the job was deleted."""
        with self._lock:
            record = self._records.get(key)
            if record is None or record.job is None or record.job.uid != uid:
                return False
            before = record.lookups or Lookups()
            record.lookups = replace(before, **changes)
            until = self._clock() + LOOKUP_SECONDS
            for node in changes.get("unready_nodes", ()):
                if node not in before.unready_nodes or before.unready_nodes[node] != changes["unready_nodes"][node]:
                    record.stale_at[node] = until
            return record.lookups != before

    def update_node(self, key: Key, uid: str, node: str, unready: bool) -> bool:
        """Store whether a node is not ready; the result expires after `LOOKUP_SECONDS` seconds."""
        with self._lock:
            record = self._records.get(key)
            known = dict(record.lookups.unready_nodes) if record and record.lookups else {}
        return self.update_lookups(key, uid, unready_nodes=MappingProxyType({**known, node: unready}))

    def update_warning(self, key: Key, uid: str, about: str, warning: SeenWarning) -> bool:
        """Store the newest Warning event about the Job or pod `about`."""
        with self._lock:
            record = self._records.get(key)
            if record is None:
                return False
            children = {*record.batch_jobs, *record.pods, about}
            known = record.lookups.warnings if record.lookups else {}
            kept = {child: newest for child, newest in known.items() if child in children}
        return self.update_lookups(key, uid, warnings=MappingProxyType({**kept, about: warning}))

    def snapshot(self, key: Key, limits: Limits, reports_since: float | None = None) -> Snapshot | None:
        with self._lock:
            record = self._records.get(key)
            if record is None or record.job is None:
                return None
            stored = record.job
            self._expire(record)
            lookups = record.lookups or Lookups()
            children = [job for job in record.batch_jobs.values() if job.owner_uid == stored.uid]
            attempts = [job for job in children if not (job.is_probe or job.placement)]
            places = [job for job in children if job.placement]
            probe = next((job for job in children if job.is_probe), None)
            pods = tuple(pod for pod in record.pods.values() if pod.job_uid == stored.uid)
            others = [pod for pod in record.pods.values() if pod.job_uid not in ("", stored.uid)]
            earlier = sorted((pod for pod in others if not pod.terminated), key=lambda pod: (pod.name, pod.uid))
            other_workers = self._workers[key.namespace] - record.counted
        job, problem = read_job(stored)
        status, status_problem = read_status(stored)
        return Snapshot(
            key=key,
            uid=stored.uid,
            generation=stored.generation,
            created=stored.created,
            job=job,
            status=status,
            problem=problem or status_problem,
            deleting=stored.deleting,
            batch_jobs=tuple(sorted(attempts, key=lambda job: (job.attempt, job.uid))),
            pods=tuple(sorted(pods, key=lambda pod: (pod.attempt, pod.index, pod.uid))),
            probe=probe,
            predecessors=tuple(earlier),
            lookups=lookups,
            limits=limits,
            reports_since=reports_since,
            other_workers=other_workers,
            # One that is being deleted only if there is no other.
            queue_job=min(places, key=lambda job: job.deleting, default=None),
            version=stored.version,
        )

    def stored(self, key: Key) -> StoredJob | None:
        """Return the stored job with its uid, attempt, phase and last progress, without parsing."""
        with self._lock:
            record = self._records.get(key)
            return record.job if record else None

    def live_pods(self, key: Key, attempt: int) -> Mapping[str, int]:
        """Return the worker index by pod uid, for the pods of that attempt that are not over."""
        with self._lock:
            record = self._records.get(key)
            if record is None or record.job is None:
                return {}
            uid = record.job.uid
            pods = (pod for pod in record.pods.values() if pod.job_uid == uid and pod.attempt == attempt)
            return {pod.uid: pod.index for pod in pods if not pod.terminated}

    def trials(self, namespace: str, sweep_uid: str) -> tuple[StoredJob, ...]:
        """Return the jobs of that sweep, without parsing."""
        with self._lock:
            records = (self._records[key] for key in self._trials.get((namespace, sweep_uid), ()))
            return tuple(record.job for record in records if record.job is not None)

    def trial_workers(self, namespace: str, sweep_uid: str) -> tuple[int, int]:
        """Return the number of that sweep's jobs that run or will, and the workers that they have."""
        with self._lock:
            records = [self._records[key] for key in self._trials.get((namespace, sweep_uid), ())]
            live = [record for record in records if record.job and not (record.job.ended or record.job.suspended)]
            return len(live), sum(record.counted for record in live)

    def outside_of_sweeps(self, namespace: str) -> tuple[tuple[StoredJob, int], ...]:
        """Return the namespace's jobs that are no trials, each with the workers that it has."""
        with self._lock:
            return tuple(
                (record.job, record.counted)
                for key, record in self._records.items()
                if key.namespace == namespace and record.job is not None and not record.job.sweep_uid
            )

    def workers_of(self, namespace: str) -> int:
        """Return the workers of all jobs in the namespace."""
        with self._lock:
            return self._workers[namespace]

    def used_namespaces(self) -> frozenset[str]:
        """Return the namespaces that have jobs with an attempt which has not ended."""
        return frozenset(job.key.namespace for job in self.jobs() if job.attempt and not job.ended)

    def jobs(self) -> tuple[StoredJob, ...]:
        """Return all existing jobs, without parsing."""
        with self._lock:
            return tuple(record.job for record in self._records.values() if record.job is not None)

    def jobs_by_phase(self) -> Mapping[str, int]:
        """Return the number of jobs by phase; a job without a phase counts as Pending."""
        return Counter(job.phase or "Pending" for job in self.jobs())

    def known_before(self, listed: int, kind: Kind) -> list[tuple[Key, str]]:
        """Return the objects (key, uid) with no update since that list began: deleted, if the list lacks them."""
        with self._lock:
            return [
                (key, uid)
                for key, record in self._records.items()
                for uid in (record.job_uids if kind == "jobs" else getattr(record, kind))
                if self._versions.known_before(uid, listed)
            ]

    def _update_sums(self, key: Key, record: _Record) -> None:
        workers = record.workers
        if workers != record.counted:
            self._workers[key.namespace] += workers - record.counted
            record.counted = workers

    def _expire(self, record: _Record) -> None:
        now = self._clock()
        expired = [lookup for lookup, until in record.stale_at.items() if until <= now]
        for lookup in expired:
            del record.stale_at[lookup]
        if not expired or record.lookups is None:
            return
        nodes = {node: unready for node, unready in record.lookups.unready_nodes.items() if node not in expired}
        record.lookups = replace(record.lookups, unready_nodes=MappingProxyType(nodes))

    def _forget_job(self, key: Key, uid: str, version: int) -> None:
        """Remove the job and its Indexed Jobs, not those of another job of its name; its pods are removed later."""
        self._versions.remove(uid, version)
        record = self._records.get(key)
        if record is None:
            return
        for child in [child for child in record.batch_jobs.values() if child.owner_uid == uid]:
            del record.batch_jobs[child.uid]
            self._versions.forget(child.uid)
        self._update_sums(key, record)
        if record.job is not None and record.job.uid == uid:
            self._index(record.job, None)
            record.job = None
            record.lookups = None
            record.stale_at.clear()
            self._update_sums(key, record)
        self._drop_if_empty(key, record)

    def _index(self, before: StoredJob | None, after: StoredJob | None) -> None:
        if before is not None and before.sweep_uid:
            sweep = before.key.namespace, before.sweep_uid
            trials = self._trials.get(sweep, set())
            trials.discard(before.key)
            if not trials:
                self._trials.pop(sweep, None)
        if after is not None and after.sweep_uid:
            self._trials.setdefault((after.key.namespace, after.sweep_uid), set()).add(after.key)

    def _drop_if_empty(self, key: Key, record: _Record) -> None:
        if record.empty:
            self._records.pop(key, None)
