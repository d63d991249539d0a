"""A command in a running container, its output as bytes: `pods/exec` over WebSocket.

The client's own stream decodes what it reads and may wait beside data that TLS has already taken from the socket, so
frames are read here, on the connection that the client opens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol
from urllib.parse import urlencode

from mptraining.cluster.api import PODS, ApiServer, refusal
from mptraining.cluster.errors import ClusterProblem, explained

# A kubelet of every version speaks it; the API server passes it through.
_CHANNELS = "v4.channel.k8s.io"
_STDOUT, _STDERR, _ERROR = 1, 2, 3
# Between two pieces of output.
_SILENCE_SECONDS = 60.0


class Output(Protocol):
    """Where bytes go."""

    def write(self, some: bytes, /) -> int: ...


class CommandFailed(ClusterProblem):
    """It ran and left with another code than 0; `found` is what it said on standard error."""


def run(server: ApiServer, pod: str, command: Sequence[str], *, container: str, output: Output) -> str:
    """Runs `command`, its standard output into `output`; returns its standard error.

    Raises CommandFailed, or another ClusterProblem when it could not be run or the connection was lost.
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
