"""Execution of a sweep's plan: the status, then the Events, then the actions in order.

The status records each trial before its job is created. Its write has the resourceVersion of the sweep that the plan
was made from as precondition; after a conflict the sweep is read and planned again. The actions are idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mptraining_api.kubernetes_api import JOBS, SWEEPS, ApiProblem, Raw, Resource
from mptraining_api.status import EventRecord, format_time
from mptraining_api.sweep.actions import Action, CreateJob, DeleteJob, DeleteSweep, Refusal, SuspendJob, SweepPlan
from mptraining_api.sweep.spec import SWEEP_KIND
from mptraining_api.sweep.status import SweepStatus
from mptraining_operator.jobs.apply import status_changes
from mptraining_operator.jobs.children import NamespaceDeleted, NotCreated, create_child
from mptraining_operator.jobs.resources.job_objects import Owner, owner_reference
from mptraining_operator.jobs.watch import api_objects
from mptraining_operator.jobs.watch import parse as parse_jobs
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.jobs.watch.parse import StoredJob
from mptraining_operator.runtime.replica import Replica
from mptraining_operator.runtime.values import Key
from mptraining_operator.sweeps.cache import StoredSweep, Sweep, SweepCache, parse

_log = logging.getLogger(__name__)

# Seconds until a refused creation is tried again; the delay doubles. A quota is rarely freed soon.
_FIRST_RETRY = 2.0
_LONGEST_RETRY = 60.0


@dataclass(slots=True)
class Refusals:
    """The jobs of one sweep whose creation was refused, with the time of the next try in seconds since 1970."""

    _refused: dict[str, tuple[Refusal, float, float]] = field(default_factory=dict)

    def put(self, name: str, refusal: Refusal, now: float) -> bool:
        """Record a refusal; return whether it is another than before."""
        before, delay, _ = self._refused.get(name, (None, _FIRST_RETRY / 2, 0.0))
        delay = min(2 * delay, _LONGEST_RETRY)
        self._refused[name] = refusal, delay, now + delay
        return before != refusal

    def remove(self, name: str) -> None:
        self._refused.pop(name, None)

    def keep(self, names: set[str]) -> None:
        """Forget refusals of other jobs."""
        self._refused = {name: refused for name, refused in self._refused.items() if name in names}

    def next_try(self, now: float) -> float | None:
        """Return when the next job is tried again, or None; the plan of a suspended sweep tries none."""
        return min((at for refusal, _, at in self._refused.values() if not refusal.final and at > now), default=None)

    def in_force(self, now: float) -> Mapping[str, Refusal]:
        """Return the refusals of jobs that are not to be created now."""
        return {name: refusal for name, (refusal, _, at) in self._refused.items() if refusal.final or now < at}


@dataclass(eq=False)
class SweepApplier:
    """Executes plans; `wake_job` queues a job. Thread-safe for different sweeps."""

    replica: Replica
    sweeps: SweepCache
    jobs: Cache
    wake_job: Callable[[Key], None]

    def write_status(self, sweep: StoredSweep, before: SweepStatus, after: SweepStatus) -> StoredSweep | None:
        """Write the status; return the sweep as the API server stored it, or None after a conflict.

        After a conflict the cache has another version. Raises ApiProblem.
        """
        changes = status_changes(before, after)
        if not changes:
            return sweep
        key = sweep.key
        written, raw = self.replica.leader.patch_status_or_read(SWEEPS, key.namespace, key.name, sweep.version, changes)
        if raw is None:
            self.sweeps.remove(key, sweep.uid, sweep.version)
            return None
        stored = parse(api_objects.convert(raw, Sweep))
        self.sweeps.put(stored)
        return stored if written else None

    def act(self, plan: SweepPlan, sweep: StoredSweep, refusals: Refusals) -> tuple[int, bool]:
        """Emit the plan's Events and execute its actions.

        Return the number of created jobs, and whether the creation of another was refused, which its trial must report.
        Raises ApiProblem; then the next plan has the actions again.
        """
        for record in plan.event_records:
            self.emit(sweep, record)
        before = len(refusals.in_force(self.replica.clock()))
        created = sum(self._execute(action, sweep, refusals) for action in plan.actions)
        return created, len(refusals.in_force(self.replica.clock())) > before

    def emit(self, sweep: StoredSweep, record: EventRecord) -> None:
        level = logging.WARNING if record.type == "Warning" else logging.INFO
        _log.log(level, "%s: %s", record.reason, record.message, extra={"sweep": str(sweep.key)})
        self.replica.event_recorder.record(SWEEP_KIND, sweep.key, sweep.uid, record)

    def find_job(self, sweep: StoredSweep, name: str) -> None:
        """Read a job that the cache lacks although the sweep's status says that it runs. Raises ApiProblem."""
        job = self.replica.leader.get_if_exists(JOBS, sweep.key.namespace, name)
        if job is not None:
            self._put_job(job)

    def _execute(self, action: Action, sweep: StoredSweep, refusals: Refusals) -> bool:
        """Execute one action; return whether it created a job."""
        match action:
            case CreateJob():
                return self._create(action, sweep, refusals)
            case SuspendJob():
                self._suspend(action, sweep)
            case DeleteJob():
                job = self._own_job(sweep, action.name)
                if job is not None and not job.deleting and not self._delete(JOBS, job.key, job.uid):
                    self._check_job(job)
            case DeleteSweep():
                if not self._delete(SWEEPS, sweep.key, sweep.uid):
                    self.sweeps.remove(sweep.key, sweep.uid, sweep.version)
        return False

    def _create(self, action: CreateJob, sweep: StoredSweep, refusals: Refusals) -> bool:
        owner = Owner(sweep.key.namespace, sweep.key.name, sweep.uid, format_time(sweep.created))
        try:
            created = create_child(self.replica.leader, JOBS, owner, _owned(action.document, sweep))
        except NamespaceDeleted:
            return False
        except NotCreated as rejected:
            # A name that is taken may become free, and a quota; only what is invalid stays so.
            refusal = Refusal(rejected.message, final=rejected.kind == "Invalid")
            if refusals.put(action.name, refusal, self.replica.clock()):
                self.emit(sweep, EventRecord("TrialNotCreated", str(rejected), "Warning"))
            return False
        refusals.remove(action.name)
        self._put_job(created)
        return True

    def _suspend(self, action: SuspendJob, sweep: StoredSweep) -> None:
        job = self._own_job(sweep, action.name)
        if job is None:
            return
        policy = msgspec.json.decode(job.spec).get("runPolicy") or {}
        if bool(policy.get("suspend")) == action.suspend:
            return
        # The uid is a precondition: another job of the name is not to be suspended.
        change = {"metadata": {"uid": job.uid}, "spec": {"runPolicy": {"suspend": action.suspend}}}
        try:
            answer = self.replica.leader.patch(JOBS, job.key.namespace, job.key.name, change)
        except ApiProblem as problem:
            if problem.status not in (404, 409, 422):
                raise
            self._check_job(job)
            return
        self._put_job(answer)

    def _delete(self, resource: Resource, key: Key, uid: str) -> bool:
        """Delete an object; return False if it is gone already. The garbage collector deletes the jobs of a sweep."""
        try:
            self.replica.leader.delete(resource, key.namespace, key.name, uid=uid, propagation="Background")
        except ApiProblem as problem:
            if problem.status not in (404, 409):
                raise
            return False
        return True

    def _check_job(self, job: StoredJob) -> None:
        """Correct the cache about a job that a call did not find as the cache has it: a watch may have missed it."""
        raw: Raw | None = self.replica.leader.get_if_exists(JOBS, job.key.namespace, job.key.name)
        if raw is not None:
            self._put_job(raw)
        if raw is None or raw["metadata"]["uid"] != job.uid:
            self.jobs.remove_missing(job.key, job.uid)

    def _put_job(self, raw: Raw) -> None:
        job = parse_jobs.job(raw)
        if self.jobs.put_job(job):
            # The watch reports a version that the cache has already, and queues nothing.
            self.wake_job(job.key)

    def _own_job(self, sweep: StoredSweep, name: str) -> StoredJob | None:
        job = self.jobs.stored(Key(sweep.key.namespace, name))
        return job if job is not None and job.sweep_uid == sweep.uid else None


def _owned(document: Mapping[str, Any], sweep: StoredSweep) -> dict[str, Any]:
    """Return the trial's job with the sweep as its owner, so that Kubernetes deletes it with the sweep."""
    references = [owner_reference(SWEEP_KIND, sweep.key.name, sweep.uid)]
    metadata = {**document["metadata"], "namespace": sweep.key.namespace, "ownerReferences": references}
    return {**document, "metadata": metadata}
