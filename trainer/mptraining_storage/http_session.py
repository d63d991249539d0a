"""HTTP session of the control plane: a connection pool for many threads, and uploads in blocks."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any

from google.auth.transport.requests import AuthorizedSession
from requests.adapters import HTTPAdapter

if TYPE_CHECKING:
    import requests
    from google.auth.credentials import Credentials

CONNECTIONS = 32
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
    def send(self, request: requests.PreparedRequest, *arguments: Any, **named: Any) -> requests.Response:
        # requests sends a body of bytes in one piece, within one time-out, however large it is. It sends a file in
        # small blocks, and the time-out applies to each block.
        if isinstance(request.body, bytes) and len(request.body) > _PIECE:
            request.body = io.BytesIO(request.body)  # type: ignore[assignment]
        return super().send(request, *arguments, **named)
