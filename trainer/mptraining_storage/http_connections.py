"""Kept-alive HTTP/1.1 connections to the storage service, shared by all threads.

A body is received from the socket into the caller's own buffer. Over TLS the file object of `http.client` costs half as
much again as the decryption, and its parser of headers more than all else that Python does for a short range.
"""

from __future__ import annotations

import base64
import functools
import os
import select
import socket
import ssl
import threading
import urllib.request
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import unquote, urlsplit

_MAX_HEAD = 64 << 10
_CUT = "the connection was cut"
# `ssl` releases the interpreter's lock for each 16 KiB. Threads that decrypt at the same time hand it to one another as
# often, which took a quarter of the processor time of a range.
_decryption = threading.Lock()


class Response:
    """A response whose body is received as it is read: `fields` are the headers by their lower-case names.

    `length` is the rest of the body in bytes, None if only the end of the connection ends it. Raises OSError.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = bytearray()
        self.status = 100
        while 100 <= self.status < 200:
            first, *lines = self._until(b"\r\n\r\n").decode("iso-8859-1").split("\r\n")
            version, _, status = first.partition(" ")
            if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
                raise ConnectionError(f"it sent {first[:40]!r} instead of an HTTP response")
            self.status = int(status[:3])
        self.fields: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            # Google sends a line for each kind of hash.
            self.fields[name.lower()] = f"{self.fields.get(name.lower(), '')} {value.strip()}".lstrip()
        length = self.fields.get("content-length", "")
        self.length = 0 if self.status in (204, 304) else int(length) if length.isdecimal() else None
        if self.fields.get("transfer-encoding", "").lower() == "chunked":
            self._received = bytearray(b"".join(self._chunks()))
            self.length = len(self._received)
        closing = "close" in self.fields.get("connection", "").lower() or version == "HTTP/1.0"
        self.keeps_open = self.length is not None and not closing

    def read_into(self, into: memoryview) -> int:
        """Fill the beginning of `into` with what has arrived, so that a slow connection is noticed.

        Return the number of bytes; 0 at the end of the body or of the connection.
        """
        most = len(into) if self.length is None else min(len(into), self.length)
        if not most:
            return 0
        if self._received:
            count = min(most, len(self._received))
            into[:count] = self._received[:count]
            del self._received[:count]
        else:
            count = _receive_into(self._socket, into[:most])
        if self.length is not None:
            self.length -= count
        return count

    def read(self) -> bytes:
        """Read the rest of the body."""
        body, piece = bytearray(), memoryview(bytearray(_MAX_HEAD))
        while count := self.read_into(piece):
            body += piece[:count]
        if self.length:
            raise ConnectionError(_CUT)
        return bytes(body)

    def _chunks(self) -> Iterator[bytearray]:
        while size := int(self._until(b"\r\n").partition(b";")[0], 16):
            self._receive(size + 2)
            yield self._received[:size]
            del self._received[: size + 2]
        while self._until(b"\r\n"):
            pass

    def _until(self, mark: bytes) -> bytearray:
        """Return the bytes before `mark`, and drop both."""
        while (end := self._received.find(mark)) < 0:
            if len(self._received) > _MAX_HEAD:
                raise ConnectionError("it sent no end of the headers")
            self._receive(len(self._received) + 1)
        before = self._received[:end]
        del self._received[: end + len(mark)]
        return before

    def _receive(self, count: int) -> None:
        """Receive until there are at least `count` bytes."""
        while len(self._received) < count:
            piece = self._socket.recv(_MAX_HEAD)
            if not piece:
                raise ConnectionError(_CUT)
            self._received += piece


class Connections:
    """The connections to one address. `acquire` and `release` may be called from any thread."""

    def __init__(self, url: str, *, use_proxies: bool, connect_timeout: float) -> None:
        """With `use_proxies`, those of the environment (HTTPS_PROXY, NO_PROXY) apply."""
        parts = urlsplit(url)
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._is_secure else 80)
        self._netloc = parts.netloc
        self._use_proxies = use_proxies
        self._connect_timeout = connect_timeout
        # The last one that was released is used first, so that the server closes those that are not needed.
        self._idle: list[socket.socket] = []
        weakref.finalize(self, _close, self._idle)

    def acquire(self) -> socket.socket:
        """Return an idle connection that the server has not closed, else a new one. Raises OSError."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                # The server sends bytes on an idle connection only when it closes it.
                if not _has_arrived(connection, seconds=0):
                    return connection
                connection.close()
        return self._connect()

    def release(self, connection: socket.socket) -> None:
        """Take back a connection whose response was read to its end."""
        self._idle.append(connection)

    def get(self, connection: socket.socket, target: str, headers: Mapping[str, str]) -> Response:
        """Send a request and receive the headers of its response. Raises OSError."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {self._netloc}\r\n{lines}\r\n".encode())
        return Response(connection)

    def _connect(self) -> socket.socket:
        is_direct = not self._use_proxies or urllib.request.proxy_bypass(self._host)
        proxies = {} if is_direct else urllib.request.getproxies()
        proxy = proxies.get("https" if self._is_secure else "http") or proxies.get("all") or ""
        way = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host, port = (way.hostname or "", way.port or 80) if proxy else (self._host, self._port)
        connection = (
            HTTPSConnection(host, port, timeout=self._connect_timeout, context=self._tls)
            if self._is_secure
            else HTTPConnection(host, port, timeout=self._connect_timeout)
        )
        if proxy:
            headers = {}
            if way.username:
                secret = f"{unquote(way.username)}:{unquote(way.password or '')}".encode()
                headers["Proxy-Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
            connection.set_tunnel(self._host, self._port, headers)
        connection.connect()
        return connection.sock

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        import certifi

        named = os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE") or certifi.where()
        is_folder = Path(named).is_dir()
        return ssl.create_default_context(cafile=None if is_folder else named, capath=named if is_folder else None)


def _receive_into(connection: socket.socket, into: memoryview) -> int:
    """Receive what has arrived, at least one byte, and return the number of bytes; 0 at the end of the connection."""
    if not isinstance(connection, ssl.SSLSocket):
        return connection.recv_into(into)
    timeout = connection.gettimeout()
    connection.settimeout(0)
    try:
        while True:
            with _decryption:
                if (count := _decrypted(connection, into)) is not None:
                    return count
            if not _has_arrived(connection, timeout):
                raise TimeoutError
    finally:
        connection.settimeout(timeout)


def _decrypted(connection: ssl.SSLSocket, into: memoryview) -> int | None:
    """Decrypt what has arrived on a connection that does not block; None if nothing has."""
    count = 0
    while count < len(into):
        try:
            received = connection.recv_into(into[count:])
        except ssl.SSLWantReadError:
            return count or None
        if not received:
            break
        count += received
    return count


def _has_arrived(connection: socket.socket, seconds: float | None) -> bool:
    """Wait for bytes, or for the end of the connection; return False if neither arrives in time."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def _close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()
