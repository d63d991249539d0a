"""HTTP session of the control plane: a connection pool for many threads, and enforced time-outs.

requests applies its time-outs wrongly in three cases. Every address of a host gets the whole connect time-out, and
storage.googleapis.com has sixteen. The resolver waits as long as resolv.conf allows. The body of an upload, sent in
one piece, must be sent within one time-out, however large it is.
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
    """Return a session for many threads; requests to an emulator ignore the proxies of the environment."""
    # Anonymous credentials cannot be refreshed, which a 401 response would cause.
    authorized = (
        AuthorizedSession(credentials, refresh_status_codes=()) if anonymous else AuthorizedSession(credentials)
    )
    if emulator:
        authorized.trust_env = False
        # Without `trust_env` requests ignores the environment's proxies, but also its certificates.
        authorized.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or True
    for scheme in ("http://", "https://"):
        authorized.mount(scheme, _Adapter(pool_connections=4, pool_maxsize=CONNECTIONS))
    return authorized


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, **named)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}

    def send(self, request: requests.PreparedRequest, *arguments: Any, **named: Any) -> requests.Response:
        # A file is sent in small blocks, and the time-out applies to each block.
        if isinstance(request.body, bytes) and len(request.body) > _PIECE:
            request.body = io.BytesIO(request.body)  # type: ignore[assignment]
        return super().send(request, *arguments, **named)


class _Connection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        return _connect(self, super()._new_conn)


class _SecureConnection(HTTPSConnection):
    def _new_conn(self) -> socket.socket:
        return _connect(self, super()._new_conn)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def _connect(connection: HTTPConnection, connect: Any) -> socket.socket:
    """Connect within the connection's time-out, divided among all addresses of the host."""
    timeout = connection.timeout
    if not isinstance(timeout, int | float):
        return connect()  # type: ignore[no-any-return]
    connection.timeout = timeout / _count_addresses(connection)
    try:
        connected_socket: socket.socket = connect()
    finally:
        connection.timeout = timeout
    connected_socket.settimeout(timeout)
    return connected_socket


def _count_addresses(connection: HTTPConnection) -> int:
    answer: SimpleQueue[int | socket.gaierror] = SimpleQueue()
    resolve = functools.partial(_resolve, connection.host, connection.port, answer)
    # getaddrinfo cannot be interrupted, so that its thread may outlive this call.
    threading.Thread(target=resolve, daemon=True, name="resolver").start()
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
