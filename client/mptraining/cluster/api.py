"""API server of a cluster for `mptj`: objects, watches, logs and `pods/exec`; every failure is a ClusterProblem.

`mptraining.cluster.connection` creates the `kubernetes` ApiClient, and `mptraining_api.kubernetes_api` calls it.
"""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from mptraining.cluster.errors import NOUNS, ClusterProblem, NotFound, Request, cluster_problem, cluster_problems
from mptraining_api import kubernetes_api
from mptraining_api.kubernetes_api import (
    MERGE_PATCH,
    METADATA_ONLY,
    PODS,
    READ_SECONDS,
    WHOLE,
    ApiProblem,
    Raw,
    Resource,
    api_problem,
)

# The server ends a watch after this time and the client opens it again, so that a dead connection does not hang.
WATCH_SECONDS = 60


class ApiServer:
    """API server of a cluster, with a namespace.

    `api` is a kubernetes.client.ApiClient, `name` the cluster's name in messages. `flags` are those of
    `mptj` that select the cluster, in which `default_namespace` needs none. Thread-safe. Every method raises
    ClusterProblem.
    """

    def __init__(
        self,
        api: Any,
        *,
        name: str,
        namespace: str,
        flags: Sequence[str] = (),
        default_namespace: str | None = None,
    ) -> None:
        self.api = api
        self.name = name
        self.namespace = namespace
        self._flags = tuple(flags)
        self._default_namespace = default_namespace

    def in_namespace(self, namespace: str) -> ApiServer:
        server = copy.copy(self)
        server.namespace = namespace
        return server

    @property
    def flags(self) -> list[str]:
        """The flags of `mptj` that select this cluster and namespace."""
        namespace_flags = [] if self.namespace == self._default_namespace else ["--namespace", self.namespace]
        return [*self._flags, *namespace_flags]

    def command(self, verb: str, *arguments: str) -> str:
        """Return the command line of `mptj` for this cluster and namespace."""
        return shlex.join(["mptj", *verb.split(), *arguments, *self.flags])

    def get(self, resource: Resource, name: str) -> Raw:
        return self._parsed("GET", "get", resource, name)

    def items(
        self, resource: Resource, *, everywhere: bool = False, metadata_only: bool = False, **query: str
    ) -> list[Raw]:
        """List all objects of the namespace, or of all namespaces; `query` such as labelSelector, fieldSelector."""
        accept = METADATA_ONLY if metadata_only else WHOLE
        return self.collection(resource, everywhere=everywhere, accept=accept, **query)[0]

    def collection(
        self, resource: Resource, *, everywhere: bool = False, accept: str = WHOLE, **query: str
    ) -> tuple[list[Raw], str]:
        """List all objects as `items`, with the resourceVersion from which `watch` continues."""

        def get(query: Mapping[str, str]) -> Raw:
            return self._parsed("GET", "list", resource, query=query, everywhere=everywhere, accept=accept)

        pages = list(kubernetes_api.pages(get, query))
        items = [item for page in pages for item in page.get("items") or []]
        return items, str(pages[-1]["metadata"]["resourceVersion"])

    def create(self, resource: Resource, body: Mapping[str, Any], **query: str) -> Raw:
        name = str(body.get("metadata", {}).get("name") or body.get("metadata", {}).get("generateName", ""))
        return self._parsed("POST", "create", resource, body=body, query=query, new_name=name)

    def patch(self, resource: Resource, name: str, body: Mapping[str, Any]) -> Raw:
        """Apply a merge patch; a uid or resourceVersion in `body` is a precondition."""
        return self._parsed("PATCH", "patch", resource, name, body=body, content_type=MERGE_PATCH)

    def suspend(self, resource: Resource, name: str, value: bool, *, uid: str) -> None:
        """Set spec.runPolicy.suspend of a job or a sweep; `uid` is a precondition."""
        self.patch(resource, name, {"metadata": {"uid": uid}, "spec": {"runPolicy": {"suspend": value}}})

    def delete(
        self, resource: Resource, name: str, *, uid: str | None = None, grace_seconds: int | None = None
    ) -> None:
        """Delete the object, with background propagation to its dependents. `uid` is a precondition."""
        body: Raw = {"propagationPolicy": "Background"}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        self._parsed("DELETE", "delete", resource, name, body=body)

    def watch(
        self, resource: Resource, since: str, *, name: str = "", everywhere: bool = False, seconds: int = WATCH_SECONDS
    ) -> Iterator[Raw]:
        """Yield changes `{"type", "object"}` after resourceVersion `since`, for at most `seconds`.

        They are those of the object `name`, else of all objects, then with bookmarks.
        """
        objects = {"fieldSelector": f"metadata.name={name}"} if name else {"allowWatchBookmarks": "true"}
        query = {"watch": "true", "resourceVersion": since, "timeoutSeconds": str(seconds), **objects}
        read_seconds = seconds + READ_SECONDS
        for line in self._lines("watch", resource, query=query, everywhere=everywhere, read_seconds=read_seconds):
            yield json.loads(line)

    def log(self, pod: str, *, container: str, follow: bool, **query: str) -> Iterator[str]:
        """Yield the lines of a container's log; `query` such as tailLines, timestamps, sinceTime."""
        query = {"container": container, "follow": "true" if follow else "false", **query}
        # With `follow` there is no read timeout: a program may print nothing for hours.
        for line in self._lines("get", PODS, pod, "log", query=query, read_seconds=None if follow else READ_SECONDS):
            yield line.decode("utf-8", errors="replace")

    def request(
        self, verb: str, resource: Resource, name: str = "", subresource: str = "", *, everywhere: bool = False
    ) -> Request:
        """Return the request as a value for error messages."""
        called = f"{resource.plural}/{subresource}" if subresource else resource.plural
        namespace = self.namespace if resource.namespaced and not everywhere else None
        return Request(verb, called, resource.group, namespace, name, self.name)

    def _parsed(
        self,
        method: str,
        verb: str,
        resource: Resource,
        name: str = "",
        *,
        new_name: str = "",
        everywhere: bool = False,
        **options: Any,
    ) -> Raw:
        """Send a request; `new_name` is that of an object to create, `options` as in `kubernetes_api.send`."""
        path = resource.path(None if everywhere else self.namespace, name)
        with cluster_problems(self.request(verb, resource, name or new_name, everywhere=everywhere)):
            answer: Raw
            answer, _, _ = kubernetes_api.send(self.api, method, path, **options)
        return answer

    def _lines(
        self,
        verb: str,
        resource: Resource,
        name: str = "",
        subresource: str = "",
        *,
        query: Mapping[str, str],
        everywhere: bool = False,
        read_seconds: float | None,
    ) -> Iterator[bytes]:
        path = resource.path(None if everywhere else self.namespace, name, subresource)
        with cluster_problems(self.request(verb, resource, name, subresource, everywhere=everywhere)):
            yield from kubernetes_api.lines(self.api, path, query=query, read_seconds=read_seconds)


