"""The HTTP session of the control plane: as many kept-alive connections as threads, and time-outs that hold.

Three things in requests break its time-outs here. Every address of a host gets the whole time to connect, and
storage.googleapis.com has sixteen. The resolver waits as long as resolv.conf says. And the body of an upload, sent
in one piece, must be through within one time-out, however large it is.
"""

from __future__ import annotations

import functools
import io
import os
import socket
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from google.auth.transport.requests import AuthorizedSession
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import NameResolutionError

if TYPE_CHECKING:
    import requests
    from google.auth.credentials import Credentials

CONNECTIONS = 32
_RESOLVE_SECONDS = 8.0
_PIECE = 256 << 10


def session(credentials: Credentials, *, anonymous: bool, emulator: bool) -> AuthorizedSession:
    """A session for many threads. An emulator is asked directly, whatever proxies the environment names."""
    # Nobody's credentials cannot be fetched anew, which a refusal would lead to.
    made = AuthorizedSession(credentials, refresh_status_codes=()) if anonymous else AuthorizedSession(credentials)
    if emulator:
        made.trust_env = False
        # `trust_env` is about proxies here, but certificates of the environment go with it.
        made.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or True
    for scheme in ("http://", "https://"):
        made.mount(scheme, _Adapter(pool_connections=4, pool_maxsize=CONNECTIONS))
    return made


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, **named)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}

    def send(self, request: requests.PreparedRequest, *arguments: Any, **named: Any) -> requests.Response:
        # A file is sent in small blocks, and the time-out holds for each of them.
        if isinstance(request.body, bytes) and len(request.body) > _PIECE:
            request.body = io.BytesIO(request.body)  # type: ignore[assignment]
        return super().send(request, *arguments, **named)


class _Connection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _connected(self, super()._new_conn)


class _SecureConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _connected(self, super()._new_conn)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def _connected(connection: HTTPConnection, connect: Any) -> socket.socket:
    """Connects within the connection's time-out, which all addresses of the host share."""
    whole = connection.timeout
    if not isinstance(whole, int | float):
        return connect()  # type: ignore[no-any-return]
    connection.timeout = whole / _count_addresses(connection)
    try:
        made: socket.socket = connect()
    finally:
        connection.timeout = whole
    made.settimeout(whole)
    return made


def _count_addresses(connection: HTTPConnection) -> int:
    answer: SimpleQueue[int | socket.gaierror] = SimpleQueue()
    ask = functools.partial(_resolve, connection.host, connection.port, answer)
    # Nothing interrupts the resolver; the thread is left to it.
    threading.Thread(target=ask, daemon=True, name="resolver").start()
    try:
        found = answer.get(timeout=_RESOLVE_SECONDS)
    except Empty:
        found = socket.gaierror(socket.EAI_AGAIN, "the name server does not answer")
    if isinstance(found, socket.gaierror):
        raise NameResolutionError(connection.host, connection, found) from found
    return max(1, found)


def _resolve(host: str, port: int | None, answer: SimpleQueue[int | socket.gaierror]) -> None:
    try:
        answer.put(len(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
    except socket.gaierror as error:
        answer.put(error)
