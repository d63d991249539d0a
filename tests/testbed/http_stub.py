"""An HTTP server on this machine whose responses a test scripts; with a certificate it speaks TLS."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Mapping
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, Self


class Request(NamedTuple):
    path: str
    headers: Message
    body: bytes


class Handler(BaseHTTPRequestHandler):
    server: HttpStub
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        request = Request(self.path, self.headers, self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        with self.server.arrived:
            number = len(self.server.requests)
            self.server.requests.append(request)
            self.server.arrived.notify_all()
        self.server.respond(number, self)

    do_GET = do_HEAD = do_PUT = do_POST = _handle

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bool:
        """Send a response; return True."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        return True

    def log_message(self, *_: object) -> None: ...


class HttpStub(ThreadingHTTPServer):
    """Keeps the requests, and calls `respond` with the number and the handler of each. A context manager."""

    daemon_threads = True

    def __init__(
        self, respond: Callable[[int, Handler], object], certificate: Path | None = None, key: Path | None = None
    ) -> None:
        """`certificate` and `key` are PEM files for localhost and 127.0.0.1; one may have both."""
        super().__init__(("127.0.0.1", 0), Handler)
        self.respond = respond
        self.requests: list[Request] = []
        self.arrived = threading.Condition()
        self.address = f"http://127.0.0.1:{self.server_port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            self.socket = context.wrap_socket(self.socket, server_side=True)
            self.address = f"https://localhost:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""
