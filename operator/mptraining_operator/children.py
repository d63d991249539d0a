"""Creation of a job's children, which may exist already, and the resolved job that all attempts share.

Attempt 1 freezes the resolved job, so that neither an upgrade nor other settings change a job that has started. The
pod template of each Indexed Job has it; a ConfigMap keeps it when the last of them is deleted before the job has ended,
as by a suspension, and for a job that is too large for a template.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import ValidationError

from mptraining_api.kubernetes_api import BATCH_JOBS, CONFIG_MAPS, ApiProblem, Raw, Resource
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import KIND
from mptraining_api.status import JobStatus, config_map_name
from mptraining_api.sweep.spec import SWEEP_KIND
from mptraining_operator.cluster import Cluster
from mptraining_operator.plan.actions import Action, StartAttempt
from mptraining_operator.plan.conditions import is_true
from mptraining_operator.plan.snapshot import Snapshot
from mptraining_operator.resources import job_objects
from mptraining_operator.resources.job_objects import JOB_FILE, Owner, job_digest

_log = logging.getLogger(__name__)

Kind = Literal["NameTaken", "Refused", "Invalid", "NoQueue"]


# The common prefix of metav1.CauseType for fields, and the reasons of objects that no field causes to be invalid.
_FIELD_CAUSE = "FieldValue"
_INVALID = ((400, "BadRequest"), (413, "RequestEntityTooLarge"))


_STRICT = {"fieldValidation": "Strict"}


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
    cluster: Cluster,
    resource: Resource,
    owner: Owner,
    body: Mapping[str, Any],
    *,
    known: bool = False,
    strict: bool = False,
) -> Raw:
    """Create a child and return it as stored, also if it existed; empty if it existed and is `known` to be the job's.

    `strict`: the API server refuses unknown fields, as a misspelt one of podTemplate, instead of dropping them.

    Raises NotCreated, NamespaceDeleted, and ApiProblem if a retry may succeed.
    """
    name = str(body["metadata"]["name"])
    child = f"{body['kind']} {name}"
    try:
        return cluster.create(resource, owner.namespace, body, **(_STRICT if strict else {}))
    except ApiProblem as problem:
        if problem.status == 409 and known:
            return {}
        if problem.status in (403, 409) and not problem.namespace_terminating:
            # An exhausted quota may return 403 for an object that exists.
            found = _existing(cluster, resource, owner, name, child)
            if found is not None:
                return found
            if problem.status == 409:
                # The object was deleted between the two calls.
                raise
        raise rejection(problem, child) from None


def rejection(problem: ApiProblem, child: str) -> Exception:
    """Return the exception for a creation that failed: NamespaceDeleted, NotCreated, or `problem` to be retried."""
    if problem.status == 404 and not problem.kind and child.startswith("ResourceClaimTemplate "):
        message = "the API server does not serve resource.k8s.io/v1, which Kubernetes 1.34 does: see deviceClasses"
        return NotCreated("Refused", child, message)
    if problem.status == 404 or problem.namespace_terminating:
        return NamespaceDeleted()
    if problem.status == 409:
        return NotCreated("NameTaken", child, problem.message)
    if problem.status in (400, 403, 413, 422):
        return NotCreated(refusal_kind(problem), child, problem.message)
    return problem


def refusal_kind(problem: ApiProblem) -> Kind:
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
    found = cluster.get_if_exists(resource, owner.namespace, name)
    if found is None:
        return None
    metadata = found["metadata"]
    references = metadata.get("ownerReferences", ())
    controller: Raw = next((reference for reference in references if reference.get("controller")), {})
    # The Job of a queue may control the Indexed Jobs of the job.
    queued = controller.get("kind") == "Job" and owner.uid in [reference.get("uid") for reference in references]
    if controller.get("uid") == owner.uid or queued:
        if "deletionTimestamp" in metadata:
            raise NotCreated("NameTaken", child, "it is being deleted and will be created again afterwards")
        return found
    kind = controller.get("kind")
    if kind in (KIND, SWEEP_KIND):
        message = f"it belongs to an earlier {kind} {controller.get('name')!r} and is being deleted"
        raise NotCreated("NameTaken", child, message)
    by = f"with the controller {kind} {controller.get('name')!r}" if controller else "without a controller"
    raise NotCreated("NameTaken", child, f"it exists already, {by}")


def frozen_text(action: StartAttempt, snapshot: Snapshot) -> str:
    """Return the text of the resolved job that the attempt runs: as it was frozen, else of the planned job."""
    frozen = snapshot.lookups.job_text
    return frozen if frozen and ResolvedJob.read(frozen) == action.job else action.job.to_json()


def with_digest(status: JobStatus, actions: Iterable[Action], snapshot: Snapshot) -> JobStatus:
    """Return the status with the digest of the resolved job that StartAttempt is about to freeze, or has frozen."""
    for action in actions:
        if isinstance(action, StartAttempt):
            return status.model_copy(update={"job_digest": job_digest(frozen_text(action, snapshot))})
    return status


def check_frozen_job(text: str, where: str, snapshot: Snapshot, planned: str = "") -> None:
    """Check the text of a resolved job that was read from the cluster. Raises NotCreated.

    This version must be able to read it, and its digest must be that of the status. Before the first status it must be
    that of the Indexed Job, else of the `planned` text: a user who may create ConfigMaps could choose the job.
    Jobs of versions before 0.1 have no digest.
    """
    expected = snapshot.status.job_digest if snapshot.status else None
    if expected is None and not (snapshot.status and snapshot.status.current_attempt):
        found = next((each.job_digest for each in snapshot.batch_jobs if each.job_digest), None)
        expected = found or (job_digest(planned) if planned else None)
    if expected is not None and job_digest(text) != expected:
        message = (
            f"{JOB_FILE} does not match status.jobDigest. Delete the {where.split(maxsplit=1)[0]}: it is created again."
        )
        raise NotCreated("NameTaken", where, message)
    try:
        ResolvedJob.read(text)
    except ValidationError as error:
        message = f"{JOB_FILE} was written by another version of the operator: {error.errors()[0]['msg']}"
        raise NotCreated("Refused", where, message) from None


def read_frozen_job(cluster: Cluster, snapshot: Snapshot) -> str | None:
    """Return the text of the job's frozen resolved job, from its newest Indexed Job or its ConfigMap; None if lost.

    Raises NotCreated as `check_frozen_job`, and ApiProblem.
    """
    namespace = snapshot.key.namespace
    for batch_job in reversed(snapshot.batch_jobs):
        found = cluster.get_if_exists(BATCH_JOBS, namespace, batch_job.name) or {}
        text = job_objects.job_text(found)
        if text is not None and found["metadata"]["uid"] == batch_job.uid:
            check_frozen_job(text, f"Job {batch_job.name}", snapshot)
            return text
    name = config_map_name(snapshot.key.name)
    found = cluster.get_if_exists(CONFIG_MAPS, namespace, name) or {}
    references = found.get("metadata", {}).get("ownerReferences", ())
    stored: str | None = found.get("data", {}).get(JOB_FILE)
    if stored is None or snapshot.uid not in [each.get("uid") for each in references]:
        return None
    check_frozen_job(stored, f"ConfigMap {name}", snapshot)
    return stored


def keep_frozen_job(cluster: Cluster, snapshot: Snapshot, ending: str) -> None:
    """Write the frozen job to a ConfigMap if the Job `ending`, about to be deleted, is the last that has it.

    A job that has ended needs it no more. Raises ApiProblem.
    """
    others = [each for each in snapshot.batch_jobs if each.name != ending and not each.deleting]
    if others or (snapshot.status is not None and is_true(snapshot.status, "Finished")):
        return
    owner = snapshot.owner
    try:
        text = snapshot.lookups.job_text or read_frozen_job(cluster, snapshot)
        if text:
            create_child(cluster, CONFIG_MAPS, owner, job_objects.config_map(owner, text))
    except NotCreated as no:
        # The job must release its machines all the same; it is resolved again if the operator restarts until then.
        _log.warning("the resolved job is not kept: %s", no, extra={"job": str(snapshot.key)})
    except NamespaceDeleted:
        return
