"""A proxy in front of an object server that simulates a network: latency, a rate for each stream, and faults, on
demand.

    with ObjectServer() as server, StorageProxy(server.address, Shape(latency=0.05, stream_rate=20e6)) as proxy:
        environment = proxy.environment()                  # for google-cloud-storage and gcsfs: over TLS
        environment = proxy.tensorflow_environment()       # for gs:// inside TensorFlow
        proxy.change(rules=(Rule(Refuse(status=503), share=0.05), Rule(Cut(), share=0.02)))
        proxy.counters().media_requests

A thread for each connection with blocking sockets: encryption and copying then run outside of the interpreter's lock,
and a stream that waits for its turn costs nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import http.client
import http.server
import socket
import socketserver
import ssl
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, quote, urlsplit

from tests.testbed.credentials import create_server_keys
from tests.testbed.gcs.faults import (
    Cut,
    Draw,
    Drop,
    Fault,
    Flip,
    Refuse,
    Request,
    Shape,
    Stall,
    WholeObject,
    WrongRange,
    byte_range,
    read,
)
from tests.testbed.processes import free_ports

# The host of TensorFlow's reader, which is fixed in its code.
GOOGLE = ("storage.googleapis.com", "www.googleapis.com")
# Large enough that few pieces are sent, small enough that 20 MB/s is sent in pieces of 13 ms.
_PIECE = 256 << 10
# These headers belong to one connection, not to the request: the proxy has a connection of its own on either side.
_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "te", "trailer", "expect"}


@dataclass(frozen=True)
class Counters:
    """Numbers since the last reset. `connections` are those that clients opened; `media_bytes` are bytes of objects
    sent in response to `media_requests`; `faults` are counted by the name of their class.
    """

    media_requests: int
    media_bytes: int
    connections: int
    faults: Mapping[str, int]


class _Kept(NamedTuple):
    """A whole object, and the headers that describe it."""

    headers: Mapping[str, str]
    body: memoryview


class StorageProxy:
    """A context manager. `http` and `https` are its addresses."""

    def __init__(
        self, upstream: str, shape: Shape | None = None, *, keep_objects: bool = False, folder: Path | None = None
    ) -> None:
        """`upstream` is the object server's http address.

        With `keep_objects` the proxy keeps all objects that are read in its memory and the object server has nothing
        to do: valid only if all writes pass through the proxy. Keys go to `folder`.
        """
        self.upstream = upstream.removeprefix("http://")
        self.keep_objects = keep_objects
        self.draw = Draw(shape or Shape())
        self._folder = folder
        self._ends = ExitStack()
        self._numbers = free_ports(2)
        self._open: list[_Port] = []
        self._tally: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._filling = threading.Lock()

    def __enter__(self) -> Self:
        folder = self._folder or Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="storage-proxy-")))
        keys = create_server_keys(folder, *GOOGLE)
        self._authority = keys.authority
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(keys.certificate, keys.key)
        self.set(self.draw.shape)
        self._ends.callback(self._close_ports)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self._numbers[0]}"

    @property
    def https(self) -> str:
        return f"https://127.0.0.1:{self._numbers[1]}"

    def set(self, shape: Shape) -> None:
        """Replace the shape from the next request on; rules count from zero."""
        self.draw = Draw(shape)
        if shape.refusing:
            self._close_ports()
        elif not self._open:
            for number, direct in zip(self._numbers, (False, True), strict=True):
                port = _Port(number, self, self._tls, direct=direct)
                self._open.append(port)
                threading.Thread(target=port.serve_forever, args=(0.02,), daemon=True).start()

    def change(self, **fields: Any) -> None:
        """Replace some fields of the current shape."""
        self.set(dataclasses.replace(self.draw.shape, **fields))

    def counters(self) -> Counters:
        """The counters since the last `reset`."""
        with self._lock:
            tally = dict(self._tally)
        counts = {what: sum(count for key, count in tally.items() if key[0] == what) for what, _ in tally}
        return Counters(
            media_requests=counts.get("media requests", 0),
            media_bytes=counts.get("media bytes", 0),
            connections=counts.get("connections", 0),
            faults={name: count for (what, name), count in tally.items() if what == "fault"},
        )

    def reset(self) -> None:
        """Set the counters to zero."""
        with self._lock:
            self._tally.clear()

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that reads by google-cloud-storage or gcsfs, over TLS."""
        trusted = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(self._authority))
        # For emulators some clients honour proxy variables and others do not.
        return {"STORAGE_EMULATOR_HOST": self.https, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **trusted}

    def tensorflow_environment(self) -> dict[str, str]:
        """Return the environment of a process that reads gs:// by TensorFlow's own file system."""
        return {
            "HTTPS_PROXY": self.http,
            "https_proxy": self.http,
            "CURL_CA_BUNDLE": str(self._authority),
            "NO_GCE_CHECK": "true",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "testbed",
        }

    def _close_ports(self) -> None:
        while self._open:
            self._open.pop().close()

    # -- used by the connections' threads ---------------------------------------------------------------------------

    def count(self, what: str, name: str = "", amount: int = 1) -> None:
        with self._lock:
            self._tally[what, name] += amount

    def fault(self, request: Request) -> Fault | None:
        """Return the fault of this request; count both."""
        with self._lock:
            fault = self.draw.fault(request)
        if fault is not None:
            self.count("fault", type(fault).__name__)
        if request.what == "media":
            self.count("media requests")
        return fault

    def drop(self, request: Request) -> None:
        """Drop what a write may have changed: everything, when it names no object."""
        with self._filling:
            if request.object:
                self._kept.pop(request.object, None)
            else:
                self._kept.clear()

    def whole(self, name: str) -> _Kept | None:
        """Return the object, fetched once; None if the server does not respond with 200."""
        with self._filling:
            if name not in self._kept:
                connection = http.client.HTTPConnection(self.upstream)
                connection.request("GET", "/" + quote(name))
                answer = connection.getresponse()
                if answer.status == 200:
                    self._kept[name] = _Kept(_passed_on(answer.getheaders()), memoryview(answer.read()))
                connection.close()
            return self._kept.get(name)


