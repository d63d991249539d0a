"""All jobs with their children as last seen: thread-safe, and right whatever the order in which news arrives.

Watch streams, relists and the answers to the operator's own writes all put here; resourceVersions decide what is
newer. Each `put_…` and `remove_…` says whether the job is worth a look.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from mptraining_operator.plan.snapshot import Key, Limits, Lookups, SeenBatchJob, SeenPod, Snapshot
from mptraining_operator.watch.parse import PodRefusal, StoredJob, read_job, read_status

# What was found by asking is asked again after these.
FINDINGS_LAST = 30.0
# A removed object's uid is remembered, lest a late page of a list brings it back; the oldest are forgotten.
_REMOVED_KEPT = 20_000


@dataclass(slots=True)
class _Record:
    job: StoredJob | None = None
    batch_jobs: dict[str, tuple[int, SeenBatchJob]] = field(default_factory=dict)
    pods: dict[str, tuple[int, SeenPod]] = field(default_factory=dict)
    # By the uid of the Job that could not create its pods.
    refusals: dict[str, tuple[int, PodRefusal]] = field(default_factory=dict)
    findings: Lookups | None = None
    # When a finding stops being believed, by node; "" stands for the missing job file.
    stale_at: dict[str, float] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return self.job is None and not (self.batch_jobs or self.pods or self.refusals)

    @property
    def nodes(self) -> int:
        return max(self.job.nodes if self.job else 0, sum(not pod.over for _, pod in self.pods.values()))


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot and the resourceVersion of the job it shows: what a write of its status is conditional on."""

    snapshot: Snapshot
    version: int


