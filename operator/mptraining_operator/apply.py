"""Carries out a plan: the status first, then the actions in their order, then what is to be said.

Status is the intent and is written only over the very version that the plan was made from: whoever loses that race
reads the job again and plans anew. What comes after may be done twice with the effect of once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from mptraining_api.problems import Problem
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import KIND
from mptraining_api.status import JobStatus
from mptraining_operator import cluster as api
from mptraining_operator.cluster import ApiProblem, Cluster, Raw, Resource
from mptraining_operator.plan.actions import (
    Action,
    DeleteJob,
    DeletePod,
    EndAttempt,
    EventRecord,
    FailPod,
    ForgetAttempt,
    Plan,
    ReadJobFile,
    ReadNode,
    StartAttempt,
)
from mptraining_operator.plan.snapshot import Refusal, Snapshot
from mptraining_operator.resources import names, shared
from mptraining_operator.resources.environment import PodSettings
from mptraining_operator.resources.indexed_job import indexed_job
from mptraining_operator.resources.shared import JOB_FILE, Owner
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache, Seen

Kind = Literal["NameTaken", "Refused", "Invalid"]


class Creator(Protocol):
    """What is needed of `cluster.Cluster`."""

    def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any]) -> Raw: ...

    def get(self, resource: Resource, namespace: str | None, name: str) -> Raw: ...


class NotCreated(Exception):
    """The child is not there, and why; see `snapshot.Refusal`."""

    def __init__(self, kind: Kind, child: str, message: str) -> None:
        super().__init__(f"{child}: {message}")
        self.kind: Kind = kind
        self.child = child
        self.message = message


class NamespaceGone(Exception):
    """There is nothing more to create: the namespace is being deleted, and the job with it."""


def create(cluster: Creator, resource: Resource, owner: Owner, body: Mapping[str, Any], *, known: bool = False) -> Raw:
    """The child as it is stored, made now or before; an empty mapping when it was there and is `known` to be ours.

    Raises NotCreated, NamespaceGone, and ApiProblem for what may heal by trying again.
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
        if problem.status == 404 or problem.namespace_is_going:
            raise NamespaceGone from None
        if problem.status in (403, 409):
            # An exhausted quota can answer 403 where the object exists.
            found = _existing(cluster, resource, owner, name, child)
            if found is not None:
                return found
            if problem.status == 409:
                # Deleted between the two calls.
                raise
        raise NotCreated(_kind(problem), child, problem.message) from None


def _kind(problem: ApiProblem) -> Kind:
    """A webhook's no is somebody's policy, whatever code it chose; a 400, 413 or 422 is about the object itself."""
    return "Refused" if problem.status == 403 or "admission webhook" in problem.message else "Invalid"


def _existing(cluster: Creator, resource: Resource, owner: Owner, name: str, child: str) -> Raw | None:
    """Our own object of that name, None when there is none. Raises NotCreated when it is not ours or is going."""
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
            raise NotCreated("NameTaken", child, "it is being deleted and will be made anew when it is gone")
        return found
    if controller.get("kind") == KIND:
        raise NotCreated(
            "NameTaken", child, f"it belongs to an earlier {KIND} {controller.get('name')!r} and is being deleted"
        )
    by = f"{controller.get('kind')} {controller.get('name')!r}" if controller else "nobody"
    raise NotCreated("NameTaken", child, f"it exists already, controlled by {by}")


