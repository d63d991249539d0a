"""The kubelet's API for the API server: logs and exec of the pods of simulated nodes.

    with NodeServer(folder) as server:
        control_plane.nodes.create("paper", server=server)     # requests for its pods' logs and exec arrive here
        server.log("team-a", "flowers-1-0-x").say("step 1")    # `kubectl logs -f` sees it at once
        server.commands["team-a", "flowers-1-0-x"] = environment
        # `kubectl exec`: the command runs as a process of this machine, in that environment

HTTPS with a certificate of its own: like the API server of a new cluster, this one does not verify it.
Exec uses WebSocket, subprotocol v4.channel.k8s.io, as clients request it (a kubelet since 1.30 does too).
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.testbed.credentials import create_server_keys

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 4.2.2
_CHANNELS = "v4.channel.k8s.io"
_STDOUT, _STDERR, _ERROR = 1, 2, 3
_BINARY, _CLOSE = 2, 8

Place = tuple[str, str]


class Log:
    """A container's output; a follower gets new lines until it is closed."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []
        self._closed = False
        self._cuts = 0
        self._changed = threading.Condition()

    def say(self, *lines: str) -> None:
        with self._changed:
            # A nanosecond apart, as a container runtime stamps lines that are written at once.
            now = time.time_ns()
            self._lines += [(_stamp(now + number), line) for number, line in enumerate(lines)]
            self._changed.notify_all()

    def cut(self) -> None:
        """Disconnect the followers, as a proxy with an idle timeout does."""
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Mark the container as ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def read(self, *, follow: bool, tail: int | None, since: str) -> Iterator[tuple[str, str]]:
        """Return (time, line), from the second `since` on."""
        with self._changed:
            at = 0 if tail is None else max(0, len(self._lines) - tail)
            cuts = self._cuts
        while True:
            with self._changed:
                while follow and at == len(self._lines) and not self._closed and self._cuts == cuts:
                    self._changed.wait()
                some = self._lines[at:]
                at += len(some)
                over = self._closed or not follow or self._cuts != cuts
            yield from (each for each in some if each[0] >= since)
            if over and not some:
                return


class NodeServer:
    """A context manager; one serves any number of nodes."""

    def __init__(self, folder: Path) -> None:
        self.commands: dict[Place, Mapping[str, str]] = {}
        self.asked: list[list[str]] = []
        self._logs: dict[Place, Log] = {}
        keys = create_server_keys(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys.certificate, keys.key)
        owner = self

        class Handler(_Handler):
            server_of = owner

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.port = int(self._http.server_address[1])

    def log(self, namespace: str, pod: str) -> Log:
        """Return the log of the pod's container; empty at first."""
        return self._logs.setdefault((namespace, pod), Log())

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, name="node server", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for log in self._logs.values():
            log.close()
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: NodeServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        what, namespace, pod, *_ = url.path.strip("/").split("/")
        if what == "containerLogs":
            self._logs(self.server_of.log(namespace, pod), query)
        elif what == "exec" and self.headers.get("Upgrade", "").lower() == "websocket":
            self._exec((namespace, pod), query["command"])
        else:
            self.send_error(404)

    def _logs(self, log: Log, query: Mapping[str, list[str]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tail = int(query["tailLines"][0]) if "tailLines" in query else None
        try:
            since = query.get("sinceTime", [""])[0].removesuffix("Z")
            for at, line in log.read(follow=query.get("follow") == ["true"], tail=tail, since=since):
                data = (f"{at} {line}\n" if "timestamps" in query else f"{line}\n").encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # the follower has disconnected

    def _exec(self, place: Place, command: list[str]) -> None:
        self.server_of.asked.append(command)
        accept = base64.b64encode(hashlib.sha1((self.headers["Sec-WebSocket-Key"] + _GUID).encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.send_header("Sec-WebSocket-Protocol", _CHANNELS)
        self.end_headers()
        self.close_connection = True
        # The image's `python` is this interpreter.
        program = [sys.executable, *command[1:]] if command[0] == "python" else command
        environment = dict(self.server_of.commands.get(place, {}))
        done = subprocess.run(program, env=environment, capture_output=True, check=False, timeout=240)
        for channel, data in ((_STDOUT, done.stdout), (_STDERR, done.stderr)):
            for at in range(0, len(data), 32_768):
                self._frame(_BINARY, bytes([channel]) + data[at : at + 32_768])
        self._frame(_BINARY, bytes([_ERROR]) + json.dumps(_status(done.returncode)).encode())
        self._frame(_CLOSE, struct.pack(">H", 1000))

    def _frame(self, kind: int, data: bytes) -> None:
        size = len(data)
        head = bytes([0x80 | kind, size]) if size < 126 else bytes([0x80 | kind, 126]) + struct.pack(">H", size)
        self.wfile.write(head + data)
        self.wfile.flush()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


def _stamp(nanoseconds: int) -> str:
    seconds, fraction = divmod(nanoseconds, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{fraction:09}Z"


def _status(code: int) -> dict[str, Any]:
    """Return the status with which a kubelet ends an exec."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    message = f"command terminated with non-zero exit code: exit status {code}"
    return {"status": "Failure", "reason": "NonZeroExitCode", "message": message, "details": {"causes": causes}}
