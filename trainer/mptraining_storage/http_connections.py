"""Kept-alive HTTP connections to the storage service, shared by all threads.

The connections are those of `http.client`: a response is read into the caller's own buffer, and Python's lock is free
while a thread waits for bytes.
"""

from __future__ import annotations

import base64
import functools
import os
import select
import ssl
import urllib.request
import weakref
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, LineTooLong, UnknownProtocol
from pathlib import Path
from urllib.parse import unquote, urlsplit

# As http.client's limits.
_MAX_LINE, _MAX_HEADERS = 65536, 100


class Response(HTTPResponse):
    """A response with its headers in a dictionary, by lower-case names.

    http.client parses headers with the parser of e-mail messages, which takes longer than all else that Python does for
    a range.
    """

    fields: dict[str, str]

    def begin(self) -> None:
        """Read the status line and the headers."""
        status = 100
        while 100 <= status < 200:
            version, status, reason = self._read_status()  # type: ignore[attr-defined]
            fields = self._read_fields()
        if not version.startswith("HTTP/1."):
            raise UnknownProtocol(version)
        self.version = 10 if version == "HTTP/1.0" else 11
        self.code = self.status = status
        self.reason = reason.strip()
        # The base class looks for `Connection` in them.
        self.headers = self.msg = self.fields = fields  # type: ignore[assignment]
        self.chunked = fields.get("transfer-encoding", "").lower() == "chunked"
        self.chunk_left = None
        length = fields.get("content-length", "")
        self.length = int(length) if length.isdecimal() and not self.chunked else None
        if status in (204, 304):
            self.length = 0
        self.will_close = self._check_close() or (self.length is None and not self.chunked)  # type: ignore[attr-defined]

    def _read_fields(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        for _ in range(_MAX_HEADERS):
            line = self.fp.readline(_MAX_LINE + 1)
            if len(line) > _MAX_LINE:
                raise LineTooLong("header line")
            if line in (b"\r\n", b"\n", b""):
                return fields
            name, _, value = line.decode("iso-8859-1").partition(":")
            fields[name.lower()] = value.strip()
        raise HTTPException(f"more than {_MAX_HEADERS} headers")


class Connections:
    """The connections to one address. `acquire` and `release` may be called from any thread."""

    def __init__(self, url: str, *, use_proxies: bool, connect_timeout: float) -> None:
        """With `use_proxies`, those of the environment (HTTPS_PROXY, NO_PROXY) apply."""
        parts = urlsplit(url)
        self._is_secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._is_secure else 80)
        self._use_proxies = use_proxies
        self._connect_timeout = connect_timeout
        # The last one that was released is used first, so that the server closes those that are not needed.
        self._idle: list[HTTPConnection] = []
        weakref.finalize(self, _close, self._idle)

    def acquire(self) -> HTTPConnection:
        """Return an idle connection that the server has not closed, else a new one, which connects when it is used."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._new()
            if _is_open(connection):
                return connection
            connection.close()

    def release(self, connection: HTTPConnection) -> None:
        """Take back a connection whose response was read to its end."""
        self._idle.append(connection)

    def _new(self) -> HTTPConnection:
        proxy = _proxy("https" if self._is_secure else "http", self._host) if self._use_proxies else ""
        address = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        host, port = (address.hostname or "", address.port or 80) if proxy else (self._host, self._port)
        connection = (
            HTTPSConnection(host, port, timeout=self._connect_timeout, context=self._tls)
            if self._is_secure
            else HTTPConnection(host, port, timeout=self._connect_timeout)
        )
        connection.response_class = Response
        if proxy:
            headers = {}
            if address.username:
                secret = f"{unquote(address.username)}:{unquote(address.password or '')}".encode()
                headers["Proxy-Authorization"] = f"Basic {base64.b64encode(secret).decode()}"
            connection.set_tunnel(self._host, self._port, headers)
        return connection

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        named = os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE")
        if not named:
            import certifi

            named = certifi.where()
        return (
            ssl.create_default_context(capath=named)
            if Path(named).is_dir()
            else ssl.create_default_context(cafile=named)
        )


def _close(connections: list[HTTPConnection]) -> None:
    for each in connections:
        each.close()


def _is_open(connection: HTTPConnection) -> bool:
    """Return whether an idle connection can be used; the server sends bytes on one only when it closes it."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _proxy(scheme: str, host: str) -> str:
    """Return the URL of the environment's proxy; empty if there is none for this host."""
    proxies = urllib.request.getproxies()
    if urllib.request.proxy_bypass(host):
        return ""
    return proxies.get(scheme) or proxies.get("all") or ""
