"""One child created exactly once: a name that is taken is looked at, a refusal becomes words for the status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from mptraining_api.spec import KIND
from mptraining_operator.cluster import ApiProblem, Raw, Resource
from mptraining_operator.resources.shared import Owner

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
