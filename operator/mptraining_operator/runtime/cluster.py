"""Kubernetes client of the operator over `mptraining_api.kubernetes_api`.

Every failure is an `ApiProblem`; calls are not retried here but by the work queue.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, cast

import msgspec

from mptraining_api.kubernetes_api import (
    JOBS,
    JSON_PATCH,
    MERGE_PATCH,
    READ_SECONDS,
    TOKEN_REVIEWS,
    ApiProblem,
    Raw,
    Resource,
    lines,
    pages,
    send,
)

# Called for every response with verb, resource and HTTP code; 0 without a response.
Counter = Callable[[str, str, int], None]


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    more: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    """A page of a list, whose objects the caller decodes."""

    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)
    items: list[msgspec.Raw] | None = None


_PAGE = msgspec.json.Decoder(_Page)
# Seconds after which the API server ends a watch, and of silence after which the connection is taken for dead: the
# server sends a bookmark about once a minute.
_WATCH_SECONDS = 300
_SILENT_WATCH_SECONDS = 90.0


def _count_nothing(verb: str, resource: str, code: int) -> None:
    """Count nothing, without metrics."""


class Cluster:
    """Client of the API server. Thread-safe."""

    def __init__(
        self,
        api: Any,
        *,
        count: Counter = _count_nothing,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self._api = api
        self._count = count
        self._read_seconds = read_seconds
        self._fence: Callable[[], None] = lambda: None

    def fenced(self, fence: Callable[[], None]) -> Cluster:
        """Return a client on the same connections that calls `fence`, which may raise, right before each call."""
        client = copy.copy(self)
        client._fence = fence
        return client

    @classmethod
    def connect(
        cls,
        *,
        connections: int,
        count: Counter = _count_nothing,
        read_seconds: float = READ_SECONDS,
    ) -> Cluster:
        """Connect with the pod's service account, else with KUBECONFIG. Raises ApiProblem if there is neither.

        `connections` is the size of the connection pool.
        """
        from kubernetes import client, config

        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            try:
                config.load_kube_config(client_configuration=configuration)
            except (config.ConfigException, OSError, TypeError) as error:
                raise ApiProblem(0, "NoCluster", f"neither in a cluster nor a kubeconfig: {error}") from None
        configuration.connection_pool_maxsize = connections
        configuration.retries = False  # The work queue retries, with a new plan.
        api = client.ApiClient(configuration)
        api.user_agent = f"mptraining-operator/{version('mptraining')}"
        return cls(api, count=count, read_seconds=read_seconds)

    def serves(self, resource: Resource) -> bool:
        """Return whether API discovery lists the resource. Raises ApiProblem."""
        try:
            if resource.group:
                groups = self._send("GET", "/apis").get("groups", ())
                if resource.group not in [group["name"] for group in groups]:
                    return False
            resources = self._send("GET", resource.prefix).get("resources", ())
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            return False
        return resource.plural in [served["name"] for served in resources]

    def pages(
        self, resource: Resource, namespace: str | None, **selectors: str
    ) -> Iterator[tuple[list[msgspec.Raw], int]]:
        """List objects as JSON in pages, each page with the resourceVersion of the list.

        `namespace` None lists all namespaces.
        """

        def get(query: Mapping[str, str]) -> _Page:
            return cast(_Page, self._call("GET", "list", resource, namespace, query=query, loads=_PAGE.decode))

        for page in pages(get, selectors, more=lambda page: page.metadata.more):
            yield page.items or [], int(page.metadata.resource_version or 0)

    def watch(self, resource: Resource, namespace: str | None, version: str, **selectors: str) -> Iterator[bytes]:
        """Yield the watch events after `version` as JSON, with bookmarks, until the API server ends the watch."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
            **selectors,
        }
        code = 200
        try:
            yield from lines(self._api, resource.path(namespace), query=query, read_seconds=_SILENT_WATCH_SECONDS)
        except ApiProblem as problem:
            code = problem.status
            raise
        finally:
            self._count("watch", resource.plural, code)

    def get(self, resource: Resource, namespace: str | None, name: str) -> Raw:
        return self._call("GET", "get", resource, namespace, name)

    def get_if_exists(self, resource: Resource, namespace: str | None, name: str) -> Raw | None:
        try:
            return self.get(resource, namespace, name)
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            return None

    def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any], **query: str) -> Raw:
        return self._call("POST", "create", resource, namespace, body=body, query=query)

    def replace(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> Raw:
        """Replace an object, with the resourceVersion in `body` as precondition."""
        return self._call("PUT", "update", resource, namespace, name, body=body)

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any] | list[Raw],
        *,
        subresource: str = "",
        content_type: str = MERGE_PATCH,
        **query: str,
    ) -> Raw:
        """Patch an object; a uid or resourceVersion in `body` is a precondition."""
        options = {"body": body, "content_type": content_type, "query": query}
        return self._call("PATCH", "patch", resource, namespace, name, subresource, **options)

    def delete(self, resource: Resource, namespace: str, name: str, *, uid: str, propagation: str) -> None:
        """Delete the object of that uid; `propagation` is Foreground or Background, so that no pods are orphaned."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": propagation}
        self._call("DELETE", "delete", resource, namespace, name, body=body)

    def patch_status_or_read(
        self, resource: Resource, namespace: str, name: str, version: int, changes: Mapping[str, Any]
    ) -> tuple[bool, Raw | None]:
        """Replace these fields of an object's status if its resourceVersion is `version`.

        Return whether they were written, and the object as it is stored now; None if it is gone.
        """
        body = {"metadata": {"resourceVersion": str(version)}, "status": changes}
        try:
            return True, self.patch(resource, namespace, name, body, subresource="status")
        except ApiProblem as problem:
            if problem.status not in (404, 409):
                raise
            return False, self.get_if_exists(resource, namespace, name) if problem.status == 409 else None

    def write_progress(self, namespace: str, name: str, uid: str, progress: Mapping[str, Any]) -> Raw:
        """Replace only a job's `status.progress`, with a separate field manager, and return the job.

        A JSON patch that tests the uid, so that a new job of the same name is rejected (422); server-side apply would
        ignore the uid.
        """
        body: list[Raw] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status/progress", "value": progress},
        ]
        query = {"fieldManager": "mptraining-progress"}
        return self.patch(JOBS, namespace, name, body, subresource="status", content_type=JSON_PATCH, **query)

    def review_token(self, token: str, audiences: tuple[str, ...]) -> Raw:
        """Create a TokenReview and return its `status`."""
        spec = {"token": token, "audiences": list(audiences)}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        return dict(self.create(TOKEN_REVIEWS, None, body).get("status") or {})

    def _call(
        self,
        method: str,
        verb: str,
        resource: Resource,
        namespace: str | None,
        name: str = "",
        subresource: str = "",
        **options: Any,
    ) -> Raw:
        self._fence()
        called = f"{resource.plural}/{subresource}" if subresource else resource.plural
        return self._send(method, resource.path(namespace, name, subresource), verb, called, **options)

    def _send(self, method: str, path: str, verb: str = "get", resource: str = "", **options: Any) -> Raw:
        """Send a request and count its response; `options` as in `kubernetes_api.send`."""
        try:
            options = {"loads": msgspec.json.decode, "dumps": msgspec.json.encode, **options}
            answer: Raw
            answer, code, _ = send(self._api, method, path, read_seconds=self._read_seconds, **options)
        except ApiProblem as problem:
            self._count(verb, resource, problem.status)
            raise
        self._count(verb, resource, code)
        return answer