class Cache:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._records: dict[Key, _Record] = {}
        self._removed: OrderedDict[str, int] = OrderedDict()

    def put_job(self, job: StoredJob) -> bool:
        """A job as the API server sent it; older news than what is known is ignored."""
        with self._lock:
            if self._is_removed(job.uid, job.version):
                return False
            record = self._records.setdefault(job.key, _Record())
            before = record.job
            if before is not None and job.version <= before.version:
                return False
            if before is not None and before.uid != job.uid:
                self._forget_job(job.key, before.uid, before.version)
                record = self._records.setdefault(job.key, _Record())
            record.job = job
            return before is None or not before.same_work(job)

    def remove_job(self, key: Key, uid: str, version: int) -> bool:
        """The job is gone; what is known of an earlier or later one of its name stays."""
        with self._lock:
            record = self._records.get(key)
            known = record is not None and record.job is not None and record.job.uid == uid
            self._forget_job(key, uid, version)
            return known

    def put_batch_job(self, key: Key, version: int, job: SeenBatchJob) -> bool:
        with self._lock:
            if self._is_removed(job.uid, version) or job.owner_uid in self._removed:
                return False
            return _put(self._records.setdefault(key, _Record()).batch_jobs, job.uid, version, job)

    def put_pod(self, key: Key, version: int, pod: SeenPod) -> bool:
        """Also a pod of a job that is gone: it outlives its job by its grace period, or for good on a lost node."""
        with self._lock:
            if self._is_removed(pod.uid, version):
                return False
            return _put(self._records.setdefault(key, _Record()).pods, pod.uid, version, pod)

    def put_refusal(self, key: Key, version: int, refusal: PodRefusal) -> bool:
        """Why pods of a Job could not be created; the newest event about a Job counts."""
        with self._lock:
            if self._is_removed(refusal.event_uid, version):
                return False
            refusals = self._records.setdefault(key, _Record()).refusals
            before = refusals.get(refusal.batch_job_uid)
            if before is not None and version <= before[0]:
                return False
            refusals[refusal.batch_job_uid] = version, refusal
            return before is None or before[1].refusal.message != refusal.refusal.message

    def remove_child(self, key: Key, uid: str, version: int) -> bool:
        """A Job, pod or event of that uid is gone."""
        with self._lock:
            self._remember_removed(uid, version)
            record = self._records.get(key)
            if record is None:
                return False
            found = record.batch_jobs.pop(uid, None) or record.pods.pop(uid, None)
            spoken = [job for job, (_, refusal) in record.refusals.items() if refusal.event_uid == uid]
            for job in spoken:
                del record.refusals[job]
            self._drop_if_empty(key, record)
            # An event that expires changes nothing: its Job is still without pods, or has them.
            return found is not None

    def gone(self, key: Key, uid: str) -> bool:
        """The API server knows no object of that uid any more, whatever a stream has yet to say."""
        with self._lock:
            record = self._records.get(key)
            if record is None:
                return False
            child = record.batch_jobs.get(uid) or record.pods.get(uid)
            job = record.job if record.job is not None and record.job.uid == uid else None
        if job is not None:
            return self.remove_job(key, uid, job.version)
        return child is not None and self.remove_child(key, uid, child[0])

    def controls(self, key: Key, batch_job_uid: str) -> bool:
        """Whether that Indexed Job is known as one of the job."""
        with self._lock:
            record = self._records.get(key)
            if record is None or record.job is None or batch_job_uid not in record.batch_jobs:
                return False
            return record.batch_jobs[batch_job_uid][1].owner_uid == record.job.uid

    def learn(self, key: Key, uid: str, **changes: Any) -> bool:
        """Replaces fields of the job's Findings; says whether that changed them. No news of a job that is gone."""
        with self._lock:
            record = self._records.get(key)
            if record is None or record.job is None or record.job.uid != uid:
                return False
            before = record.findings or Lookups()
            record.findings = replace(before, **changes)
            until = self._clock() + FINDINGS_LAST
            if changes.get("job_file_missing"):
                record.stale_at[""] = until
            for node in changes.get("lost_nodes", ()):
                if node not in before.lost_nodes or before.lost_nodes[node] != changes["lost_nodes"][node]:
                    record.stale_at[node] = until
            return record.findings != before

    def learn_node(self, key: Key, uid: str, node: str, lost: bool) -> bool:
        """One more answer about a node, believed for `FINDINGS_LAST` seconds."""
        with self._lock:
            record = self._records.get(key)
            known = dict(record.findings.lost_nodes) if record and record.findings else {}
        return self.learn(key, uid, lost_nodes=MappingProxyType({**known, node: lost}))

    def seen(self, key: Key, limits: Limits, reports_since: float | None = None) -> Seen | None:
        """All that is known of the job, parsed; None when there is no such job."""
        with self._lock:
            record = self._records.get(key)
            if record is None or record.job is None:
                return None
            stored = record.job
            self._expire(record)
            findings = record.findings or Lookups()
            batch_jobs = tuple(job for _, job in record.batch_jobs.values() if job.owner_uid == stored.uid)
            pods = tuple(pod for _, pod in record.pods.values() if pod.job_uid == stored.uid)
            earlier = (pod for _, pod in record.pods.values() if pod.job_uid not in ("", stored.uid) and not pod.over)
            predecessors = tuple(sorted(earlier, key=lambda each: (each.name, each.uid)))
            refusals = {uid: refusal.refusal for uid, (_, refusal) in record.refusals.items()}
            beside = self._nodes_beside(key) if limits.jobs.nodes_per_namespace is not None else 0
        job, problem = read_job(stored)
        status, trouble = read_status(stored)
        whole = Snapshot(
            key=key,
            uid=stored.uid,
            generation=stored.generation,
            created=stored.created,
            job=job,
            status=status,
            problem=problem or trouble,
            deleting=stored.deleting,
            batch_jobs=tuple(sorted(batch_jobs, key=lambda each: (each.attempt, each.uid))),
            pods=tuple(sorted(pods, key=lambda each: (each.attempt, each.index, each.uid))),
            predecessors=predecessors,
            pod_refusals=MappingProxyType({job.uid: refusals[job.uid] for job in batch_jobs if job.uid in refusals}),
            findings=findings,
            limits=limits,
            reports_since=reports_since,
            nodes_beside=beside,
        )
        return Seen(whole, stored.version)

    def snapshot(self, key: Key, limits: Limits) -> Snapshot | None:
        """`seen` for those who write nothing."""
        found = self.seen(key, limits)
        return found.snapshot if found else None

    def stored(self, key: Key) -> StoredJob | None:
        """The job as kept: its uid, attempt, phase and last progress, without parsing."""
        with self._lock:
            record = self._records.get(key)
            return record.job if record else None

    def live_pods(self, key: Key, attempt: int) -> Mapping[str, int]:
        """The pods of that attempt that have not ended: the worker's index by the pod's uid."""
        with self._lock:
            record = self._records.get(key)
            if record is None or record.job is None:
                return {}
            uid = record.job.uid
            mine = (pod for _, pod in record.pods.values() if pod.job_uid == uid and pod.attempt == attempt)
            return {pod.uid: pod.index for pod in mine if not pod.over}

    def job_keys(self) -> tuple[Key, ...]:
        """The jobs that exist."""
        with self._lock:
            return tuple(key for key, record in self._records.items() if record.job is not None)

    def jobs_by_phase(self) -> Mapping[str, int]:
        """How many jobs are in which phase; a job that nobody looked at yet is Pending."""
        with self._lock:
            return Counter(record.job.phase or "Pending" for record in self._records.values() if record.job)

    def jobs_older_than(self, version: int) -> list[tuple[Key, str]]:
        """Jobs (key, uid) last changed before `version`: gone, if a list of that version lacks them."""
        with self._lock:
            jobs = (record.job for record in self._records.values())
            return [(job.key, job.uid) for job in jobs if job is not None and job.version < version]

    def children_older_than(self, version: int, kind: str) -> list[tuple[Key, str]]:
        """Children (key, uid) last changed before `version`; `kind` is batch_jobs, pods or refusals."""
        found: list[tuple[Key, str]] = []
        with self._lock:
            for key, record in self._records.items():
                for uid, (seen, child) in getattr(record, kind).items():
                    if seen < version:
                        found.append((key, child.event_uid if isinstance(child, PodRefusal) else uid))
        return found

    def _nodes_beside(self, key: Key) -> int:
        return sum(each.nodes for k, each in self._records.items() if k.namespace == key.namespace and k != key)

    def _expire(self, record: _Record) -> None:
        now = self._clock()
        old = [what for what, until in record.stale_at.items() if until <= now]
        for what in old:
            del record.stale_at[what]
        if not old or record.findings is None:
            return
        nodes = {node: lost for node, lost in record.findings.lost_nodes.items() if node not in old}
        missing = record.findings.job_file_missing and "" not in old
        record.findings = replace(record.findings, lost_nodes=MappingProxyType(nodes), job_file_missing=missing)

    def _forget_job(self, key: Key, uid: str, version: int) -> None:
        """With what belonged to it, and nothing of another job of its name; its pods end later, each by itself."""
        self._remember_removed(uid, version)
        record = self._records.get(key)
        if record is None:
            return
        mine = [job for job, (_, each) in record.batch_jobs.items() if each.owner_uid == uid]
        for job in mine:
            del record.batch_jobs[job]
            record.refusals.pop(job, None)
        if record.job is not None and record.job.uid == uid:
            record.job = None
            record.findings = None
            record.stale_at.clear()
        self._drop_if_empty(key, record)

    def _drop_if_empty(self, key: Key, record: _Record) -> None:
        if record.empty:
            self._records.pop(key, None)

    def _is_removed(self, uid: str, version: int) -> bool:
        return version <= self._removed.get(uid, -1)

    def _remember_removed(self, uid: str, version: int) -> None:
        self._removed[uid] = max(version, self._removed.get(uid, 0))
        self._removed.move_to_end(uid)
        while len(self._removed) > _REMOVED_KEPT:
            self._removed.popitem(last=False)


def _put(children: dict[str, tuple[int, Any]], uid: str, version: int, child: Any) -> bool:
    before = children.get(uid)
    if before is not None and version <= before[0]:
        return False
    children[uid] = version, child
    return before is None or before[1] != child
