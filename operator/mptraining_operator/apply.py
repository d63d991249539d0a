"""Execution of a plan: the status, then its Events and its actions in order; creation of children; the frozen job.

The status records the intent. Its write has the resourceVersion of the plan's snapshot as precondition; after a
conflict the job is read and planned again. The actions are idempotent.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from pydantic import ValidationError

from mptraining_api.kubernetes_api import (
    BATCH_JOBS,
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    ApiProblem,
    Raw,
    Resource,
)
from mptraining_api.problems import Problem
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import KIND
from mptraining_api.status import JobStatus, config_map_name, format_time
from mptraining_operator.cluster import Cluster
from mptraining_operator.namespace_objects import NamespaceObjects
from mptraining_operator.plan.actions import (
    Action,
    AllowPeers,
    DeleteJob,
    DeletePod,
    EndAttempt,
    EventRecord,
    ForgetAttempt,
    Plan,
    ReadEvents,
    ReadJobFile,
    ReadNode,
    StartAttempt,
)
from mptraining_operator.plan.snapshot import Key, Refusal, SeenBatchJob, Snapshot
from mptraining_operator.resources import job_objects, names
from mptraining_operator.resources.environment import PodSettings
from mptraining_operator.resources.indexed_job import indexed_job
from mptraining_operator.resources.job_objects import JOB_FILE, Owner, job_digest
from mptraining_operator.watch import api_objects, parse
from mptraining_operator.watch.cache import Cache, VersionedSnapshot

Kind = Literal["NameTaken", "Refused", "Invalid"]


# The common prefix of metav1.CauseType for fields, and the reasons of objects that no field causes to be invalid.
_FIELD_CAUSE = "FieldValue"
_INVALID = ((400, "BadRequest"), (413, "RequestEntityTooLarge"))


class NotCreated(Exception):
    """A child could not be created; `kind` as in `snapshot.Refusal`."""

    def __init__(self, kind: Kind, child: str, message: str) -> None:
        super().__init__(f"{child}: {message}")
        self.kind: Kind = kind
        self.child = child
        self.message = message


class NamespaceDeleted(Exception):
    """The namespace of the job does not exist or is being deleted."""


def create_child(
    cluster: Cluster, resource: Resource, owner: Owner, body: Mapping[str, Any], *, known: bool = False
) -> Raw:
    """Create a child and return it as stored, also if it existed; empty if it existed and is `known` to be the job's.

    Raises NotCreated, NamespaceGone, and ApiProblem if a retry may succeed.
    """
    name = str(body["metadata"]["name"])
    child = f"{body['kind']} {name}"
    try:
        return cluster.create(resource, owner.namespace, body)
    except ApiProblem as problem:
        if problem.status == 409 and known:
            return {}
        if problem.status not in (400, 403, 404, 409, 413, 422):
            raise
        if problem.status == 404 or problem.namespace_terminating:
            raise NamespaceDeleted from None
        if problem.status in (403, 409):
            # An exhausted quota may return 403 for an object that exists.
            found = _existing(cluster, resource, owner, name, child)
            if found is not None:
                return found
            if problem.status == 409:
                # The object was deleted between the two calls.
                raise
        raise NotCreated(_kind(problem), child, problem.message) from None


def _kind(problem: ApiProblem) -> Kind:
    """Return Invalid if the API server itself cannot accept the object, else Refused: by a quota or a policy.

    The API server names the cause of each invalid field, and gives a reason for a body that it cannot decode or that is
    too large. Admission webhooks (400 without a reason, or 403) and ValidatingAdmissionPolicies (422 with a cause
    without a reason) do not, and may accept the same object later.
    """
    if problem.status == 422:
        invalid = bool(problem.causes) and all(cause.startswith(_FIELD_CAUSE) for cause in problem.causes)
    else:
        invalid = (problem.status, problem.reason) in _INVALID
    return "Invalid" if invalid else "Refused"


def _existing(cluster: Cluster, resource: Resource, owner: Owner, name: str, child: str) -> Raw | None:
    """Return the job's object of that name, or None. Raises NotCreated for another owner's or a deleting object."""
    try:
        found = cluster.get(resource, owner.namespace, name)
    except ApiProblem as problem:
        if problem.status == 404:
            return None
        raise
    metadata = found["metadata"]
    references = metadata.get("ownerReferences", ())
    controller: Raw = next((reference for reference in references if reference.get("controller")), {})
    if controller.get("uid") == owner.uid:
        if "deletionTimestamp" in metadata:
            raise NotCreated("NameTaken", child, "it is being deleted and will be created again afterwards")
        return found
    if controller.get("kind") == KIND:
        raise NotCreated(
            "NameTaken", child, f"it belongs to an earlier {KIND} {controller.get('name')!r} and is being deleted"
        )
    by = (
        f"with the controller {controller.get('kind')} {controller.get('name')!r}"
        if controller
        else "without a controller"
    )
    raise NotCreated("NameTaken", child, f"it exists already, {by}")


def with_digest(status: JobStatus, actions: Iterable[Action], known: ResolvedJob | None) -> JobStatus:
    """Return the status with the digest of the resolved job that StartAttempt is about to freeze.

    The digest of a job that is already frozen (`known`) is kept: another version may have serialized it differently.
    """
    for action in actions:
        if isinstance(action, StartAttempt) and action.job != known:
            return status.model_copy(update={"job_digest": job_digest(action.job.to_json())})
    return status


def read_frozen_job(text: str, snapshot: Snapshot, planned: ResolvedJob | None = None) -> ResolvedJob:
    """Parse the resolved job in the ConfigMap's `text`.

    Raises NotCreated if this version cannot read the text, or if its digest is not that of the status. Before the first
    status the digest is that of the Indexed Job, else of the `planned` job: whoever may create ConfigMaps could choose
    the job that runs. Jobs of versions before 0.1 have no digest.
    """
    where = f"ConfigMap {config_map_name(snapshot.key.name)}"
    expected = snapshot.status.job_digest if snapshot.status else None
    if expected is None and not (snapshot.status and snapshot.status.current_attempt):
        found = next((each.job_digest for each in snapshot.batch_jobs if each.job_digest), None)
        expected = found or (job_digest(planned.to_json()) if planned else None)
    if expected is not None and job_digest(text) != expected:
        message = f"{JOB_FILE} does not match status.jobDigest. Delete the ConfigMap: it is created again."
        raise NotCreated("NameTaken", where, message)
    try:
        return ResolvedJob.read(text)
    except ValidationError as error:
        message = f"{JOB_FILE} was written by another version of the operator: {error.errors()[0]['msg']}"
        raise NotCreated("Refused", where, message) from None


_log = logging.getLogger(__name__)


RecordEvent = Callable[[Snapshot, EventRecord], None]


class Applier:
    """Executes plans. Thread-safe for different jobs.

    `clock` is in seconds since 1970; `written` is called with each plan whose status is stored, `started` with each
    Indexed Job that is created, or found by a repeated creation.
    """

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        *,
        pod_settings: Callable[[Owner], PodSettings],
        record_event: RecordEvent,
        written: Callable[[Plan], None],
        clock: Callable[[], float],
        namespace_objects: NamespaceObjects,
        started: Callable[[Snapshot, SeenBatchJob], None] = lambda snapshot, batch_job: None,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._pod_settings = pod_settings
        self._record_event = record_event
        self._written = written
        self._started = started
        self._clock = clock
        self._namespace_objects = namespace_objects

    def apply(self, plan: Plan, seen: VersionedSnapshot) -> bool:
        """Execute the plan; return whether the cache changed and the job must be planned again. Raises ApiProblem."""
        snapshot = seen.snapshot
        if plan.status is not None:
            status = with_digest(plan.status, plan.actions, snapshot.lookups.job_file)
            changes = status_changes(snapshot.status or JobStatus(), status)
            if changes and not self._write_status(snapshot, seen.version, changes):
                return True
            snapshot = dataclasses.replace(snapshot, status=status)
        self._written(plan)
        for record in plan.event_records:
            self._emit(record, plan, snapshot)
        changed = [self._execute(action, snapshot) for action in plan.actions]
        return any(changed)

    def clean_up(self, key: Key) -> None:
        """Remove what a deleted job leaves when its workers have terminated. Raises ApiProblem."""
        if not self._cache.has_live_pods(key):
            self._namespace_objects.remove(key)

    def _emit(self, record: EventRecord, plan: Plan, snapshot: Snapshot) -> None:
        status = plan.status or snapshot.status
        attempt = status.current_attempt if status else None
        level = logging.WARNING if record.type == "Warning" else logging.INFO
        extra = {"job": str(snapshot.key), "attempt": attempt}
        _log.log(level, "%s: %s", record.reason, record.message, extra=extra)
        self._record_event(snapshot, record)

    def _write_status(self, snapshot: Snapshot, version: int, changes: Mapping[str, Any]) -> bool:
        """Write the status and return whether it was stored; after a conflict, update the job in the cache."""
        key = snapshot.key
        try:
            answer = self._cluster.patch_job_status(key.namespace, key.name, version, changes)
        except ApiProblem as problem:
            if problem.status == 404:
                self._cache.remove_job(key, snapshot.uid, version)
                return False
            if problem.status != 409:
                raise
            self._refresh(snapshot, version)
            return False
        self._cache.put_job(parse.job(answer))
        return True

    def _refresh(self, snapshot: Snapshot, version: int) -> None:
        key = snapshot.key
        try:
            self._cache.put_job(parse.job(self._cluster.get(JOBS, key.namespace, key.name)))
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            self._cache.remove_job(key, snapshot.uid, version)

    def _execute(self, action: Action, snapshot: Snapshot) -> bool:  # noqa: PLR0911 - a row of cases
        """Execute one action and return whether the job must be planned again."""
        match action:
            case StartAttempt():
                return self._start(action, snapshot)
            case AllowPeers():
                self._allow_peers(snapshot)
                return False
            case EndAttempt():
                # Foreground: the Job exists until its pods are deleted.
                return self._delete(snapshot, BATCH_JOBS, action.batch_job, action.uid, "Foreground")
            case ForgetAttempt():
                return self._delete(snapshot, BATCH_JOBS, action.batch_job, action.uid, "Background")
            case DeletePod():
                return self._delete_orphan(action, snapshot)
            case DeleteJob():
                return self._delete(snapshot, JOBS, snapshot.key.name, action.uid, "Background")
            case ReadJobFile():
                self._read_job_file(snapshot)
                return True
            case ReadNode():
                self._read_node(action.node, snapshot)
                return True
            case ReadEvents():
                self._read_events(action.about, snapshot)
                return True

    def _start(self, action: StartAttempt, snapshot: Snapshot) -> bool:
        if snapshot.job is None:
            return False
        owner = Owner(snapshot.key.namespace, snapshot.key.name, snapshot.uid, format_time(snapshot.created))
        try:
            # Built before any creation, so that an invalid pod template leaves no children.
            job = indexed_job(
                owner,
                action.job,
                snapshot.job.spec,
                attempt=action.number,
                settings=self._pod_settings(owner),
            )
            frozen = snapshot.lookups.job_file == action.job
            config_map = create_child(
                self._cluster, CONFIG_MAPS, owner, job_objects.config_map(owner, action.job), known=frozen
            )
            if self._is_other(config_map, action.job, snapshot):
                return True
            self._ensure_shared(snapshot.key.namespace)
            created = create_child(self._cluster, BATCH_JOBS, owner, job)
        except Problem as problem:
            return self._refused(snapshot, Refusal(f"Job {snapshot.key.name}", str(problem), self._clock(), "Invalid"))
        except NotCreated as no:
            return self._refused(snapshot, Refusal(no.child, no.message, self._clock(), no.kind))
        except NamespaceDeleted:
            return False
        self._started(snapshot, self._put_batch_job(snapshot.key, created))
        self._cache.update_lookups(
            snapshot.key,
            snapshot.uid,
            job_file=action.job,
            refusal=None,
            job_file_missing=False,
        )
        return False

    def _ensure_shared(self, namespace: str) -> None:
        """Create the namespace's shared objects. Raises NotCreated, NamespaceDeleted, ApiProblem."""
        try:
            self._namespace_objects.ensure(namespace)
        except ApiProblem as problem:
            if problem.status not in (400, 403, 404, 409, 413, 422):
                raise
            if problem.status == 404 or problem.namespace_terminating:
                raise NamespaceDeleted from None
            kind: Kind = "NameTaken" if problem.status == 409 else _kind(problem)
            raise NotCreated(kind, f"namespace {namespace}", problem.message) from None

    def _allow_peers(self, snapshot: Snapshot) -> None:
        try:
            self._namespace_objects.allow(snapshot.key, snapshot.uid)
        except ApiProblem as problem:
            if problem.status == 404 or problem.namespace_terminating:
                return
            raise
        self._cache.update_lookups(snapshot.key, snapshot.uid, peers_allowed=True)

    def _refused(self, snapshot: Snapshot, refusal: Refusal) -> bool:
        return self._cache.update_lookups(snapshot.key, snapshot.uid, refusal=refusal)

    def _is_other(self, config_map: Raw, job: ResolvedJob, snapshot: Snapshot) -> bool:
        """Return whether an earlier attempt froze another job than this plan's; the cache then stores that job."""
        text = config_map.get("data", {}).get(JOB_FILE)
        if text is None or text == job.to_json():
            return False
        found = read_frozen_job(text, snapshot, planned=job)
        if found == job:
            return False
        self._cache.update_lookups(snapshot.key, snapshot.uid, job_file=found)
        return True

    def _read_job_file(self, snapshot: Snapshot) -> None:
        key = snapshot.key
        try:
            found = self._cluster.get(CONFIG_MAPS, key.namespace, config_map_name(key.name))
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            found = {}
        references = found.get("metadata", {}).get("ownerReferences", ())
        text = found.get("data", {}).get(JOB_FILE)
        if text is None or snapshot.uid not in [each.get("uid") for each in references]:
            self._cache.update_lookups(key, snapshot.uid, job_file_missing=True)
        else:
            job = read_frozen_job(text, snapshot)
            self._cache.update_lookups(key, snapshot.uid, job_file=job, job_file_missing=False)

    def _read_events(self, about: str, snapshot: Snapshot) -> None:
        selector = f"involvedObject.uid={about},type=Warning"
        events: list[Raw] = []
        try:
            for items, _ in self._cluster.pages(EVENTS, snapshot.key.namespace, fieldSelector=selector):
                events += [msgspec.json.decode(each) for each in items]
        except ApiProblem as problem:
            # Events only explain a wait: without them the job starts, or reaches its deadline, all the same.
            _log.info("events could not be read: %s", problem, extra={"job": str(snapshot.key)})
        warning = parse.newest_warning(events, read_at=self._clock())
        self._cache.update_warning(snapshot.key, snapshot.uid, about, warning)

    def _read_node(self, node: str, snapshot: Snapshot) -> None:
        try:
            unready = parse.unready(self._cluster.get(NODES, None, node))
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            # The pod garbage collector ends the pods of a node that does not exist.
            unready = False
        self._cache.update_node(snapshot.key, snapshot.uid, node, unready)

    def _delete_orphan(self, action: DeletePod, snapshot: Snapshot) -> bool:
        try:
            owner = self._cluster.get(BATCH_JOBS, snapshot.key.namespace, action.batch_job)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            owner = {}
        if not owner or owner["metadata"]["uid"] != action.batch_job_uid:
            return self._delete(snapshot, PODS, action.pod, action.uid, "Background")
        # The watch stream selects by label: without it the Job's end would not be observed.
        if owner["metadata"].get("labels", {}).get(names.JOB) == snapshot.key.name:
            self._put_batch_job(snapshot.key, owner)
            if self._cache.controls(snapshot.key, action.batch_job_uid):
                return True
        # Its label or its owner reference was removed: delete the Job, because the next attempt waits for its pods.
        if "deletionTimestamp" in owner["metadata"]:
            return False
        return self._delete(snapshot, BATCH_JOBS, action.batch_job, action.batch_job_uid, "Foreground")

    def _put_batch_job(self, key: Key, answer: Raw) -> SeenBatchJob:
        job = api_objects.convert(answer, api_objects.Job)
        seen = parse.batch_job(job)
        self._cache.put_batch_job(key, parse.version_number(job.metadata.resource_version), seen)
        return seen

    def _delete(self, snapshot: Snapshot, resource: Resource, name: str, uid: str, propagation: str) -> bool:
        """Delete an object; return whether the cache had it although it was already deleted."""
        try:
            self._cluster.delete(resource, snapshot.key.namespace, name, uid=uid, propagation=propagation)
        except ApiProblem as problem:
            if problem.status not in (404, 409):
                raise
            # 409: another object has the name, or another conflict, which the next reconcile resolves.
            if problem.status == 409 and self._exists(resource, snapshot.key.namespace, name, uid):
                return False
            # A watch stream may have missed the deletion.
            return self._cache.remove_missing(snapshot.key, uid)
        return False

    def _exists(self, resource: Resource, namespace: str, name: str, uid: str) -> bool:
        try:
            return bool(self._cluster.get(resource, namespace, name)["metadata"]["uid"] == uid)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            return False


def status_changes(before: JobStatus, after: JobStatus) -> dict[str, Any]:
    """Return the merge patch between two statuses: whole top-level fields, null for removed ones, without progress."""
    old, new = before.to_document(), after.to_document()
    fields = (old.keys() | new.keys()) - {"progress"}
    return {field: new.get(field) for field in sorted(fields) if old.get(field) != new.get(field)}
