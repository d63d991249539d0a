"""The two Google responses that a client without gcloud needs: an access token, and the endpoint of a GKE cluster.

with GkeServer(token) as gke:
    gke.clusters["projects/p/locations/l/clusters/c"] = {"endpoint": …}
    gke.environment(folder)     # for a client: GOOGLE_APPLICATION_CREDENTIALS, CLOUDSDK_API_ENDPOINT_OVERRIDES_…
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.testbed.google.server import service_account_key
from tests.testbed.http_stub import Handler, HttpStub


class GkeServer(HttpStub):
    """Issues one `token`; `asked` are the requested paths. A context manager."""

    def __init__(self, token: str) -> None:
        super().__init__(self._respond)
        self.token = token
        self.clusters: dict[str, dict[str, Any]] = {}
        self.refusal: tuple[int, str] | None = None

    @property
    def asked(self) -> list[str]:
        return [unquote(request.path) for request in self.requests]

    def environment(self, folder: Path) -> dict[str, str]:
        """Write a key file; return the variables by which Google's library finds it and the client this server."""
        account = "trainer@p.iam.gserviceaccount.com"
        path = folder / "google.json"
        path.write_text(json.dumps(service_account_key(account, project="p", token_url=f"{self.address}/token")[0]))
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(path),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER": f"{self.address}/",
        }

    def _respond(self, number: int, handler: Handler) -> None:
        name = unquote(self.requests[number].path).removeprefix("/v1/")
        if handler.command == "POST":
            _answer(handler, 200, {"access_token": self.token, "expires_in": 3600, "token_type": "Bearer"})
        elif handler.headers.get("Authorization") != f"Bearer {self.token}":
            _refuse(handler, 401, "Request had invalid authentication credentials.")
        elif self.refusal:
            _refuse(handler, *self.refusal)
        elif name not in self.clusters:
            _refuse(handler, 404, f"Not found: {name}.")
        else:
            _answer(handler, 200, self.clusters[name])


def _refuse(handler: Handler, code: int, message: str) -> None:
    _answer(handler, code, {"error": {"code": code, "message": message}})


def _answer(handler: Handler, code: int, document: dict[str, Any]) -> None:
    handler.answer(code, json.dumps(document).encode(), {"Content-Type": "application/json"})