def digest(text: str) -> str:
    """SHA-256, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def with_digest(status: JobStatus, actions: Iterable[Action], known: ResolvedJob | None) -> JobStatus:
    """The status with the digest of the job that an attempt is about to freeze.

    Of one that is frozen already (`known`) it stays: another version may have written the same job in other words.
    """
    for action in actions:
        if isinstance(action, StartAttempt) and action.job != known:
            return status.model_copy(update={"job_digest": digest(action.job.to_json())})
    return status


def read(text: str, snapshot: Snapshot) -> ResolvedJob:
    """The job in the ConfigMap's `text`. Raises NotCreated, in the ConfigMap's name, for a job that is not what the
    status vouches for or that this version cannot read. Jobs of versions before 0.1 have no digest.
    """
    where = f"ConfigMap {names.config_map(snapshot.key.name)}"
    expected = snapshot.status.job_digest if snapshot.status else None
    if expected is not None and digest(text) != expected:
        words = f"{JOB_FILE} is not the job that status.jobDigest vouches for. Delete the ConfigMap: it is made anew."
        raise NotCreated("NameTaken", where, words)
    try:
        return ResolvedJob.read(text)
    except ValidationError as error:
        words = f"{JOB_FILE} was written by another version of the operator: {error.errors()[0]['msg']}"
        raise NotCreated("Refused", where, words) from None


_log = logging.getLogger(__name__)

# Jobs whose Service and NetworkPolicy are known to be their own; the oldest are looked at again.
_KNOWN_KEPT = 20_000
# The API server's words when another object has the name by now: to a deletion (its store has others than its front),
# and to a patch. Long ones, for a job's name may have "uid" in it, and a pod that lives must not be taken for gone.
_ANOTHER = {
    409: ("the UID in the precondition", "Precondition failed: UID"),
    422: ("metadata.uid: Invalid value",),
}

Announce = Callable[[Snapshot, EventRecord], None]


class Applier:
    """Thread-safe for different jobs. `clock` in seconds since 1970; `written` hears of plans whose status stands."""

    def __init__(
        self,
        cluster: Cluster,
        cache: Cache,
        *,
        pod_settings: Callable[[Owner], PodSettings],
        announce: Announce,
        written: Callable[[Plan], None],
        clock: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._pod_settings = pod_settings
        self._announce = announce
        self._written = written
        self._clock = clock
        self._known: OrderedDict[str, None] = OrderedDict()

    def apply(self, plan: Plan, seen: Seen) -> bool:
        """Whether something was learnt by which the plan is to be made anew at once. Raises ApiProblem."""
        snapshot = seen.snapshot
        if plan.status is not None:
            status = with_digest(plan.status, plan.actions, snapshot.findings.job_file)
            changes = status_changes(snapshot.status or JobStatus(), status)
            if changes and not self._write_status(snapshot, seen.version, changes):
                return True
            snapshot = dataclasses.replace(snapshot, status=status)
        self._written(plan)
        for announcement in plan.event_records:
            self._say(announcement, plan, snapshot)
        learnt = [self._carry_out(action, snapshot) for action in plan.actions]
        return any(learnt)

    def _say(self, announcement: EventRecord, plan: Plan, snapshot: Snapshot) -> None:
        status = plan.status or snapshot.status
        attempt = status.current_attempt if status else None
        level = logging.WARNING if announcement.type == "Warning" else logging.INFO
        extra = {"job": str(snapshot.key), "attempt": attempt}
        _log.log(level, "%s: %s", announcement.reason, announcement.message, extra=extra)
        self._announce(snapshot, announcement)

    def _write_status(self, snapshot: Snapshot, version: int, changes: Mapping[str, Any]) -> bool:
        """Whether it is written; else the cache knows the job as it is by now."""
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
            self._cache.put_job(parse.job(self._cluster.get(api.JOBS, key.namespace, key.name)))
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            self._cache.remove_job(key, snapshot.uid, version)

    def _carry_out(self, action: Action, snapshot: Snapshot) -> bool:  # noqa: PLR0911 - a row of cases
        """Whether something was learnt."""
        match action:
            case StartAttempt():
                return self._start(action, snapshot)
            case EndAttempt():
                # Foreground: the Job stands until its pods are gone.
                return self._delete(snapshot, api.BATCH_JOBS, action.batch_job, action.uid, "Foreground")
            case ForgetAttempt():
                return self._delete(snapshot, api.BATCH_JOBS, action.batch_job, action.uid, "Background")
            case DeletePod():
                return self._delete_orphan(action, snapshot)
            case DeleteJob():
                return self._delete(snapshot, api.JOBS, snapshot.key.name, action.uid, "Background")
            case FailPod():
                return self._fail_pod(action, snapshot)
            case ReadJobFile():
                self._read_job_file(snapshot)
                return True
            case ReadNode():
                self._read_node(action.node, snapshot)
                return True

    def _start(self, action: StartAttempt, snapshot: Snapshot) -> bool:
        if snapshot.job is None:
            return False
        owner = Owner(snapshot.key.namespace, snapshot.key.name, snapshot.uid)
        known = snapshot.uid in self._known
        try:
            # Built first: a pod that cannot be leaves nothing behind.
            job = indexed_job(
                owner,
                action.job,
                snapshot.job.spec,
                attempt=action.number,
                settings=self._pod_settings(owner),
            )
            frozen = snapshot.findings.job_file == action.job
            config_map = create(
                self._cluster, api.CONFIG_MAPS, owner, shared.config_map(owner, action.job), known=frozen
            )
            if self._is_other(config_map, action.job, snapshot):
                return True
            create(self._cluster, api.SERVICES, owner, shared.service(owner), known=known)
            create(self._cluster, api.NETWORK_POLICIES, owner, shared.network_policy(owner), known=known)
            made = create(self._cluster, api.BATCH_JOBS, owner, job)
        except Problem as problem:
            return self._refused(snapshot, Refusal(f"Job {snapshot.key.name}", str(problem), self._clock(), "Invalid"))
        except NotCreated as no:
            return self._refused(snapshot, Refusal(no.child, no.message, self._clock(), no.kind))
        except NamespaceGone:
            return False
        self._cache.put_batch_job(snapshot.key, parse.version(made), parse.batch_job(made))
        self._cache.learn(snapshot.key, snapshot.uid, job_file=action.job, refusal=None, job_file_missing=False)
        self._known[snapshot.uid] = None
        while len(self._known) > _KNOWN_KEPT:
            self._known.popitem(last=False)
        return False

    def _refused(self, snapshot: Snapshot, refusal: Refusal) -> bool:
        return self._cache.learn(snapshot.key, snapshot.uid, refusal=refusal)

    def _is_other(self, config_map: Raw, job: ResolvedJob, snapshot: Snapshot) -> bool:
        """Whether an earlier attempt froze another job than this plan is about; it is learnt then."""
        text = config_map.get("data", {}).get(JOB_FILE)
        if text is None or text == job.to_json():
            return False
        found = read(text, snapshot)
        if found == job:
            return False
        self._cache.learn(snapshot.key, snapshot.uid, job_file=found)
        return True

    def _read_job_file(self, snapshot: Snapshot) -> None:
        key = snapshot.key
        try:
            found = self._cluster.get(api.CONFIG_MAPS, key.namespace, names.config_map(key.name))
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            found = {}
        references = found.get("metadata", {}).get("ownerReferences", ())
        text = found.get("data", {}).get(JOB_FILE)
        if text is None or snapshot.uid not in [each.get("uid") for each in references]:
            self._cache.learn(key, snapshot.uid, job_file_missing=True)
        else:
            self._cache.learn(key, snapshot.uid, job_file=read(text, snapshot), job_file_missing=False)

    def _read_node(self, node: str, snapshot: Snapshot) -> None:
        try:
            conditions = self._cluster.get(api.NODES, None, node).get("status", {}).get("conditions", ())
            lost = not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            lost = True
        self._cache.learn_node(snapshot.key, snapshot.uid, node, lost)

    def _delete_orphan(self, action: DeletePod, snapshot: Snapshot) -> bool:
        try:
            owner = self._cluster.get(api.BATCH_JOBS, snapshot.key.namespace, action.batch_job)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            owner = {}
        if not owner or parse.uid(owner) != action.batch_job_uid:
            return self._delete(snapshot, api.PODS, action.pod, action.uid, "Background")
        # Without its label no stream would ever tell of its end.
        if parse.owner(owner) == snapshot.key:
            self._cache.put_batch_job(snapshot.key, parse.version(owner), parse.batch_job(owner))
            if self._cache.controls(snapshot.key, action.batch_job_uid):
                return True
        # Somebody took its label or its owner away: nobody looks after this gang, and the next waits for its end.
        if "deletionTimestamp" in owner["metadata"]:
            return False
        return self._delete(snapshot, api.BATCH_JOBS, action.batch_job, action.batch_job_uid, "Foreground")

    def _fail_pod(self, action: FailPod, snapshot: Snapshot) -> bool:
        at = datetime.fromtimestamp(int(self._clock()), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        message = f"node {action.node} is lost, and the pod outlived its grace period"
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "NodeLost",
            "message": message,
            "lastTransitionTime": at,
        }
        status = {"phase": "Failed", "reason": "NodeLost", "message": message, "conditions": [condition]}
        body = {"metadata": {"uid": action.uid}, "status": status}
        namespace = snapshot.key.namespace
        try:
            # Strategic: the condition joins the others instead of replacing them.
            answer = self._cluster.patch(
                api.PODS, namespace, action.pod, body, subresource="status", kind=api.STRATEGIC
            )
        except ApiProblem as problem:
            return self._gone(snapshot, action.uid, problem)
        self._cache.put_pod(snapshot.key, parse.version(answer), parse.pod(answer))
        return False

    def _delete(self, snapshot: Snapshot, resource: Resource, name: str, uid: str, propagation: str) -> bool:
        """Whether it was learnt that it is gone already."""
        try:
            self._cluster.delete(resource, snapshot.key.namespace, name, uid=uid, propagation=propagation)
        except ApiProblem as problem:
            return self._gone(snapshot, uid, problem)
        return False

    def _gone(self, snapshot: Snapshot, uid: str, problem: ApiProblem) -> bool:
        """Whether that is news: its deletion may have been lost with a stream. Raises what says something else."""
        if problem.status == 404 or _is_another(problem):
            return self._cache.gone(snapshot.key, uid)
        if problem.status != 409:
            raise problem
        # Any other conflict passes by itself.
        return False


def status_changes(before: JobStatus, after: JobStatus) -> dict[str, Any]:
    """The merge patch from one status to the other: whole top-level fields, null for what goes, never progress."""
    old, new = before.to_document(), after.to_document()
    fields = (old.keys() | new.keys()) - {"progress"}
    return {field: new.get(field) for field in sorted(fields) if old.get(field) != new.get(field)}


def _is_another(problem: ApiProblem) -> bool:
    return any(words in problem.message for words in _ANOTHER.get(problem.status, ()))
