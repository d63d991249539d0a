"""The storage proxy's own process: HTTP between a client and an object server, shaped and made to fail.

A thread for each connection with blocking sockets: encryption and copying then run outside of the interpreter's lock,
and a stream that waits for its turn costs nothing. Bodies of objects may be kept in memory, so that reading them again
needs no request to the object server; any write through this proxy drops the objects that it may have changed.
"""

from __future__ import annotations

import functools
import http.client
import http.server
import socket
import socketserver
import ssl
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

from tests.testbed.gcs.faults import (
    Asked,
    Cut,
    Drop,
    Fault,
    Flip,
    Refuse,
    Stall,
    WholeObject,
    WrongRange,
    asked,
    byte_range,
)
from tests.testbed.gcs.proxy_state import Books, Kept, passed_on

# Large enough that few pieces are sent, small enough that 20 MB/s is sent in pieces of 13 ms.
_PIECE = 256 << 10


class Port(socketserver.ThreadingTCPServer):
    """One listening port of the proxy; TLS from the first byte when `tls` is given and `direct`."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256

    def __init__(self, port: int, books: Books, tls: ssl.SSLContext, *, direct: bool) -> None:
        self.books = books
        self.tls = tls
        self.direct = direct
        self.open_sockets: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), Handler)

    def handle_error(self, *_: object) -> None:
        """Clients may disconnect at any time, in the middle of a handshake too; anything else is logged."""
        if not isinstance(sys.exception(), OSError):
            traceback.print_exc()

    def process_request_thread(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        self.books.count("connections")
        # A copy of the descriptor: TLS takes over the socket itself.
        handle = request.dup()
        self.open_sockets.add(handle)
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.open_sockets.discard(handle)
            handle.close()

    def cut(self) -> None:
        """End all connections."""
        for each in list(self.open_sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client, and its own connection to the object server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Port

    def setup(self) -> None:
        if self.server.direct:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        self.secure = self.server.direct
        self.books = self.server.books
        super().setup()

    @functools.cached_property
    def upstream(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.books.upstream)

    def finish(self) -> None:
        super().finish()
        if "upstream" in self.__dict__:
            self.upstream.close()

    def log_message(self, *_: object) -> None:
        """Log nothing: the counters are the log."""

    def do_CONNECT(self) -> None:
        """End the tunnel here: TensorFlow's own reader connects this way, because its host is fixed."""
        self.send_response_only(200)
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.secure = True
        self.rfile = self.connection.makefile("rb", self.rbufsize)
        self.wfile = self.connection.makefile("wb", 0)

    def _do(self) -> None:
        request = asked(self.command, self.path, self.headers.get("Range", ""))
        fault = self.books.draw.fault(request)
        self._note(request, fault)
        body = None if isinstance(fault, Drop) and not fault.forwarded else self._upload(fault)
        if body is None:
            self._hang_up(request, fault)
            return
        time.sleep(self.books.shape.latency)
        if isinstance(fault, Refuse):
            more = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            self._answer(request, fault, fault.status, more, memoryview(b"the storage proxy says no"))
            return
        kept = self._kept(request)
        if kept is None:
            self._forward(request, fault, body)
        else:
            self._serve(request, fault, kept)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _do

    def _note(self, request: Asked, fault: Fault | None) -> None:
        self.books.count("requests")
        if fault is not None:
            self.books.count("fault", fault.kind)
        if request.what == "media":
            self.books.count("object requests", request.object)

    # -- what the client sends ------------------------------------------------------------------------------------

    def _upload(self, fault: Fault | None) -> bytes | None:
        """Read the request's body; None when the connection was cut in the middle of it."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b"".join(self._chunks())
        else:
            length = int(self.headers.get("Content-Length") or 0)
            if length and isinstance(fault, Cut):
                self.rfile.read(length // 2 if fault.after is None else min(length, fault.after))
                return None
            body = self.rfile.read(length)
        if self.books.shape.stream_rate:
            time.sleep(len(body) / self.books.shape.stream_rate)
        return body

    def _chunks(self) -> Iterator[bytes]:
        while length := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(length)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    # -- what it gets -----------------------------------------------------------------------------------------------

    def _kept(self, request: Asked) -> Kept | None:
        """Return the object if it can be served from memory: for an unconditional read of the current version."""
        conditional = any(name.lower().startswith("if-") for name in self.headers)
        query = parse_qs(urlsplit(request.target).query)
        if not self.books.keep or request.what != "media" or conditional or any("Match" in name for name in query):
            return None
        kept = self.books.whole(request.object)
        if kept is None or query.get("generation", [kept.generation]) != [kept.generation]:
            return None
        return kept if not request.range or byte_range(request.range, len(kept.body)) else None

    def _serve(self, request: Asked, fault: Fault | None, kept: Kept) -> None:
        header = "" if isinstance(fault, WholeObject) else request.range
        found = byte_range(header, len(kept.body)) if header else None
        if found is None:
            self._answer(request, fault, 200, kept.headers, kept.body)
            return
        start, end = _shifted(found, fault)
        more = {**kept.headers, "Content-Range": f"bytes {start}-{end - 1}/{len(kept.body)}"}
        self._answer(request, fault, 206, more, kept.body[start:end])

    def _forward(self, request: Asked, fault: Fault | None, body: bytes) -> None:
        # Header names are case-insensitive; the one of the range may be replaced.
        headers = {name: value for name, value in passed_on(self.headers.items()) if name.lower() != "range"}
        if request.range and not isinstance(fault, WholeObject):
            headers["Range"] = request.range
        if isinstance(fault, WrongRange) and (found := byte_range(request.range, 2**62)):
            start, end = _shifted(found, fault)
            headers["Range"] = f"bytes={start}-{end - 1}"
        try:
            self.upstream.request(self.command, self.path, body=body or None, headers=headers)
            answer = self.upstream.getresponse()
        except (OSError, http.client.HTTPException):
            self.upstream.close()
            self._answer(request, fault, 502, {}, memoryview(b"the object server does not answer"))
            return
        if request.what == "write":
            self.books.drop(request)
        if isinstance(fault, Drop):
            answer.read()
            self._hang_up(request, fault)
            return
        more = dict(passed_on(answer.getheaders()))
        if self.command == "HEAD":
            length = answer.headers.get("Content-Length", "0")
            answer.read()
            self._answer(request, fault, answer.status, {**more, "Content-Length": length}, memoryview(b""))
        elif request.what == "media" and answer.length is not None:
            self._answer(request, fault, answer.status, more, answer, answer.length)
        else:
            # Links in responses would lead around the proxy.
            there = f"http://{self.books.upstream}"
            here = f"{'https' if self.secure else 'http'}://{self.headers['Host']}"
            more = {name: value.replace(there, here) for name, value in more.items()}
            told = answer.read().replace(there.encode(), here.encode())
            self._answer(request, fault, answer.status, more, memoryview(told))

    def _answer(
        self,
        request: Asked,
        fault: Fault | None,
        status: int,
        headers: Mapping[str, str],
        body: memoryview | http.client.HTTPResponse,
        length: int | None = None,
    ) -> None:
        """Send the whole response, as slowly and as far as the fault allows."""
        length = len(body) if isinstance(body, memoryview) else length or 0
        most = length if not isinstance(fault, Cut) else length // 2 if fault.after is None else fault.after
        self._remember(request, fault, status, min(most, length))
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        rate = self.books.shape.stream_rate
        sent, began = 0, time.monotonic()
        for piece in _pieces(body, min(most, length), fault):
            if isinstance(fault, Stall) and sent == fault.after:
                time.sleep(fault.seconds)
                began += fault.seconds
            if rate:
                # Sleep before the piece, not after it: its last byte then arrives at the right time.
                time.sleep(max(0.0, began + (sent + len(piece)) / rate - time.monotonic()))
            if request.what == "media" and status in (200, 206):
                # Count before sending, so that a reader that has read all of it finds it counted.
                self.books.count("object bytes", request.object, len(piece))
            self.connection.sendall(piece)
            sent += len(piece)
        if sent < length:
            self._end()

    def _remember(self, request: Asked, fault: Fault | None, status: int, sent: int) -> None:
        self.books.count("status", str(status))
        told = {"status": status, "sent": sent, "fault": fault.kind if fault else ""}
        self.books.remember(request.model_copy(update=told))

    def _hang_up(self, request: Asked, fault: Fault | None) -> None:
        """Close the connection instead of responding."""
        self._remember(request, fault, 0, 0)
        self._end()

    def _end(self) -> None:
        """Deliver what was sent and no more: TLS sends no close_notify."""
        self.close_connection = True
        if "upstream" in self.__dict__:
            self.upstream.close()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


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


def _shifted(found: tuple[int, int], fault: Fault | None) -> tuple[int, int]:
    shift = fault.shift if isinstance(fault, WrongRange) else 0
    return found[0] + shift, found[1] + shift
