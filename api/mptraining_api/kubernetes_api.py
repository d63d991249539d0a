"""Requests to the Kubernetes API: resource types, paths, lists in pages, errors; for the operator and the client.

Bodies are plain mappings: the model objects of the `kubernetes` package take ten times the CPU time of the call itself.
The package provides credentials, certificates and connections, and is imported with the first request, because most
commands of `mptj` send none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from mptraining_api.spec import GROUP, VERSION

Raw = dict[str, Any]
Page = TypeVar("Page")

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
# The number of objects in one page of a list.
PAGE = 500

# Content types of patches.
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
# Content types of responses.
WHOLE = "application/json, */*"
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource type of the API server; the core group is empty."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def prefix(self) -> str:
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
SWEEPS = Resource(GROUP, VERSION, "mptrainingsweeps")
BATCH_JOBS = Resource("batch", "v1", "jobs")
PODS = Resource("", "v1", "pods")
EVENTS = Resource("", "v1", "events")
CONFIG_MAPS = Resource("", "v1", "configmaps")
PERSISTENT_VOLUME_CLAIMS = Resource("", "v1", "persistentvolumeclaims")
SERVICES = Resource("", "v1", "services")
SECRETS = Resource("", "v1", "secrets")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies")
RESOURCE_CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
# In the versions that Kueue serves, the newest first.
LOCAL_QUEUES = tuple(Resource("kueue.x-k8s.io", version, "localqueues") for version in ("v1beta2", "v1beta1"))
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
    accept: str = WHOLE,
    read_seconds: float = READ_SECONDS,
    loads: Callable[[bytes], Any] = json.loads,
    dumps: Callable[[Any], str | bytes] = json.dumps,
) -> tuple[Any, int, Mapping[str, str]]:
    """Send a request through the connections of a kubernetes.client.ApiClient, with its credentials.

    The client's own call takes as much processor time again as the connection. Returns the response's body by `loads`,
    its status and its headers. Raises ApiProblem.
    """
    sent = None if body is None else dumps(body)
    with api_problems(f"{method} {path}"):
        response = _request(api, method, path, query, sent, content_type, read_seconds, accept)
        data: bytes = response.data
    if not 200 <= response.status < 300:
        raise api_problem(response.status, data, response.headers)
    return loads(data) if data else {}, response.status, response.headers


def lines(
    api: Any, path: str, *, query: Mapping[str, str] | None = None, read_seconds: float | None = None
) -> Iterator[bytes]:
    """Yield the lines of a response while the API server writes them, as of a watch or a log. Raises ApiProblem.

    `read_seconds` limits the silence between two lines.
    """
    with api_problems(f"GET {path}"):
        response = _request(api, "GET", path, query, None, "application/json", read_seconds, preload_content=False)
        with closing(response):
            if not 200 <= response.status < 300:
                raise api_problem(response.status, response.data, response.headers)
            rest: list[bytes] = []
            while some := response.read1():
                first, *more = some.split(b"\n")
                rest.append(first)
                for item in more:
                    yield b"".join(rest)
                    rest = [item]
            if any(rest):
                yield b"".join(rest)


def _request(
    api: Any,
    method: str,
    path: str,
    query: Mapping[str, str] | None,
    body: str | bytes | None,
    content_type: str,
    read_seconds: float | None,
    accept: str = WHOLE,
    **options: Any,
) -> Any:
    import urllib3

    configuration = api.configuration
    headers = {"Accept": accept, "Content-Type": content_type, "User-Agent": api.user_agent}
    # Renews an expired token.
    token = configuration.auth_settings().get("BearerToken")
    if token is not None:
        headers[token["key"]] = token["value"]
    host, target = configuration.host, path + (f"?{urlencode(query)}" if query else "")
    connect_seconds = min(CONNECT_SECONDS, read_seconds or CONNECT_SECONDS)
    options["timeout"] = urllib3.Timeout(connect=connect_seconds, read=read_seconds)
    manager = api.rest_client.pool_manager
    if manager.proxy is not None:
        return manager.request(method, host + target, body=body, headers=headers, **options)
    # The manager's own request parses the address and looks for the pool of the host, a fifth of the time of a call.
    pool = manager.connection_from_url(host)
    return pool.urlopen(method, _path_prefix(host) + target, body=body, headers=headers, redirect=False, **options)


@lru_cache
def _path_prefix(host: str) -> str:
    """Return the path of the API server's address, as that of a proxy in front of several clusters."""
    return urlsplit(host).path.rstrip("/")


def pages(
    get: Callable[[Mapping[str, str]], Page],
    query: Mapping[str, str],
    more: Callable[[Any], str] = lambda page: str(page.get("metadata", {}).get("continue") or ""),
) -> Iterator[Page]:
    """Yield the pages of a list; `get` requests one page with the query parameters that it is given.

    `more` returns the token of the next page, "" for none; by default that of a page as a mapping.
    """
    query = {"limit": str(PAGE), **query}
    while True:
        page = get(query)
        yield page
        token = more(page)
        if not token:
            return
        query["continue"] = token


@contextmanager
def api_problems(request: str = "") -> Iterator[None]:
    """Convert exceptions of connections, and of the `kubernetes` package's credentials, to ApiProblem."""
    import urllib3
    from kubernetes.client.exceptions import ApiException

    try:
        yield
    except ApiException as error:
        if not error.status:
            raise ApiProblem(0, "NoAnswer", str(error.reason), request=request) from None
        raise api_problem(error.status, error.body or error.reason or "", error.headers or {}) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise ApiProblem(0, "NoAnswer", _innermost(error), request=request) from None


def api_problem(status: int, body: str | bytes, headers: Mapping[str, str] | None = None) -> ApiProblem:
    """Return the problem for an error response, whose body may be a Status object or anything else."""
    text = body.decode("utf-8", errors="replace") if isinstance(body, bytes) else body
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    document = parsed if isinstance(parsed, dict) else {}
    details = document.get("details") or {}
    after = (headers or {}).get("Retry-After", "")
    return ApiProblem(
        status,
        str(document.get("reason") or "Unknown"),
        str(document.get("message") or text[:300] or "no message"),
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