class _Port(socketserver.ThreadingTCPServer):
    """One listening port of the proxy; TLS from the first byte when `direct`."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self, port: int, proxy: StorageProxy, tls: ssl.SSLContext, *, direct: bool) -> None:
        self.proxy = proxy
        self.tls = tls
        self.direct = direct
        self._open_sockets: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, *_: object) -> None:
        """Clients may disconnect at any time, in the middle of a handshake too; anything else is logged."""
        if not isinstance(sys.exception(), OSError):
            traceback.print_exc()

    def process_request_thread(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        self.proxy.count("connections")
        # A copy of the descriptor: TLS takes over the socket itself.
        handle = request.dup()
        self._open_sockets.add(handle)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._open_sockets.discard(handle)
            handle.close()

    def close(self) -> None:
        """Refuse new connections and end all open ones."""
        self.shutdown()
        self.server_close()
        for each in list(self._open_sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client, and its own connection to the object server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Port

    def setup(self) -> None:
        self.proxy = self.server.proxy
        self.scheme = "https" if self.server.direct else "http"
        if self.server.direct:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    @functools.cached_property
    def upstream(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.proxy.upstream)

    def finish(self) -> None:
        super().finish()
        self.upstream.close()

    def log_message(self, *_: object) -> None:
        """Log nothing: the counters are the log."""

    def do_CONNECT(self) -> None:
        """End the tunnel here: TensorFlow's own reader connects this way, because its host is fixed."""
        self.send_response_only(200)
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.scheme = "https"
        self.rfile = self.connection.makefile("rb", self.rbufsize)
        self.wfile = self.connection.makefile("wb", 0)

    def _do(self) -> None:
        request = read(self.command, self.path, self.headers.get("Range", ""))
        fault = self.proxy.fault(request)
        body = None if isinstance(fault, Drop) else self._upload(fault)
        if body is None:
            self._end()
            return
        time.sleep(self.proxy.draw.shape.latency)
        kept = self._whole_object(request)
        if isinstance(fault, Refuse):
            more = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            self._answer(request, fault, fault.status, more, memoryview(b"the storage proxy says no"))
        elif kept is None:
            self._forward(request, fault, body)
        elif chosen := self._chosen_range(request, fault, len(kept.body)):
            start, end = chosen
            more = {**kept.headers, "Content-Range": f"bytes {start}-{end - 1}/{len(kept.body)}"}
            self._answer(request, fault, 206, more, kept.body[start:end])
        else:
            self._answer(request, fault, 200, kept.headers, kept.body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _do

    def _upload(self, fault: Fault | None) -> bytes | None:
        """Read the request's body; None when the connection was cut in the middle of it."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b"".join(self._chunks())
        else:
            length = int(self.headers.get("Content-Length") or 0)
            if length and isinstance(fault, Cut):
                self.rfile.read(fault.length(length))
                return None
            body = self.rfile.read(length)
        if self.proxy.draw.shape.stream_rate:
            time.sleep(len(body) / self.proxy.draw.shape.stream_rate)
        return body

    def _chunks(self) -> Iterator[bytes]:
        while length := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(length)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def _whole_object(self, request: Request) -> _Kept | None:
        """Return the object if it can be served from memory: for an unconditional read of the current version."""
        conditional = any(name.lower().startswith("if-") for name in self.headers)
        query = parse_qs(urlsplit(request.target).query)
        if (
            not self.proxy.keep_objects
            or request.what != "media"
            or conditional
            or any("Match" in name for name in query)
        ):
            return None
        kept = self.proxy.whole(request.object)
        if kept is None or query.get("generation", [""])[0] not in ("", kept.headers.get("X-Goog-Generation", "")):
            return None
        return kept if not request.range or byte_range(request.range, len(kept.body)) else None

    def _chosen_range(self, request: Request, fault: Fault | None, size: int) -> tuple[int, int] | None:
        """Return the range to respond with: of a fault another one, or None for the whole object."""
        if isinstance(fault, WholeObject) or not (wanted := byte_range(request.range, size)):
            return None
        shift = int(isinstance(fault, WrongRange))
        return wanted[0] + shift, wanted[1] + shift

    def _forward(self, request: Request, fault: Fault | None, body: bytes) -> None:
        headers = _passed_on(self.headers.items())
        if isinstance(fault, WholeObject | WrongRange):
            # Header names are case-insensitive.
            headers = {name: value for name, value in headers.items() if name.lower() != "range"}
            if chosen := self._chosen_range(request, fault, 2**62):
                headers["Range"] = f"bytes={chosen[0]}-{chosen[1] - 1}"
        try:
            self.upstream.request(self.command, self.path, body=body or None, headers=headers)
            answer = self.upstream.getresponse()
        except (OSError, http.client.HTTPException):
            self.upstream.close()
            self._answer(request, fault, 502, {}, memoryview(b"the object server does not answer"))
            return
        if request.what == "write":
            self.proxy.drop(request)
        more = _passed_on(answer.getheaders())
        if self.command == "HEAD":
            answer.read()
            more["Content-Length"] = answer.headers.get("Content-Length", "0")
            self._answer(request, fault, answer.status, more, memoryview(b""))
        elif request.what == "media" and answer.length is not None:
            self._answer(request, fault, answer.status, more, answer)
        else:
            # Links in responses would lead around the proxy.
            there, here = f"http://{self.proxy.upstream}", f"{self.scheme}://{self.headers['Host']}"
            more = {name: value.replace(there, here) for name, value in more.items()}
            content = answer.read().replace(there.encode(), here.encode())
            self._answer(request, fault, answer.status, more, memoryview(content))

    def _answer(
        self,
        request: Request,
        fault: Fault | None,
        status: int,
        headers: Mapping[str, str],
        body: memoryview | http.client.HTTPResponse,
    ) -> None:
        """Send the whole response, as slowly and as far as the fault allows."""
        length = len(body) if isinstance(body, memoryview) else body.length or 0
        most = fault.length(length) if isinstance(fault, Cut) else length
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        rate = self.proxy.draw.shape.stream_rate
        sent, began = 0, time.monotonic()
        for piece in _pieces(body, most, fault):
            if isinstance(fault, Stall) and sent == fault.after:
                time.sleep(fault.seconds)
                began += fault.seconds
            if rate:
                # Sleep before the piece, not after it: its last byte then arrives at the right time.
                time.sleep(max(0.0, began + (sent + len(piece)) / rate - time.monotonic()))
            if request.what == "media" and status in (200, 206):
                # Count before sending, so that a reader that has read all of it finds it counted.
                self.proxy.count("media bytes", amount=len(piece))
            self.connection.sendall(piece)
            sent += len(piece)
        if sent < length:
            self._end()

    def _end(self) -> None:
        """Deliver what was sent and no more: TLS sends no close_notify."""
        self.close_connection = True
        self.upstream.close()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _passed_on(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers that are forwarded."""
    return {name: value for name, value in headers if name.lower() not in _HOP}


def _pieces(body: memoryview | http.client.HTTPResponse, most: int, fault: Fault | None) -> Iterable[memoryview]:
    """Return the first `most` bytes, split where the fault applies."""
    position = fault.after if isinstance(fault, Stall) else fault.at if isinstance(fault, Flip) else None
    at = 0
    while at < most:
        end = min(most, at + _PIECE)
        if position is not None and at < position < end:
            end = position
        piece = body[at:end] if isinstance(body, memoryview) else memoryview(body.read(end - at))
        if not piece:
            return
        if isinstance(fault, Flip) and at == position:
            piece = memoryview(bytes([piece[0] ^ 0xFF]) + piece[1:])
        yield piece
        at += len(piece)
