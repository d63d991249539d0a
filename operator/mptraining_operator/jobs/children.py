"""Creation of a job's children, which may exist already, and the ConfigMap of the resolved job of all attempts.

The status has the digest of the resolved job, so that neither an edit, an upgrade nor other settings change a job that
has started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from mptraining_api.kubernetes_api import CONFIG_MAPS, ApiProblem, Raw, Resource
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import KIND
from mptraining_api.status import config_map_name
from mptraining_api.sweep.spec import SWEEP_KIND
from mptraining_operator.jobs.plan.snapshot import Snapshot
from mptraining_operator.jobs.resources import job_objects
from mptraining_operator.jobs.resources.job_objects import JOB_FILE, Owner, job_digest
from mptraining_operator.runtime.cluster import Cluster

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
    strict: bool = False,
) -> Raw:
    """Create a child and return it as stored, also if it existed.

    `strict`: the API server refuses unknown fields, as a misspelt one of podTemplate, instead of dropping them.

    Raises NotCreated, NamespaceDeleted, and ApiProblem if a retry may succeed.
    """
    name = str(body["metadata"]["name"])
    child = f"{body['kind']} {name}"
    try:
        return cluster.create(resource, owner.namespace, body, **(_STRICT if strict else {}))
    except ApiProblem as problem:
        if problem.status in (403, 409) and not problem.namespace_terminating:
            # An exhausted quota may return 403 for an object that exists.
            stored = _existing(cluster, resource, owner, name, child)
            if stored is not None:
                return stored
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
    stored = cluster.get_if_exists(resource, owner.namespace, name)
    if stored is None:
        return None
    metadata = stored["metadata"]
    references = metadata.get("ownerReferences", ())
    controller: Raw = next((reference for reference in references if reference.get("controller")), {})
    # The Job of a queue may control the Indexed Jobs of the job.
    queued = controller.get("kind") == "Job" and owner.uid in [reference.get("uid") for reference in references]
    if controller.get("uid") == owner.uid or queued:
        if "deletionTimestamp" in metadata:
            raise NotCreated("NameTaken", child, "it is being deleted and will be created again afterwards")
        return stored
    kind = controller.get("kind")
    if kind in (KIND, SWEEP_KIND):
        message = f"it belongs to an earlier {kind} {controller.get('name')!r} and is being deleted"
        raise NotCreated("NameTaken", child, message)
    by = f"with the controller {kind} {controller.get('name')!r}" if controller else "without a controller"
    raise NotCreated("NameTaken", child, f"it exists already, {by}")


def keep_job_file(cluster: Cluster, owner: Owner, text: str) -> None:
    """Create the ConfigMap of the resolved job, unless it exists with that text.

    A user who may create ConfigMaps could otherwise choose the job. Raises NotCreated, NamespaceDeleted, ApiProblem.
    """
    body = job_objects.config_map(owner, text)
    stored = create_child(cluster, CONFIG_MAPS, owner, body)
    _check_digest(str(stored.get("data", {}).get(JOB_FILE)), job_digest(text), body["metadata"]["name"])


def read_job_file(cluster: Cluster, snapshot: Snapshot) -> str:
    """Return the text of the job's resolved job, of the digest in its status; empty without a ConfigMap.

    Raises NotCreated for another text, and for one that this version cannot read, and ApiProblem.
    """
    name = config_map_name(snapshot.key.name)
    stored = cluster.get_if_exists(CONFIG_MAPS, snapshot.key.namespace, name) or {}
    references = stored.get("metadata", {}).get("ownerReferences", ())
    text = str(stored.get("data", {}).get(JOB_FILE, ""))
    if not text or snapshot.uid not in [reference.get("uid") for reference in references]:
        return ""
    expected = snapshot.status.job_digest if snapshot.status else None
    # A status that was edited may have none.
    if expected is not None:
        _check_digest(text, expected, name)
    try:
        ResolvedJob.read(text)
    except ValidationError as error:
        message = f"{JOB_FILE} was written by another version of the operator: {error.errors()[0]['msg']}"
        raise NotCreated("Refused", f"ConfigMap {name}", message) from None
    return text


def _check_digest(text: str, expected: str, config_map: str) -> None:
    if job_digest(text) != expected:
        message = f"{JOB_FILE} does not match status.jobDigest. Delete the ConfigMap: it is created again."
        raise NotCreated("NameTaken", f"ConfigMap {config_map}", message)
