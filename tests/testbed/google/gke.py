"""The two Google responses that a client without gcloud needs: an access token, and the endpoint of a GKE cluster.

    with GkeServer() as gke:
        gke.clusters["projects/p/locations/l/clusters/c"] = {"endpoint": …}
        gke.environment(folder)     # for a client: GOOGLE_APPLICATION_CREDENTIALS, CLOUDSDK_API_ENDPOINT_OVERRIDES_…

The credentials are a service account's key file as Google makes them, whose token_uri is this server.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


class GkeServer:
    """A context manager. `tokens` are issued in turn, the last one repeatedly; `asked` are the requested paths."""

    def __init__(self, *tokens: str) -> None:
        self.clusters: dict[str, dict[str, Any]] = {}
        self.refusal: tuple[int, str] | None = None
        self.asked: list[str] = []
        self._tokens = list(tokens)
        self._given: set[str] = set()
        owner = self

        class Handler(_Handler):
            server_of = owner

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._http.server_address[1]}"

    def environment(self, folder: Path) -> dict[str, str]:
        """Write a key file; return the variables by which Google's library finds it and the client this server."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        document = {
            "type": "service_account",
            "project_id": "p",
            "private_key_id": "1",
            "private_key": key.decode(),
            "client_email": "trainer@p.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"{self.address}/token",
        }
        path = folder / "google.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(path),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER": f"{self.address}/",
        }

    def token(self) -> str:
        found = self._tokens.pop(0) if len(self._tokens) > 1 else self._tokens[0]
        self._given.add(found)
        return found

    def accepts(self, token: str) -> bool:
        return token in self._given

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, name="gke server", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_of: GkeServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server_of.asked.append(self.path)
        self._answer(200, {"access_token": self.server_of.token(), "expires_in": 3600, "token_type": "Bearer"})

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.server_of.asked.append(path)
        found = self.server_of.clusters.get(path.removeprefix("/v1/"))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not self.server_of.accepts(token):
            self._answer(401, {"error": {"code": 401, "message": "Request had invalid authentication credentials."}})
        elif self.server_of.refusal:
            code, message = self.server_of.refusal
            self._answer(code, {"error": {"code": code, "message": message}})
        elif found is None:
            self._answer(404, {"error": {"code": 404, "message": f"Not found: {path.removeprefix('/v1/')}."}})
        else:
            self._answer(200, found)

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""