def changes(server: ApiServer, resource: Resource, name: str, uid: str, seconds: int = WATCH_SECONDS) -> Iterator[Raw]:
    """Yield the object now and after each change, for about `seconds`.

    Raises NotFound if it was deleted, Unreachable if the API server does not answer.
    """
    gone = NotFound(name, f"the {NOUNS[resource.plural]} was deleted while it was followed")
    document = server.get(resource, name)
    if document["metadata"]["uid"] != uid:
        raise gone
    yield document
    since = str(document["metadata"]["resourceVersion"])
    for change in server.watch(resource, since, name=name, seconds=seconds):
        if change["type"] == "DELETED":
            raise gone
        # The resourceVersion is too old; the next GET returns a current one.
        if change["type"] == "ERROR":
            return
        yield change["object"]


# WebSocket subprotocol of `pods/exec` that all kubelet versions support, and its channels.
_PROTOCOL = "v4.channel.k8s.io"
STDOUT, STDERR, ERROR = 1, 2, 3
# Longest time between two pieces of output.
_SILENCE_SECONDS = 60.0


class CommandFailed(ClusterProblem):
    """The command exited with a code other than 0; `found` is its standard error."""


def exec_output(server: ApiServer, pod: str, command: Sequence[str], *, container: str) -> Iterator[bytes]:
    """Run `command` in the container and yield its standard output.

    Raises CommandFailed at its end, or another ClusterProblem if it could not be run or the connection was lost.
    """
    query = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", word) for word in command)]
    errors, channel = bytearray(), None
    with pod_stream(server, pod, "exec", query, _PROTOCOL) as stream:
        stream.settimeout(_SILENCE_SECONDS)
        while channel != ERROR:
            channel, data = receive(stream) or (None, b"")
            if channel == STDOUT:
                yield data
            elif channel == STDERR:
                errors += data
    code, message = exit_status(data)
    if code != 0:
        raise CommandFailed(pod, errors.decode("utf-8", errors="replace").strip() or message)


def exit_status(data: bytes) -> tuple[int | None, str]:
    """Return the exit code on the channel ERROR, and a message; None for a command that could not be started."""
    status = json.loads(data)
    if status.get("status") == "Success":
        return 0, ""
    causes = (status.get("details") or {}).get("causes") or ()
    codes = [str(cause.get("message")) for cause in causes if cause.get("reason") == "ExitCode"]
    message = str(status.get("message") or "the command could not be started")
    return int(codes[0]) if codes and codes[0].isdecimal() else None, message


def receive(stream: Any) -> tuple[int, bytes] | None:
    """Return the channel and the data of the next frame of a WebSocket; None if it has none.

    Raises ConnectionError when the other end closes the connection.
    """
    from websocket import ABNF

    kind, frame = stream.recv_data_frame(True)
    if kind == ABNF.OPCODE_CLOSE:
        raise ConnectionError("the connection was closed before the command had ended")
    return (frame.data[0], frame.data[1:]) if kind in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and frame.data else None


@contextmanager
def pod_stream(
    server: ApiServer, pod: str, subresource: str, query: Sequence[tuple[str, str]], protocol: str
) -> Iterator[Any]:
    """Open a WebSocket to `pods/exec` or `pods/portforward` in that subprotocol.

    Raises ClusterProblem, also for errors of the connection in the block.
    """
    from kubernetes.stream import ws_client
    from websocket import WebSocketBadStatusException, WebSocketException

    request = server.request("get", PODS, pod, subresource)
    headers: dict[str, str] = {}
    server.api.update_params_for_auth(headers, [], ["BearerToken"])
    headers["sec-websocket-protocol"] = protocol
    host: str = server.api.configuration.host
    address = f"{host.replace('http', 'ws', 1)}{PODS.path(server.namespace, pod, subresource)}?{urlencode(query)}"
    try:
        stream = ws_client.create_websocket(server.api.configuration, address, headers)
        try:
            yield stream
        finally:
            stream.close()
            # `close` leaves the socket open when the other end has closed the connection.
            stream.shutdown()
    except WebSocketBadStatusException as error:
        raise cluster_problem(request, api_problem(error.status_code, error.resp_body or b"")) from None
    except (WebSocketException, OSError) as error:
        raise cluster_problem(request, ApiProblem(0, "NoAnswer", str(error))) from None
