"""The Google services that a job uses, behind one port: sign-in, STS, IAM credentials, a metadata server, and buckets
that refuse requests without a token of these. `identity` decides; a real object server behind it holds the objects.

The port is the metadata server, and a proxy whose tunnels end at the hosts under googleapis.com. The metadata server
identifies its callers by address.
"""

from __future__ import annotations

import http.client
import http.server
import json
import ssl
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from tests.testbed.google.identity import Answer, KubernetesAccount, Realm

# These headers belong to one connection, not to the request.
_HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length", "authorization", "expect"}
_NAMES = ("storage", "www", "oauth2", "sts", "iamcredentials", "cloudresourcemanager")
HOSTS = tuple(f"{name}.googleapis.com" for name in _NAMES)

WhoAsks = Callable[[str], KubernetesAccount | None]


@dataclass(frozen=True)
class State:
    """The state of the port: `objects` is host:port of the object server."""

    realm: Realm
    objects: str
    who_asks: WhoAsks
    tls: ssl.SSLContext


class Port(http.server.ThreadingHTTPServer):
    """The listening port."""

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], state: State) -> None:
        self.state = state
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
        self.secure = False
        super().setup()

    def finish(self) -> None:
        super().finish()
        # The tunnel's, which the server does not know.
        self.connection.close()

    def do_CONNECT(self) -> None:
        if self.path.partition(":")[0] not in HOSTS:
            self.send_error(403)
            return
        self.send_response_only(200)
        self.end_headers()
        self.connection = self.server.state.tls.wrap_socket(self.connection, server_side=True)
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
            refused = self.server.state.realm.refusal(self.command, self.path, self._bearer(), now)
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
        realm, path = self.server.state.realm, unquote(urlsplit(self.path).path)
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
        asking = self.server.state.who_asks(str(self.client_address[0]))
        if asking is None:
            # The kubelet has not reported the pod's address yet; clients retry.
            return Answer(503, "Unknown pod", "text/plain")
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return self.server.state.realm.metadata(parts.path.lstrip("/"), query, asking, now)

    def _answer(self, answer: Answer) -> None:
        self._send(answer.status, {"Content-Type": answer.kind, "Metadata-Flavor": "Google"}, answer.body.encode())

    def _forward(self, body: bytes, host: str) -> None:
        state = self.server.state
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        headers["Host"] = state.objects
        upstream = http.client.HTTPConnection(state.objects, timeout=60)
        try:
            upstream.request(self.command, self.path, body=body or None, headers=headers | {"Host": state.objects})
            answer = upstream.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._answer(Answer(503, "the object server does not answer", "text/plain"))
            return
        finally:
            upstream.close()
        # Links in responses would lead around this server; the rest of an object is passed on unchanged.
        there, here = f"http://{state.objects}", f"https://{host}"
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
