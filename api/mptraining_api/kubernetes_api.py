"""Requests to the Kubernetes API: resource types, paths, lists in pages, errors; for the operator and the client.

Bodies are plain mappings: the model objects of the `kubernetes` package take ten times the CPU time of the call itself.
The package is imported with the first request, because most commands of `mptj` send none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from mptraining_api.spec import GROUP, VERSION

Raw = dict[str, Any]

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
# The number of objects in one page of a list.
PAGE = 500

# Content types of patches.
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
# The package's response type by status code: plain mappings and lists instead of model objects.
_PLAIN = dict.fromkeys((200, 201, 202), "object")


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource type of the API server; the core group is empty."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def prefix(self) -> str:
        """The path of the group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of one object, of all in a namespace, or of all if `namespace` is None."""
        parts = [self.prefix]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


JOBS = Resource(GROUP, VERSION, "mptrainingjobs")
BATCH_JOBS = Resource("batch", "v1", "jobs")
PODS = Resource("", "v1", "pods")
EVENTS = Resource("", "v1", "events")
CONFIG_MAPS = Resource("", "v1", "configmaps")
SERVICES = Resource("", "v1", "services")
SECRETS = Resource("", "v1", "secrets")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
NODES = Resource("", "v1", "nodes", namespaced=False)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)


class ApiProblem(Exception):
    """An error response of the API server, or no response.

    `status` is the HTTP code, 0 without a response; `reason` is the reason of the Status object (AlreadyExists,
    Forbidden, Conflict, …; Unknown without one), `causes` are the reasons of its causes, and `kind` is the plural in
    its details if they name an object; `retry_after` is in seconds. `request` is added to the text.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: tuple[str, ...] = (),
        *,
        kind: str = "",
        request: str = "",
    ) -> None:
        super().__init__(f"{status} {reason}: {f'{request}: ' if request else ''}{message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes
        self.kind = kind

    @property
    def namespace_terminating(self) -> bool:
        """Whether the request was rejected because its namespace is being deleted."""
        return self.status == 403 and "NamespaceTerminating" in self.causes


def send(
    api: Any,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | list[Raw] | None = None,
    content_type: str = "application/json",
    read_seconds: float = READ_SECONDS,
) -> tuple[Raw, int, Mapping[str, str]]:
    """Send a request by the generic call of a kubernetes.client.ApiClient, which adds credentials.

    Returns the response's body, status and headers. Raises ApiProblem.
    """
    with api_problems(f"{method} {path}"):
        answer, status, headers = api.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
            response_types_map=_PLAIN,
            _request_timeout=(CONNECT_SECONDS, read_seconds),
        )
    return answer or {}, status, headers


def pages(get: Callable[[Mapping[str, str]], Raw], query: Mapping[str, str]) -> Iterator[Raw]:
    """Yield the pages of a list; `get` requests one page with the query parameters that it is given."""
    query = {"limit": str(PAGE), **query}
    while True:
        page = get(query)
        yield page
        more = page.get("metadata", {}).get("continue")
        if not more:
            return
        query["continue"] = more


@contextmanager
def api_problems(request: str = "") -> Iterator[None]:
    """Convert exceptions of the `kubernetes` package and of its connections to ApiProblem."""
    import urllib3
    from kubernetes.client.exceptions import ApiException

    try:
        yield
    except (ApiException, AttributeError) as error:
        # For an untrusted certificate the package raises AttributeError while it handles its own ApiException, which
        # has no body.
        found = error if isinstance(error, ApiException) else error.__context__
        if not isinstance(found, ApiException):
            raise
        if not found.status:
            raise ApiProblem(0, "NoAnswer", str(found.reason), request=request) from None
        raise api_problem(found.status, found.body or found.reason or "", found.headers or {}) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiProblem(0, "NoAnswer", _innermost(error), request=request) from None


def api_problem(status: int, body: str | bytes, headers: Mapping[str, str] | None = None) -> ApiProblem:
    """Return the problem for an error response, whose body may be a Status object or anything else."""
    text = body.decode("utf-8", errors="replace") if isinstance(body, bytes) else body
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    found = parsed if isinstance(parsed, dict) else {}
    details = found.get("details") or {}
    after = (headers or {}).get("Retry-After", "")
    return ApiProblem(
        status,
        str(found.get("reason") or "Unknown"),
        str(found.get("message") or text[:300] or "no message"),
        float(after) if after.isascii() and after.isdigit() else None,
        tuple(str(cause.get("reason", "")) for cause in details.get("causes") or ()),
        # The response for a resource that is not served has details without a name.
        kind=str(details.get("kind", "")) if details.get("name") else "",
    )


def _innermost(error: BaseException) -> str:
    """Return the innermost message; the outer ones name the connection pool."""
    reason = getattr(error, "reason", None)
    text = str(reason if isinstance(reason, BaseException) else error)
    return text.rpartition(">: ")[2] or text
