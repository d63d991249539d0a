"""A proxy in front of an object server that simulates a network: latency, a rate for each stream, and faults, on
demand.

    with ObjectServer() as server, StorageProxy(server.address, Shape(latency=0.05, stream_rate=20e6)) as proxy:
        environment = proxy.environment()                  # for obstore, google-cloud-storage, gcsfs: over TLS
        environment = proxy.tensorflow_environment()       # for gs:// inside TensorFlow
        proxy.change(rules=[Rule(fault=Refuse(status=503), share=0.05), Rule(fault=Cut(), share=0.02)])
        proxy.counters().media_requests

It runs in a process of its own, `python -m tests.testbed.gcs.proxy`, so that it shares no interpreter with the reader.
"""

from __future__ import annotations

import argparse
import http.server
import json
import ssl
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.testbed.credentials import ServerKeys, create_server_keys
from tests.testbed.gcs.faults import Asked, Counters, Draw, Shape
from tests.testbed.gcs.proxy_server import Port
from tests.testbed.gcs.proxy_state import Books
from tests.testbed.processes import Server, free_ports

# The host of TensorFlow's reader, which is fixed in its code.
GOOGLE = ("storage.googleapis.com", "www.googleapis.com")
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class StorageProxy:
    """A context manager. `http` and `https` are its addresses, `authority` the certificate to trust."""

    def __init__(
        self, upstream: str, shape: Shape | None = None, *, keep_objects: bool = False, folder: Path | None = None
    ) -> None:
        """`upstream` is the object server's http address.

        With `keep_objects` the proxy keeps all objects that are read in its memory and the object server has nothing
        to do: valid only if all writes pass through the proxy. Keys and a log go to `folder`.
        """
        self._upstream = upstream.removeprefix("http://")
        self._first = shape or Shape()
        self._shape = self._first
        self._keep_objects = keep_objects
        self._folder = folder
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        with self._ends as starting:
            folder = self._folder or Path(starting.enter_context(tempfile.TemporaryDirectory(prefix="storage-proxy-")))
            self._keys = create_server_keys(folder, *GOOGLE)
            self._ports = free_ports(3)
            ports = map(str, self._ports)
            command = [sys.executable, "-m", "tests.testbed.gcs.proxy", self._upstream, str(folder), *ports]
            if self._keep_objects:
                command.append("--keep-objects")
            root = str(Path(__file__).resolve().parents[3])
            server = Server(command, log=folder / "storage-proxy.log", environment={"PYTHONPATH": root})
            starting.enter_context(server)
            server.wait_until(lambda: self._ask("GET", "counters") is not None, seconds=120)
            self.set(self._first)
            self._ends = starting.pop_all()
        self.pid = server.pid
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def https(self) -> str:
        return f"https://127.0.0.1:{self._ports[1]}"

    @property
    def authority(self) -> Path:
        return self._keys.authority

    @property
    def shape(self) -> Shape:
        """The current shape."""
        return self._shape

    def set(self, shape: Shape) -> None:
        """Replace the shape from the next request on; rules count from zero."""
        self._ask("PUT", "shape", shape.model_dump_json().encode())
        self._shape = shape

    def change(self, **fields: Any) -> None:
        """Replace some fields of the current shape."""
        self.set(Shape(**{**dict(self._shape), **fields}))

    def counters(self) -> Counters:
        """The counters since the last `reset`."""
        return Counters.model_validate_json(self._ask("GET", "counters"))

    def requests(self) -> list[Asked]:
        """Return each request since the last `reset`, in the order of the responses' first bytes; at most 100,000."""
        return [Asked.model_validate(each) for each in json.loads(self._ask("GET", "requests"))]

    def reset(self) -> None:
        """Set the counters to zero."""
        self._ask("PUT", "reset")

    def cut(self) -> None:
        """End all connections that are open now."""
        self._ask("PUT", "cut")

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that reads by obstore, google-cloud-storage or gcsfs, over TLS."""
        trusted = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), str(self.authority))
        # For emulators some clients honour proxy variables and others do not.
        return {"STORAGE_EMULATOR_HOST": self.https, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **trusted}

    def tensorflow_environment(self) -> dict[str, str]:
        """Return the environment of a process that reads gs:// by TensorFlow's own file system."""
        return {
            "HTTPS_PROXY": self.http,
            "https_proxy": self.http,
            "CURL_CA_BUNDLE": str(self.authority),
            "NO_GCE_CHECK": "true",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "testbed",
        }

    def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        url = f"http://127.0.0.1:{self._ports[2]}/{path}"
        request = urllib.request.Request(url, data=body if method == "PUT" else None, method=method)
        with _direct.open(request, timeout=60) as answer:
            content: bytes = answer.read()
        return content


class _Ports:
    """The two ports for clients, which open and close with the shape."""

    def __init__(self, numbers: Iterable[int], books: Books, keys: ServerKeys) -> None:
        self._numbers = tuple(numbers)
        self._books = books
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(keys.certificate, keys.key)
        self._open: list[Port] = []

    def set(self, shape: Shape) -> None:
        self._books.draw = Draw(shape)
        if shape.refusing:
            for port in self._open:
                port.shutdown()
                port.server_close()
                port.cut()
            self._open = []
        elif not self._open:
            for number, direct in zip(self._numbers, (False, True), strict=True):
                port = Port(number, self._books, self._tls, direct=direct)
                self._open.append(port)
                threading.Thread(target=port.serve_forever, args=(0.02,), daemon=True).start()

    def cut(self) -> None:
        for port in self._open:
            port.cut()


def _control(books: Books, ports: _Ports) -> type[http.server.BaseHTTPRequestHandler]:
    class Control(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/counters":
                self._answer(books.counters().model_dump_json())
            else:
                with books.lock:
                    requests = list(books.requests)
                self._answer(json.dumps([each.model_dump() for each in requests]))

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/shape":
                ports.set(Shape.model_validate_json(body))
            elif self.path == "/cut":
                ports.cut()
            else:
                books.reset()
            self._answer("{}")

        def _answer(self, text: str) -> None:
            self.send_response_only(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    return Control


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.gcs.proxy")
    parser.add_argument("upstream", help="host:port of the object server")
    parser.add_argument("keys", type=Path, help="the folder with ca.crt, server.crt and server.key")
    parser.add_argument("http", type=int)
    parser.add_argument("https", type=int)
    parser.add_argument("control", type=int)
    parser.add_argument("--keep-objects", action="store_true")
    arguments = parser.parse_args()
    books = Books(arguments.upstream, arguments.keep_objects)
    folder = arguments.keys
    keys = ServerKeys(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    ports = _Ports((arguments.http, arguments.https), books, keys)
    http.server.ThreadingHTTPServer(("127.0.0.1", arguments.control), _control(books, ports)).serve_forever()


if __name__ == "__main__":
    main()
