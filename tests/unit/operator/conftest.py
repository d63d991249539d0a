"""An API server in memory, with the behaviour that matters: versions, uids, conflicts, preconditions, and refusals."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from mptraining_api.kubernetes_api import ApiProblem, Resource
from mptraining_operator.runtime.cluster import Cluster
from tests.fakes import Clock

Raw = dict[str, Any]

# Codes and reasons of the API server about a deletion and about patches; the operator does not read the messages.
_ANOTHER = (409, "Conflict", "the precondition failed")
_CONFLICTS = {
    "uid": (422, "Invalid", "the field is immutable"),
    "resourceVersion": (409, "Conflict", "the object has been modified; please apply your changes to the latest one"),
}


class FakeCluster:
    """Replaces `cluster.Cluster`. `calls` lists (verb, plural, name); `refuse` makes the next such call fail."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str | None, str], Raw] = {}
        self.calls: list[tuple[str, str, str]] = []
        # The query parameters of each creation.
        self.queries: dict[str, dict[str, str]] = {}
        self.page_size = 500
        # The `group/version` of CustomResourceDefinitions that are installed.
        self.served: set[str] = set()
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._refusals: list[tuple[str, str, Exception]] = []
        self.before: Callable[[str, str, str], None] = lambda verb, plural, name: None
        self.fence: Callable[[], None] = lambda: None
        # The answers to lists of these namespaces.
        self.refused: dict[str | None, ApiProblem] = {}

    @property
    def version(self) -> int:
        return next(self._versions)

    def fenced(self, fence: Callable[[], None]) -> FakeCluster:
        client = copy.copy(self)
        client.fence = fence
        return client

    def refuse(self, verb: str, resource: Resource, problem: Exception, times: int = 1) -> None:
        self._refusals += [(verb, resource.plural, problem)] * times

    def put(self, resource: Resource, raw: Raw) -> Raw:
        """Write without any checks, as another client would."""
        raw = copy.deepcopy(raw)
        metadata = raw["metadata"]
        metadata.setdefault("uid", f"uid-{next(self._uids)}")
        metadata.setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        metadata["resourceVersion"] = str(self.version)
        self.objects[(resource.plural, metadata.get("namespace"), metadata["name"])] = raw
        return copy.deepcopy(raw)

    def find(self, resource: Resource, namespace: str | None, name: str) -> Raw | None:
        return self.objects.get((resource.plural, namespace, name))

    def written(self) -> list[tuple[str, str, str]]:
        return [call for call in self.calls if call[0] not in ("get", "list")]

    def serves(self, resource: Resource) -> bool:
        return f"{resource.group}/{resource.version}" in self.served

    def pages(self, resource: Resource, namespace: str | None, **selectors: str) -> Iterator[tuple[list[bytes], int]]:
        self._call("list", resource, "")
        if namespace in self.refused:
            raise self.refused[namespace]
        found = [
            json.dumps(raw).encode()
            for (plural, where, _), raw in self.objects.items()
            if plural == resource.plural and namespace in (None, where)
        ]
        version = self.version
        for start in range(0, max(len(found), 1), self.page_size):
            yield found[start : start + self.page_size], version

    def watch(self, resource: Resource, namespace: str | None, version: str, **selectors: str) -> Iterator[bytes]:
        """Report nothing, and end."""
        self.before("watch", resource.plural, "")
        return iter(())

    def get(self, resource: Resource, namespace: str | None, name: str) -> Raw:
        self._call("get", resource, name)
        return copy.deepcopy(self._stored(resource, namespace, name))

    # The operator's own, over these calls.
    get_if_exists = Cluster.get_if_exists
    patch_status_or_read = Cluster.patch_status_or_read

    def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any], **query: str) -> Raw:
        name = body["metadata"]["name"]
        self._call("create", resource, name)
        self.queries[name] = query
        if (resource.plural, namespace, name) in self.objects:
            raise ApiProblem(409, "AlreadyExists", f"{resource.plural} {name!r} already exists")
        raw = copy.deepcopy(dict(body))
        raw["metadata"]["namespace"] = namespace
        return self.put(resource, raw)

    def replace(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> Raw:
        self._call("update", resource, name)
        stored = self._stored(resource, namespace, name)
        if body["metadata"].get("resourceVersion") != stored["metadata"]["resourceVersion"]:
            raise ApiProblem(409, "Conflict", "the object has been modified")
        return self.put(resource, dict(body))

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str = "",
        content_type: str = "",
        **query: str,
    ) -> Raw:
        self._call("patch", resource, name)
        stored = self._stored(resource, namespace, name)
        for field in ("uid", "resourceVersion"):
            if body.get("metadata", {}).get(field, stored["metadata"][field]) != stored["metadata"][field]:
                raise ApiProblem(*_CONFLICTS[field])
        merged = copy.deepcopy(stored)
        for top, value in body.items():
            if top != "metadata":
                merged[top] = _merge(merged.get(top), value)
        return self.put(resource, merged)

    def delete(self, resource: Resource, namespace: str, name: str, *, uid: str, propagation: str) -> None:
        self._call("delete", resource, name)
        stored = self._stored(resource, namespace, name)
        if stored["metadata"]["uid"] != uid:
            raise ApiProblem(*_ANOTHER)
        del self.objects[(resource.plural, namespace, name)]

    def _stored(self, resource: Resource, namespace: str | None, name: str) -> Raw:
        found = self.find(resource, namespace, name)
        if found is None:
            raise ApiProblem(404, "NotFound", f"{resource.plural} {name!r} not found")
        return found

    def _call(self, verb: str, resource: Resource, name: str) -> None:
        if verb not in ("get", "list"):
            self.fence()
        self.before(verb, resource.plural, name)
        self.calls.append((verb, resource.plural, name))
        for refusal in self._refusals:
            if refusal[:2] == (verb, resource.plural):
                self._refusals.remove(refusal)
                raise refusal[2]


def _merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(old) if isinstance(old, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged


@pytest.fixture
def api() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def clock() -> Clock:
    return Clock()
