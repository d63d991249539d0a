"""Kubernetes API client: objects as plain mappings, watches, logs and `pods/exec`; every failure is a ClusterProblem.

`mptraining.cluster.connection` creates the `kubernetes` ApiClient that this module calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from mptraining.cluster.errors import ClusterProblem, Request, explained
from mptraining_api.spec import GROUP, VERSION

Raw = dict[str, Any]

CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
# The server ends a watch after this time and the client opens it again, so that a dead connection does not hang.
WATCH_SECONDS = 60
PAGE = 500

MERGE = "application/merge-patch+json"
# Makes the client return responses as mappings and lists instead of model objects.
_PLAIN = dict.fromkeys((200, 201, 202), "object")


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource type of the Kubernetes API."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        parts = [f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


JOBS = Resource(GROUP, VERSION, "mptrainingjobs")
PODS = Resource("", "v1", "pods")
EVENTS = Resource("", "v1", "events")
CONFIG_MAPS = Resource("", "v1", "configmaps")
NODES = Resource("", "v1", "nodes", namespaced=False)


class ApiServer:
    """API server of a cluster, with a namespace.

    `api` is a kubernetes.client.ApiClient, `name` the cluster's name in messages. Thread-safe. Every method raises
    ClusterProblem.
    """

    def __init__(self, api: Any, *, name: str, namespace: str) -> None:
        self.api = api
        self.name = name
        self.namespace = namespace

    def within(self, namespace: str) -> ApiServer:
        """Return the same cluster with another namespace."""
        return ApiServer(self.api, name=self.name, namespace=namespace)

    def get(self, resource: Resource, name: str) -> Raw:
        return self._parsed("GET", "get", resource, name)

    def items(self, resource: Resource, *, everywhere: bool = False, **query: str) -> list[Raw]:
        """List all objects of the namespace, or of all namespaces; `query` such as labelSelector, fieldSelector."""
        query = {"limit": str(PAGE), **query}
        found: list[Raw] = []
        while True:
            page = self._parsed("GET", "list", resource, query=query, everywhere=everywhere)
            found += page.get("items") or []
            more = page.get("metadata", {}).get("continue")
            if not more:
                return found
            query["continue"] = more

    def create(self, resource: Resource, body: Mapping[str, Any], **query: str) -> Raw:
        name = str(body.get("metadata", {}).get("name") or body.get("metadata", {}).get("generateName", ""))
        return self._parsed("POST", "create", resource, body=body, query=query, said=name)

    def patch(self, resource: Resource, name: str, body: Mapping[str, Any]) -> Raw:
        """Apply a merge patch; a uid or resourceVersion in `body` is a precondition."""
        return self._parsed("PATCH", "patch", resource, name, body=body, kind=MERGE)

    def delete(self, resource: Resource, name: str, *, uid: str | None = None) -> None:
        """Delete the object, with background propagation to its dependents. `uid` is a precondition."""
        body: Raw = {"propagationPolicy": "Background"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        self._parsed("DELETE", "delete", resource, name, body=body)

    def watch(self, resource: Resource, name: str, since: str, seconds: int = WATCH_SECONDS) -> Iterator[Raw]:
        """Yield changes `{"type", "object"}` of one object after resourceVersion `since`, for at most `seconds`."""
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={name}",
            "resourceVersion": since,
            "timeoutSeconds": str(seconds),
        }
        for line in self._lines("watch", resource, "", "", query, read_seconds=seconds + READ_SECONDS):
            yield json.loads(line)

    def log(self, pod: str, *, container: str, follow: bool, **query: str) -> Iterator[str]:
        """Yield the lines of a container's log; `query` such as tailLines, timestamps, sinceTime."""
        query = {"container": container, "follow": "true" if follow else "false", **query}
        # With `follow` there is no read timeout: a program may print nothing for hours.
        for line in self._lines("get", PODS, pod, "log", query, read_seconds=None if follow else READ_SECONDS):
            yield line.decode("utf-8", errors="replace")

    def request(self, verb: str, resource: Resource, name: str = "", subresource: str = "") -> Request:
        """Return the request as a value for error messages."""
        called = f"{resource.plural}/{subresource}" if subresource else resource.plural
        namespace = self.namespace if resource.namespaced else None
        return Request(verb, called, resource.group, namespace, name, self.name)

    def _parsed(
        self,
        method: str,
        verb: str,
        resource: Resource,
        name: str = "",
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        everywhere: bool = False,
        said: str = "",
    ) -> Raw:
        path = resource.path(None if everywhere else self.namespace, name)
        request = self.request(verb, resource, name or said)
        with _cluster_problems(request):
            answer, _, _ = self.api.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": kind},
                body=body,
                auth_settings=["BearerToken"],
                response_types_map=_PLAIN,
                _request_timeout=(CONNECT_SECONDS, READ_SECONDS),
            )
        return answer or {}

    def _lines(
        self,
        verb: str,
        resource: Resource,
        name: str,
        subresource: str,
        query: Mapping[str, str],
        *,
        read_seconds: float | None,
    ) -> Iterator[bytes]:
        with _cluster_problems(self.request(verb, resource, name, subresource)):
            # With _preload_content=False, call_api returns the response alone, without status and headers.
            response = self.api.call_api(
                resource.path(self.namespace, name, subresource),
                "GET",
                query_params=list(query.items()),
                header_params={"Accept": "application/json, */*"},
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=(CONNECT_SECONDS, read_seconds),
            )
            with closing(response):
                rest = b""
                while some := response.read1():
                    *lines, rest = (rest + some).split(b"\n")
                    yield from lines
                if rest:
                    yield rest


