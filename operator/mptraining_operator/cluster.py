"""The Kubernetes API as this operator uses it: the only module that knows the client, and imports it late.

Plain mappings in and out: building the client's model objects costs ten times what the call itself does. Every
failure is an `ApiProblem`; nothing is tried twice here, the queue does that.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from mptraining_api.job import GROUP, VERSION

Raw = dict[str, Any]

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
PAGE = 500

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
# JSON is YAML, and the API server knows this name on every release.
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object: where the API server keeps it."""

    prefix: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Of one object, or of all in a namespace, or of all when `namespace` is None."""
        parts = [self.prefix]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


JOBS = Resource(f"/apis/{GROUP}/{VERSION}", "mptrainingjobs")
BATCH_JOBS = Resource("/apis/batch/v1", "jobs")
PODS = Resource("/api/v1", "pods")
EVENTS = Resource("/api/v1", "events")
CONFIG_MAPS = Resource("/api/v1", "configmaps")
SERVICES = Resource("/api/v1", "services")
SECRETS = Resource("/api/v1", "secrets")
NETWORK_POLICIES = Resource("/apis/networking.k8s.io/v1", "networkpolicies")
LEASES = Resource("/apis/coordination.k8s.io/v1", "leases")
NODES = Resource("/api/v1", "nodes", namespaced=False)
TOKEN_REVIEWS = Resource("/apis/authentication.k8s.io/v1", "tokenreviews", namespaced=False)


class ApiProblem(Exception):
    """The API server said no, or nothing.

    `status` is the HTTP code, 0 when there was no answer; `reason` one word (AlreadyExists, Forbidden, Conflict, …),
    `causes` more such words; `retry_after` in seconds where the server asked for a pause.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes

    @property
    def namespace_is_going(self) -> bool:
        """Whether it was refused because its namespace is being deleted."""
        return self.status == 403 and ("NamespaceTerminating" in self.causes or "being terminated" in self.message)


class Counter(Protocol):
    """Called once for every answer."""

    def __call__(self, *, verb: str, resource: str, code: int) -> None: ...


def _count_nothing(*, verb: str, resource: str, code: int) -> None:
    """For those who do not measure."""


class Cluster:
    """Thread-safe; `connections` are kept open at most."""

    def __init__(self, api: Any, *, count: Counter = _count_nothing, read_seconds: float = READ_SECONDS) -> None:
        self._api = api
        self._count = count
        self._read_seconds = read_seconds
        self._authorizing = threading.Lock()

    @classmethod
    def connect(
        cls, *, connections: int, count: Counter = _count_nothing, read_seconds: float = READ_SECONDS
    ) -> Cluster:
        """As the pod's service account, or as KUBECONFIG says. Raises ApiProblem when there is neither."""
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
        api = client.ApiClient(configuration)
        api.user_agent = f"mptraining-operator/{version('mptraining')}"
        return cls(api, count=count, read_seconds=read_seconds)

    def pages(self, resource: Resource, namespace: str | None, **selectors: str) -> Iterator[tuple[list[Raw], int]]:
        """All objects in pages, each with the resourceVersion of the whole list; `namespace` None for all."""
        query = {"limit": str(PAGE), **selectors}
        while True:
            page = self._call("GET", "list", resource, namespace, query=query)
            metadata = page.get("metadata", {})
            yield page.get("items") or [], int(metadata.get("resourceVersion") or 0)
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    def get(self, resource: Resource, namespace: str | None, name: str) -> Raw:
        return self._call("GET", "get", resource, namespace, name)

    def create(self, resource: Resource, namespace: str | None, body: Mapping[str, Any]) -> Raw:
        return self._call("POST", "create", resource, namespace, body=body)

    def replace(self, resource: Resource, namespace: str, name: str, body: Mapping[str, Any]) -> Raw:
        """With the resourceVersion in `body` as precondition."""
        return self._call("PUT", "update", resource, namespace, name, body=body)

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str = "",
        kind: str = MERGE,
        **query: str,
    ) -> Raw:
        """`kind` is the content type; a uid or resourceVersion in `body` is a precondition."""
        return self._call(
            "PATCH", "patch", resource, namespace, name, subresource=subresource, body=body, kind=kind, query=query
        )

    def delete(self, resource: Resource, namespace: str, name: str, *, uid: str, propagation: str) -> None:
        """`propagation` is Foreground or Background; without it a Job's pods would be orphans."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": propagation}
        self._call("DELETE", "delete", resource, namespace, name, body=body)

    def patch_job_status(self, namespace: str, name: str, version: int, changes: Mapping[str, Any]) -> Raw:
        """The job with these fields of its status replaced; 409 when it is no longer of that resourceVersion."""
        body = {"metadata": {"resourceVersion": str(version)}, "status": changes}
        return self.patch(JOBS, namespace, name, body, subresource="status")

    def apply_progress(self, namespace: str, name: str, uid: str, progress: Mapping[str, Any]) -> Raw:
        """The job with its `status.progress` replaced, and nothing else, by its own field manager."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "MPTrainingJob",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": {"progress": progress},
        }
        query = {"fieldManager": "mptraining-progress", "force": "true"}
        return self.patch(JOBS, namespace, name, body, subresource="status", kind=APPLY, **query)

    def review_token(self, token: str, audiences: tuple[str, ...]) -> Raw:
        """The `status` of a TokenReview."""
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
        *,
        subresource: str = "",
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> Raw:
        path = resource.path(namespace, name, subresource)
        url = f"{self._api.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        called = f"{resource.plural}/{subresource}" if subresource else resource.plural
        try:
            code, headers, data = self._send(method, url, body, kind)
        except ApiProblem:
            self._count(verb=verb, resource=called, code=0)
            raise
        self._count(verb=verb, resource=called, code=code)
        if code >= 400:
            raise _problem(code, headers, data)
        answer: Raw = json.loads(data) if data else {}
        return answer

    def _send(
        self, method: str, url: str, body: Mapping[str, Any] | None, kind: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Through the client's own connections and credentials, past its model layer."""
        import urllib3

        headers = {"Accept": "application/json", "User-Agent": self._api.user_agent}
        data = None
        if body is not None:
            headers["Content-Type"] = kind
            data = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=self._read_seconds)
        try:
            with self._authorizing:
                # May ask for a new token, which the client does not guard against two threads.
                self._api.update_params_for_auth(headers, [], ["BearerToken"])
            pool = self._api.rest_client.pool_manager
            answer = pool.request(
                method, url, body=data, headers=headers, timeout=timeout, retries=False, redirect=False
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiProblem(0, "NoAnswer", f"{method} {url.partition('?')[0]}: {error}") from None
        return answer.status, answer.headers, answer.data


def _problem(code: int, headers: Mapping[str, str], data: bytes) -> ApiProblem:
    try:
        said = json.loads(data)
    except ValueError:
        said = {}
    if not isinstance(said, dict):
        said = {}
    causes = (said.get("details") or {}).get("causes") or ()
    after = headers.get("Retry-After", "")
    return ApiProblem(
        code,
        said.get("reason") or "Unknown",
        said.get("message") or data[:300].decode("utf-8", "replace") or "no words",
        float(after) if after.isdigit() else None,
        tuple(str(cause.get("reason", "")) for cause in causes),
    )
