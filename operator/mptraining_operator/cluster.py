"""Kubernetes API client of the operator, and the API server's clock; the only module that imports the client library.

Requests and responses are plain mappings: the library's model objects take ten times the CPU time of the call itself.
Every failure is an `ApiProblem`; calls are not retried here but by the work queue.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any, Protocol
from urllib.parse import quote

from mptraining_api.spec import GROUP, VERSION

_log = logging.getLogger(__name__)

# Seconds. Smaller changes of the clock difference are not logged.
_LOGGED_CHANGE = 5.0


def ahead(believed: float, *, sent: float, received: float, date: float) -> float:
    """Return the seconds by which the server's clock is ahead: `believed`, clamped to the range of this response.

    `sent` and `received` are by the local clock, `date` by the server's, in seconds since 1970.
    """
    return min(max(believed, date - received), date + 1.0 - sent)


def read(date: str) -> float | None:
    """Parse an HTTP date (RFC 9110, section 5.6.7) to seconds since 1970; None if it is invalid."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


class ServerTime:
    """Callable clock: seconds since 1970 by the API server's clock, estimated from its responses. Thread-safe."""

    def __init__(self, own: Callable[[], float]) -> None:
        """`own` is this machine's clock, which is used until the first response."""
        self.own = own
        self._ahead = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.own() + self._ahead

    def heard(self, date: str | None, *, sent: float) -> None:
        """Update the estimate from the `Date` header of a response to a request sent at `sent` by the local clock."""
        server_date = read(date) if date else None
        if server_date is None:
            return
        with self._lock:
            before = self._ahead
            self._ahead = ahead(before, sent=sent, received=self.own(), date=server_date)
            changed = abs(self._ahead - before)
        if changed > _LOGGED_CHANGE:
            message = "this machine's clock and the API server's are %.0f s apart; the API server's is used"
            _log.warning(message, abs(self._ahead))


Raw = dict[str, Any]

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
PAGE = 500

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"
# The library's response type by status code: plain mappings and lists instead of model objects.
_PLAIN = dict.fromkeys((200, 201, 202), "object")


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API server: its path prefix and plural name."""

    prefix: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of one object, of all in a namespace, or of all if `namespace` is None."""
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
    """An error response of the API server, or no response.

    `status` is the HTTP code, 0 without a response; `reason` is the reason of the Status object (AlreadyExists,
    Forbidden, Conflict, …), `causes` are the reasons of its causes; `retry_after` is in seconds.
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
        """Whether the request was rejected because its namespace is being deleted."""
        return self.status == 403 and ("NamespaceTerminating" in self.causes or "being terminated" in self.message)


class Counter(Protocol):
    """Callback for every response; `code` is 0 without one."""

    def __call__(self, *, verb: str, resource: str, code: int) -> None: ...


def _count_nothing(*, verb: str, resource: str, code: int) -> None:
    """Count nothing, without metrics."""


class Cluster:
    """Client of the API server. Thread-safe."""

    def __init__(
        self,
        api: Any,
        *,
        count: Counter = _count_nothing,
        read_seconds: float = READ_SECONDS,
        server_time: ServerTime | None = None,
    ) -> None:
        """`server_time` receives the date of every response."""
        self._api = api
        self._count = count
        self._read_seconds = read_seconds
        self._server_time = server_time

    @classmethod
    def connect(
        cls,
        *,
        connections: int,
        count: Counter = _count_nothing,
        read_seconds: float = READ_SECONDS,
        server_time: ServerTime | None = None,
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
        return cls(api, count=count, read_seconds=read_seconds, server_time=server_time)

    def serves(self, resource: Resource) -> bool:
        """Return whether API discovery lists the resource. Raises ApiProblem."""
        *_, group, _version = resource.prefix.split("/")
        try:
            if group != "api":
                named = self._discovered("/apis").get("groups", ())
                if group not in [each["name"] for each in named]:
                    return False
            found = self._discovered(resource.prefix).get("resources", ())
        except ApiProblem as problem:
            if problem.status != 404:
                raise
            return False
        return resource.plural in [each["name"] for each in found]

    def _discovered(self, path: str) -> Raw:
        try:
            answer, code = self._send("GET", path, {}, None, "application/json")
        except ApiProblem as problem:
            self._count(verb="get", resource="", code=problem.status)
            raise
        self._count(verb="get", resource="", code=code)
        return answer

    def pages(self, resource: Resource, namespace: str | None, **selectors: str) -> Iterator[tuple[list[Raw], int]]:
        """List objects in pages, each with the resourceVersion of the list; `namespace` None lists all namespaces."""
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
        kind: str = MERGE,
        **query: str,
    ) -> Raw:
        """Patch an object; `kind` is the content type, a uid or resourceVersion in `body` is a precondition."""
        return self._call(
            "PATCH", "patch", resource, namespace, name, subresource=subresource, body=body, kind=kind, query=query
        )

    def delete(self, resource: Resource, namespace: str, name: str, *, uid: str, propagation: str) -> None:
        """Delete the object of that uid; `propagation` is Foreground or Background, so that no pods are orphaned."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": propagation}
        self._call("DELETE", "delete", resource, namespace, name, body=body)

    def patch_job_status(self, namespace: str, name: str, version: int, changes: Mapping[str, Any]) -> Raw:
        """Replace these fields of a job's status and return the job; 409 if its resourceVersion is not `version`."""
        body = {"metadata": {"resourceVersion": str(version)}, "status": changes}
        return self.patch(JOBS, namespace, name, body, subresource="status")

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
        return self.patch(JOBS, namespace, name, body, subresource="status", kind=JSON, **query)

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
        *,
        subresource: str = "",
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | list[Raw] | None = None,
        kind: str = "application/json",
    ) -> Raw:
        called = f"{resource.plural}/{subresource}" if subresource else resource.plural
        try:
            answer, code = self._send(method, resource.path(namespace, name, subresource), query or {}, body, kind)
        except ApiProblem as problem:
            self._count(verb=verb, resource=called, code=problem.status)
            raise
        self._count(verb=verb, resource=called, code=code)
        return answer

    def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | list[Raw] | None, kind: str
    ) -> tuple[Raw, int]:
        """Send a request with the library's generic call, which adds credentials; return the response and its code."""
        import urllib3
        from kubernetes.client.exceptions import ApiException

        time = self._server_time
        sent = time.own() if time else 0.0
        try:
            answer, code, headers = self._api.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={"Accept": "application/json", "Content-Type": kind},
                body=body,
                auth_settings=["BearerToken"],
                response_types_map=_PLAIN,
                _request_timeout=(CONNECT_SECONDS, self._read_seconds),
            )
        except ApiException as error:
            if error.status:
                raise _problem(error.status, error.headers or {}, error.body or "") from None
            raise ApiProblem(0, "NoAnswer", f"{method} {path}: {error.reason}") from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiProblem(0, "NoAnswer", f"{method} {path}: {error}") from None
        if time:
            time.heard(headers.get("Date"), sent=sent)
        return answer or {}, code


def _problem(code: int, headers: Mapping[str, str], data: str) -> ApiProblem:
    try:
        parsed = json.loads(data)
    except ValueError:
        parsed = None
    status = parsed if isinstance(parsed, dict) else {}
    causes = (status.get("details") or {}).get("causes") or ()
    after = headers.get("Retry-After", "")
    return ApiProblem(
        code,
        status.get("reason") or "Unknown",
        status.get("message") or data[:300] or "no message",
        float(after) if after.isascii() and after.isdigit() else None,
        tuple(str(cause.get("reason", "")) for cause in causes),
    )