class _cluster_problems:  # noqa: N801 - reads as a statement: with _cluster_problems(request)
    """Context manager that converts exceptions of the client and its connections to ClusterProblem."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, ClusterProblem):
            return
        import urllib3
        from kubernetes.client.exceptions import ApiException

        # For an untrusted certificate the client raises AttributeError while it handles its own ApiException, which
        # has no body.
        if isinstance(error, AttributeError) and isinstance(error.__context__, ApiException):
            error = error.__context__
        if isinstance(error, ApiException):
            raise refusal(self._request, error.status or 0, error.body or error.reason or "") from None
        if isinstance(error, urllib3.exceptions.HTTPError | OSError):
            raise explained(self._request, 0, "", _cause(error)) from None


def refusal(request: Request, status: int, body: str | bytes) -> ClusterProblem:
    """Return the problem for an error response with this HTTP status and body."""
    text = body.decode("utf-8", errors="replace") if isinstance(body, bytes) else body
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        said = {}
    details = said.get("details") or {}
    # The response for a kind that is not served has no name in its details.
    named = str(details.get("kind", "")) if details.get("name") else ""
    return explained(request, status, str(said.get("reason", "")), str(said.get("message") or text[:300]), named=named)


def _cause(error: BaseException) -> str:
    """Return the innermost message; the outer ones name the connection pool."""
    found: BaseException = error
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        found = reason
    text = str(found)
    return text.rpartition(">: ")[2] or text


# WebSocket subprotocol of `pods/exec` that all kubelet versions support.
_CHANNELS = "v4.channel.k8s.io"
_STDOUT, _STDERR, _ERROR = 1, 2, 3
# Longest time between two pieces of output.
_SILENCE_SECONDS = 60.0


class Output(Protocol):
    """A writable binary stream."""

    def write(self, some: bytes, /) -> int: ...


class CommandFailed(ClusterProblem):
    """The command exited with a code other than 0; `found` is its standard error."""


def run(server: ApiServer, pod: str, command: Sequence[str], *, container: str, output: Output) -> str:
    """Run `command` in the container, write its standard output to `output`, and return its standard error.

    Raises CommandFailed, or another ClusterProblem if it could not be run or the connection was lost.
    """
    from kubernetes.stream import ws_client
    from websocket import ABNF, WebSocketBadStatusException, WebSocketException

    request = server.request("get", PODS, pod, "exec")
    headers: dict[str, str] = {}
    server.api.update_params_for_auth(headers, [], ["BearerToken"])
    headers["sec-websocket-protocol"] = _CHANNELS
    said, ended = bytearray(), None
    try:
        stream = ws_client.create_websocket(server.api.configuration, _url(server, pod, command, container), headers)
        with closing(stream):
            stream.settimeout(_SILENCE_SECONDS)
            while ended is None:
                kind, frame = stream.recv_data_frame(True)
                if kind == ABNF.OPCODE_CLOSE:
                    break
                if kind not in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) or not frame.data:
                    continue
                channel, data = frame.data[0], frame.data[1:]
                if channel == _STDOUT:
                    output.write(data)
                elif channel == _STDERR:
                    said += data
                elif channel == _ERROR:
                    ended = json.loads(data)
    except WebSocketBadStatusException as error:
        raise refusal(request, error.status_code, error.resp_body or b"") from None
    except (WebSocketException, OSError) as error:
        raise explained(request, 0, "", str(error)) from None
    words = said.decode("utf-8", errors="replace").strip()
    if ended is None:
        raise explained(request, 0, "", "the connection was closed before the command had ended")
    if ended.get("status") != "Success":
        raise CommandFailed(pod, words or str(ended.get("message", "the command failed")))
    return words


def _url(server: ApiServer, pod: str, command: Sequence[str], container: str) -> str:
    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", each) for each in command]
    host: str = server.api.configuration.host
    path = PODS.path(server.namespace, pod, "exec")
    return f"{host.replace('http', 'ws', 1)}{path}?{urlencode(query)}"
