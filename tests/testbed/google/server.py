"""The Google services that a job uses, in one process: sign-in, STS, IAM credentials, a metadata server, and buckets
that refuse requests without a token of these. `identity` decides; a real object server behind it holds the objects.

    python -m tests.testbed.google.server REALM.json --https HOST:PORT --http HOST:PORT --dns HOST:PORT

The https port answers for the hosts under googleapis.com. The http port is the metadata server, and a proxy whose
tunnels end at the hosts too. The dns port resolves the hosts to --address. The metadata server identifies its callers
by address: from --accounts, a JSON object, or from the Kubernetes API when this runs in a pod that may read pods and
service accounts.
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import json
import os
import socket
import socketserver
import ssl
import sys
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.testbed.google import dns
from tests.testbed.google.identity import Answer, KubernetesAccount, Realm

# These headers belong to one connection, not to the request.
_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "authorization", "expect"}
_POD_FILES = Path("/var/run/secrets/kubernetes.io/serviceaccount")
METADATA = "169.254.169.254"
_NAMES = ("storage", "www", "oauth2", "sts", "iamcredentials", "cloudresourcemanager")
HOSTS = tuple(f"{name}.googleapis.com" for name in _NAMES)

WhoAsks = Callable[[str], KubernetesAccount | None]


@dataclass(frozen=True)
class Google:
    """The state of all ports: `objects` is host:port of the object server, which has the name `objects_host`."""

    realm: Realm
    objects: str
    objects_host: str
    who_asks: WhoAsks
    tls: ssl.SSLContext | None


class Port(http.server.ThreadingHTTPServer):
    """One listening port; TLS from the first byte when it is `direct`."""

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], google: Google, *, direct: bool) -> None:
        self.google = google
        self.direct = direct
        super().__init__(address, Handler)

    def handle_error(self, *_: object) -> None:
        """Clients may disconnect at any time; anything else is logged."""
        if not isinstance(sys.exception(), OSError):
            traceback.print_exc()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Port

    def setup(self) -> None:
        self.secure = self.server.direct
        if self.server.direct:
            assert self.server.google.tls is not None
            self.request = self.server.google.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def do_CONNECT(self) -> None:
        if self.server.google.tls is None or self.path.partition(":")[0] not in HOSTS:
            self.send_error(403)
            return
        self.send_response_only(200)
        self.end_headers()
        self.connection = self.server.google.tls.wrap_socket(self.connection, server_side=True)
        self.secure = True
        self.rfile = self.connection.makefile("rb", self.rbufsize)
        self.wfile = self.connection.makefile("wb", 0)
        # Python's own client requests a tunnel in HTTP/1.0, which would end the connection here.
        self.close_connection = False

    def _do(self) -> None:
        body = self._body()
        host = self.headers.get("Host", "").partition(":")[0]
        now = time.time()
        if not self.secure:
            self._answer(self._metadata(now))
        elif host in ("storage.googleapis.com", "www.googleapis.com"):
            refused = self.server.google.realm.refusal(self.command, self.path, self._bearer(), now)
            if refused:
                self._answer(refused)
            else:
                self._forward(body, host)
        else:
            self._answer(self._identity(host, body, now))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _do

    def log_message(self, pattern: str, *arguments: object) -> None:
        """Log refusals only: they help to debug a failed test."""
        if not str(arguments[1]).startswith("2"):
            super().log_message(pattern, *arguments)

    def _bearer(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer").strip()

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while length := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(length))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(pieces)

    def _identity(self, host: str, body: bytes, now: float) -> Answer:
        realm, path = self.server.google.realm, unquote(urlsplit(self.path).path)
        named, _, verb = path.removeprefix("/v1/projects/-/serviceAccounts/").partition(":")
        if (host, path) == ("oauth2.googleapis.com", "/token"):
            return realm.token(_form(body), now)
        if (host, path) == ("sts.googleapis.com", "/v1/token"):
            return realm.exchange(_form(body), now)
        if (host, verb) == ("iamcredentials.googleapis.com", "generateAccessToken"):
            return realm.impersonate(named, self._bearer(), json.loads(body), now)
        if host == "cloudresourcemanager.googleapis.com":
            # google-auth requests an external account's project, and works without it.
            return Answer(403, '{"error": {"code": 403, "status": "PERMISSION_DENIED"}}')
        return Answer(404, "{}")

    def _metadata(self, now: float) -> Answer:
        if self.headers.get("Metadata-Flavor") != "Google":
            return Answer(403, "Missing required header: Metadata-Flavor", "text/plain")
        asking = self.server.google.who_asks(str(self.client_address[0]))
        if asking is None:
            # The kubelet has not reported the pod's address yet; clients retry.
            return Answer(503, "Unknown pod", "text/plain")
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return self.server.google.realm.metadata(parts.path.lstrip("/"), query, asking, now)

    def _answer(self, answer: Answer) -> None:
        self._send(answer.status, {"Content-Type": answer.kind, "Metadata-Flavor": "Google"}, answer.body.encode())

    def _forward(self, body: bytes, host: str) -> None:
        google = self.server.google
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        headers["Host"] = google.objects_host
        upstream = http.client.HTTPConnection(google.objects, timeout=60)
        try:
            upstream.request(
                self.command, self.path, body=body or None, headers=headers | {"Host": google.objects_host}
            )
            answer = upstream.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._answer(Answer(503, "the object server does not answer", "text/plain"))
            return
        finally:
            upstream.close()
        # Links in responses would lead around this server; the rest of an object is passed on unchanged.
        there, here = f"http://{google.objects_host}", f"https://{host}"
        more = {name: value.replace(there, here) for name, value in answer.getheaders() if name.lower() not in _HOP}
        if answer.headers.get_content_type() == "application/json" and "alt=media" not in self.path:
            content = content.replace(there.encode(), here.encode())
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
        self._send(answer.status, more, content, length)

    def _send(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _form(body: bytes) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(body.decode()).items()}


def from_cluster(address: str) -> KubernetesAccount | None:
    """Return the service account of the pod with this address, by the Kubernetes API."""
    found = [
        pod
        for pod in _kubernetes(f"/api/v1/pods?fieldSelector=status.podIP={address}")["items"]
        # Addresses of pods that have ended are assigned again.
        if pod["status"].get("phase") in ("Pending", "Running") and not pod["spec"].get("hostNetwork")
    ]
    if not found:
        return None
    namespace, name = found[0]["metadata"]["namespace"], found[0]["spec"]["serviceAccountName"]
    account = _kubernetes(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
    return KubernetesAccount(namespace=namespace, name=name, annotations=account["metadata"].get("annotations") or {})


def _kubernetes(path: str) -> dict[str, Any]:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    token = (_POD_FILES / "token").read_text(encoding="utf-8")
    request = urllib.request.Request(f"https://{host}:{port}{path}", headers={"Authorization": f"Bearer {token}"})
    trusted = ssl.create_default_context(cafile=_POD_FILES / "ca.crt")
    with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
        content: dict[str, Any] = json.load(answer)
    return content


def _listed(path: Path) -> WhoAsks:
    """Return the account from a file that is read for each request."""

    def who_asks(address: str) -> KubernetesAccount | None:
        found = json.loads(path.read_text(encoding="utf-8")).get(address)
        return KubernetesAccount.model_validate(found) if found else None

    return who_asks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.google.server")
    parser.add_argument("realm", type=Path, help="a Realm as JSON")
    parser.add_argument("--https", help="host:port")
    parser.add_argument("--http", help="host:port")
    parser.add_argument("--dns", help="host:port")
    parser.add_argument("--address", default="127.0.0.1", help="the name of this server's own address, for --dns")
    parser.add_argument("--objects", default="127.0.0.1:4443", help="host:port of the object server")
    parser.add_argument("--objects-host", default="", help="the public host it was started with")
    parser.add_argument("--keys", type=Path, help="the folder with server.crt and server.key")
    parser.add_argument("--accounts", type=Path, help="whose pods ask, by address; else the Kubernetes API is asked")
    arguments = parser.parse_args()
    tls = None
    if arguments.keys:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(arguments.keys / "server.crt", arguments.keys / "server.key")
    google = Google(
        realm=Realm.model_validate_json(arguments.realm.read_bytes()),
        objects=arguments.objects,
        objects_host=arguments.objects_host or arguments.objects,
        who_asks=_listed(arguments.accounts) if arguments.accounts else from_cluster,
        tls=tls,
    )
    ports: list[socketserver.BaseServer] = []
    if arguments.https:
        ports.append(Port(_address(arguments.https), google, direct=True))
    if arguments.http:
        ports.append(Port(_address(arguments.http), google, direct=False))
    if arguments.dns:
        here = socket.gethostbyname(arguments.address)
        addresses = {**dict.fromkeys(HOSTS, here), "metadata.google.internal": METADATA}
        ports.append(dns.Port(_address(arguments.dns), addresses))
    threads = [threading.Thread(target=port.serve_forever, args=(0.05,)) for port in ports]
    for thread in threads:
        thread.start()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main()
