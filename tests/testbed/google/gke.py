"""The two Google responses that a client without gcloud needs: an access token, and the endpoint of a GKE cluster.

with GkeServer(token) as gke:
    gke.clusters["projects/p/locations/l/clusters/c"] = {"endpoint": …}
    gke.environment(folder)     # for a client: GOOGLE_APPLICATION_CREDENTIALS, CLOUDSDK_API_ENDPOINT_OVERRIDES_…
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from tests.testbed.google.server import service_account_key


class GkeServer:
    """A context manager. It issues one `token`; `asked` are the requested paths."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.clusters: dict[str, dict[str, Any]] = {}
        self.refusal: tuple[int, str] | None = None
        self.asked: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"gke": self}))
        self.address = f"http://127.0.0.1:{self._http.server_address[1]}"

    def environment(self, folder: Path) -> dict[str, str]:
        """Write a key file; return the variables by which Google's library finds it and the client this server."""
        account = "trainer@p.iam.gserviceaccount.com"
        path = folder / "google.json"
        path.write_text(json.dumps(service_account_key(account, project="p", token_url=f"{self.address}/token")[0]))
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(path),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER": f"{self.address}/",
        }

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, name="gke server", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    gke: GkeServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.gke.asked.append(self.path)
        self._answer(200, {"access_token": self.gke.token, "expires_in": 3600, "token_type": "Bearer"})

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.gke.asked.append(path)
        name = path.removeprefix("/v1/")
        if self.headers.get("Authorization") != f"Bearer {self.gke.token}":
            self._refuse(401, "Request had invalid authentication credentials.")
        elif self.gke.refusal:
            self._refuse(*self.gke.refusal)
        elif name not in self.gke.clusters:
            self._refuse(404, f"Not found: {name}.")
        else:
            self._answer(200, self.gke.clusters[name])

    def _refuse(self, code: int, message: str) -> None:
        self._answer(code, {"error": {"code": code, "message": message}})

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""
