"""Execution of a plan: the status, then its Events and its actions in order.

The status records the intent. Its write has the resourceVersion of the plan's snapshot as precondition; after a
conflict the job is read and planned again. The actions are idempotent.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mptraining_api.kubernetes_api import (
    BATCH_JOBS,
    JOBS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    ApiProblem,
    Raw,
    Resource,
)
from mptraining_api.model import Model
from mptraining_api.problems import Problem
from mptraining_api.resolve.defaults import MAX_TO_KEEP
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import Scheduling
from mptraining_api.status import EventRecord, JobStatus
from mptraining_operator.jobs import children, place_in_queue
from mptraining_operator.jobs.children import NamespaceDeleted, NotCreated, create_child
from mptraining_operator.jobs.namespace_objects import NamespaceObjects
from mptraining_operator.jobs.plan import actions
from mptraining_operator.jobs.plan.actions import Plan
from mptraining_operator.jobs.plan.capacity.avoided_nodes import avoided_nodes
from mptraining_operator.jobs.plan.kueue import admitted
from mptraining_operator.jobs.plan.snapshot import Refusal, SeenBatchJob, Snapshot
from mptraining_operator.jobs.resources import job_objects, names, pod_groups
from mptraining_operator.jobs.resources.capacity_probe import capacity_probe
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.jobs.resources.job_objects import Owner
from mptraining_operator.jobs.watch import api_objects, parse
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.jobs.watch.warning_events import WarningEvents
from mptraining_operator.runtime.cluster import Cluster
from mptraining_operator.runtime.values import Key

_log = logging.getLogger(__name__)

# Seconds for which the result of API discovery is used.
_DISCOVERY_SECONDS = 60.0

RecordEvent = Callable[[Snapshot, EventRecord], None]


@dataclass(eq=False)
class Applier:
    """Executes plans. Thread-safe for different jobs.

    `clock` is in seconds since 1970; `written` is called with each plan whose status is stored, `started` with each
    Indexed Job that is created, or found by a repeated creation.
    """

    cluster: Cluster
    cache: Cache
    pod_settings: Callable[[Owner, ResolvedJob | None], PodSettings]
    record_event: RecordEvent
    written: Callable[[Plan], None]
    clock: Callable[[], float]
    namespace_objects: NamespaceObjects
    started: Callable[[Snapshot, SeenBatchJob], None] = lambda snapshot, batch_job: None

    def __post_init__(self) -> None:
        self._warnings = WarningEvents(self.cluster, self.clock)
        # When discovery was read, and whether it lists the API.
        self._gang_apis: dict[pod_groups.PodGroupApi, tuple[float, bool]] = {}

    def apply(self, plan: Plan, snapshot: Snapshot) -> bool:
        """Execute the plan; return whether the cache changed and the job must be planned again. Raises ApiProblem."""
        if plan.status is not None:
            changes = status_changes(snapshot.status or JobStatus(), plan.status)
            if changes and not self._write_status(snapshot, changes):
                return True
            snapshot = dataclasses.replace(snapshot, status=plan.status)
        if plan.job_text:
            self.cache.update_lookups(snapshot.key, snapshot.uid, job_text=plan.job_text, refusal=None)
        self.written(plan)
        for record in plan.event_records:
            self._emit(record, plan, snapshot)
        changed = bool(plan.job_text)
        for action in plan.actions:
            outdated = self._execute(action, snapshot)
            changed = changed or outdated
            if outdated and isinstance(action, actions.ReportToQueue):
                # The place in the queue may be gone.
                break
        return changed

    def _emit(self, record: EventRecord, plan: Plan, snapshot: Snapshot) -> None:
        status = plan.status or snapshot.status
        attempt = status.current_attempt if status else None
        level = logging.WARNING if record.type == "Warning" else logging.INFO
        extra = {"job": str(snapshot.key), "attempt": attempt}
        _log.log(level, "%s: %s", record.reason, record.message, extra=extra)
        self.record_event(snapshot, record)

    def _write_status(self, snapshot: Snapshot, changes: Mapping[str, Any]) -> bool:
        """Write the status and return whether it was stored; after a conflict, update the job in the cache."""
        key, version = snapshot.key, snapshot.version
        written, stored = self.cluster.patch_status_or_read(JOBS, key.namespace, key.name, version, changes)
        if stored is None:
            self.cache.remove_job(key, snapshot.uid, version)
        else:
            self.cache.put_job(parse.job(stored))
        return written

    def _execute(self, action: actions.Action, snapshot: Snapshot) -> bool:  # noqa: PLR0911, PLR0912 - a row of cases
        """Execute one action and return whether the job must be planned again."""
        match action:
            case actions.StartAttempt():
                return self._creating(f"Job {snapshot.key.name}", snapshot, lambda: self._start(action, snapshot))
            case actions.StartProbe():
                self._start_probe(action, snapshot)
                return False
            case actions.CreatePodGroup():
                seen = next((job for job in snapshot.batch_jobs if job.uid == action.uid), None)
                if seen is None:
                    return False
                return self._creating(f"Job {seen.name}", snapshot, lambda: self._create_pod_group(seen, snapshot))
            case actions.EndAttempt():
                # Foreground: the Job exists until its pods are deleted.
                return self._delete(snapshot, BATCH_JOBS, action.batch_job, action.uid, "Foreground")
            case actions.ForgetAttempt():
                return self._delete(snapshot, BATCH_JOBS, action.batch_job, action.uid, "Background")
            case actions.DeletePod():
                return self._delete_orphan(action, snapshot)
            case actions.DeleteJob():
                return self._delete(snapshot, JOBS, snapshot.key.name, action.uid, "Background")
            case actions.ReadJobFile():
                text = children.read_job_file(self.cluster, snapshot)
                self.cache.update_lookups(snapshot.key, snapshot.uid, job_text=text)
                return True
            case actions.ReadNode():
                node = self.cluster.get_if_exists(NODES, None, action.node)
                # The pod garbage collector ends the pods of a node that does not exist.
                unready = node is not None and parse.unready(node)
                self.cache.update_node(snapshot.key, snapshot.uid, action.node, unready)
                return True
            case actions.ReadEvents():
                warning = self._warnings.newest(snapshot.key.namespace, action.about)
                self.cache.update_warning(snapshot.key, snapshot.uid, action.about, warning)
                return True
            case actions.LeaveQueue():
                return self._delete(snapshot, BATCH_JOBS, action.queue_job, action.uid, "Background")
            case actions.JoinQueue():
                name = f"Job {names.queue_job(snapshot.key.name)}"
                return self._creating(name, snapshot, lambda: self._join_queue(action, snapshot))
            case actions.ReportToQueue():
                return self._report_to_queue(action, snapshot)

    def _creating(self, child: str, snapshot: Snapshot, create: Callable[[], bool]) -> bool:
        """Return the result of `create`, or whether its refusal is a new one; `child` is refused as a whole."""
        try:
            return create()
        except NamespaceDeleted:
            return False
        except NotCreated as rejected:
            refusal = Refusal(rejected.child, rejected.message, self.clock(), rejected.kind)
        except pod_groups.GangNotServed as rejected:
            refusal = Refusal(child, str(rejected), self.clock(), "NoGang")
        except Problem as problem:
            refusal = Refusal(child, str(problem), self.clock(), "Invalid")
        return self.cache.update_lookups(snapshot.key, snapshot.uid, refusal=refusal)

    def _start(self, action: actions.StartAttempt, snapshot: Snapshot) -> bool:
        owner, checkpoint = snapshot.owner, snapshot.job.spec.checkpoint if snapshot.job else None
        settings, attempt = self.pod_settings(owner, action.job), action.attempt_job
        text = snapshot.lookups.job_text or ""
        gang = None
        # An elastic job takes the workers that get a machine; a gang of all of them would get none.
        if action.job.workers_range is None:
            gang = pod_groups.choose(
                action.job.scheduling or Scheduling(),
                attempt.workers,
                coscheduling=settings.gangs.coscheduling,
                volcano=settings.gangs.volcano,
                serves=self._serves,
            )
        # Built before any creation, so that an invalid pod template leaves no children.
        job = indexed_job(
            owner,
            action.job.model_copy(update={"image": action.image}) if action.image else action.job,
            attempt=action.number,
            settings=settings,
            digest=job_objects.job_digest(text),
            max_to_keep=(checkpoint and checkpoint.max_to_keep) or MAX_TO_KEEP,
            gang=gang,
            machine=action.machine,
            workers=action.workers,
            admitted=admitted(snapshot),
            avoided_nodes=avoided_nodes(snapshot.status),
        )
        children.keep_job_file(self.cluster, owner, text)
        try:
            self.namespace_objects.ensure(owner.namespace)
        except ApiProblem as problem:
            raise children.rejection(problem, f"namespace {owner.namespace}") from None
        if attempt.placement.device_class is not None:
            devices = attempt.accelerator.count_per_worker
            template = job_objects.claim_template(owner, attempt.placement.device_class, devices)
            create_child(self.cluster, RESOURCE_CLAIM_TEMPLATES, owner, template)
        # An attempt after the first has fields with which the job has run.
        created = create_child(self.cluster, BATCH_JOBS, owner, job, strict=action.number == 1)
        batch_job = self._put_batch_job(snapshot.key, created)
        self.started(snapshot, batch_job)
        self.cache.update_lookups(snapshot.key, snapshot.uid, refusal=None)
        return bool(batch_job.gang) and self._create_pod_group(batch_job, snapshot)

    def _serves(self, api: pod_groups.PodGroupApi) -> bool:
        """Return whether the API server serves gangs of that API, which may be installed at any time."""
        read_at, served = self._gang_apis.get(api, (-math.inf, False))
        if self.clock() >= read_at + _DISCOVERY_SECONDS:
            served = self.cluster.serves(_groups(api))
            self._gang_apis[api] = self.clock(), served
        return served

    def _create_pod_group(self, seen: SeenBatchJob, snapshot: Snapshot) -> bool:
        api = pod_groups.by_api_version(seen.gang)
        if api is None:
            raise pod_groups.GangNotServed(
                f"{seen.gang} of Job {seen.name} is not known to this version of the operator"
            )
        owner, text = snapshot.owner, snapshot.lookups.job_text or children.read_job_file(self.cluster, snapshot)
        job = ResolvedJob.read(text) if text else None
        scheduling = (job and job.scheduling) or Scheduling()
        annotations = job.pod_template.annotations if job and job.pod_template else None
        body = pod_groups.pod_group(
            owner,
            api,
            seen.name,
            seen.uid,
            seen.attempt,
            workers=seen.parallelism,
            queue=(annotations or {}).get(pod_groups.VOLCANO_QUEUE, ""),
            priority=scheduling.priority_class_name or self.pod_settings(owner, job).runtime.priority_class_name or "",
        )
        create_child(self.cluster, _groups(api), dataclasses.replace(owner, uid=seen.uid), body)
        return self.cache.update_lookups(snapshot.key, snapshot.uid, pod_group_of=seen.uid, refusal=None)

    def _join_queue(self, action: actions.JoinQueue, snapshot: Snapshot) -> bool:
        settings = self.pod_settings(snapshot.owner, action.start.job)
        self._put_batch_job(snapshot.key, place_in_queue.create_place(self.cluster, snapshot, action, settings))
        self.cache.update_lookups(snapshot.key, snapshot.uid, refusal=None)
        return True

    def _report_to_queue(self, action: actions.ReportToQueue, snapshot: Snapshot) -> bool:
        """Write the status; return whether the queue's Job is another one than observed, or was changed since."""
        key, changes = snapshot.key, place_in_queue.status_changes(action, self.clock())
        written, stored = self.cluster.patch_status_or_read(
            BATCH_JOBS, key.namespace, action.queue_job, action.version, changes
        )
        if stored is None or stored["metadata"]["uid"] != action.uid:
            self.cache.remove_missing(key, action.uid)
        if stored is not None:
            self._put_batch_job(key, stored)
        return not written

    def _start_probe(self, action: actions.StartProbe, snapshot: Snapshot) -> None:
        """Create the probe of an elastic job; without one, because a quota refuses it, the job keeps its size."""
        owner = snapshot.owner
        try:
            probe = capacity_probe(
                owner,
                action.job,
                machine=action.machine,
                pods=action.pods,
                settings=self.pod_settings(owner, action.job),
                admitted=admitted(snapshot),
            )
            self._put_batch_job(snapshot.key, create_child(self.cluster, BATCH_JOBS, owner, probe))
        except (Problem, NotCreated) as rejected:
            _log.warning("the job cannot look for more machines: %s", rejected, extra={"job": str(snapshot.key)})
        except NamespaceDeleted:
            return

    def _delete_orphan(self, action: actions.DeletePod, snapshot: Snapshot) -> bool:
        owner = self.cluster.get_if_exists(BATCH_JOBS, snapshot.key.namespace, action.batch_job)
        if owner is None or owner["metadata"]["uid"] != action.batch_job_uid:
            return self._delete(snapshot, PODS, action.pod, action.uid, "Background")
        # The watch stream selects by label: without it the Job's end would not be observed.
        if owner["metadata"].get("labels", {}).get(names.JOB) == snapshot.key.name:
            self._put_batch_job(snapshot.key, owner)
            if self.cache.controls(snapshot.key, action.batch_job_uid):
                return True
        # Its label or its owner reference was removed: delete the Job, because the next attempt waits for its pods.
        if "deletionTimestamp" in owner["metadata"]:
            return False
        return self._delete(snapshot, BATCH_JOBS, action.batch_job, action.batch_job_uid, "Foreground")

    def _put_batch_job(self, key: Key, answer: Raw) -> SeenBatchJob:
        job = api_objects.convert(answer, api_objects.Job)
        seen = parse.batch_job(job)
        self.cache.put_batch_job(key, parse.version_number(job.metadata.resource_version), seen)
        return seen

    def _delete(self, snapshot: Snapshot, resource: Resource, name: str, uid: str, propagation: str) -> bool:
        """Delete an object; return whether the cache had it although it was already deleted."""
        try:
            self.cluster.delete(resource, snapshot.key.namespace, name, uid=uid, propagation=propagation)
        except ApiProblem as problem:
            if problem.status not in (404, 409):
                raise
            # 409: another object has the name, or another conflict, which the next reconcile resolves.
            if problem.status == 409:
                stored = self.cluster.get_if_exists(resource, snapshot.key.namespace, name)
                if stored is not None and stored["metadata"]["uid"] == uid:
                    return False
            # A watch stream may have missed the deletion.
            return self.cache.remove_missing(snapshot.key, uid)
        return False


def _groups(api: pod_groups.PodGroupApi) -> Resource:
    return Resource(api.group, api.version, api.plural)


def status_changes(before: Model, after: Model) -> dict[str, Any]:
    """Return the merge patch between two statuses: whole top-level fields, null for removed ones, without progress."""
    old, new = before.to_document(), after.to_document()
    fields = (old.keys() | new.keys()) - {"progress"}
    return {field: new.get(field) for field in sorted(fields) if old.get(field) != new.get(field)}
