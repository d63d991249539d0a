"""Google Cloud Storage clients: credentials, endpoint, time-outs and retries.

The environment selects the endpoint and the credentials, in this order:
    STORAGE_EMULATOR_HOST          an emulator at this address, no real credentials, plain http allowed
    MPTRAINING_GCS_ANONYMOUS=1     public buckets, read only
    otherwise                      application default credentials (google-auth)
GOOGLE_CLOUD_QUOTA_PROJECT names the project that pays for the requests, which google-auth sends with each of them.
MPTRAINING_STORAGE_RETRY_SECONDS (default 120, as in google-cloud-storage) limits the retries of a request.

An `Endpoint` owns the client of the control plane (google-cloud-storage) and the connections of the data plane.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from mptraining_storage.http_connections import Connections
from mptraining_storage.pace import Pace

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.cloud.storage import Client

_SERVICE = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
# Connect and read time-outs in seconds. The bucket stores an upload after its last byte, before it responds.
READING = (4.0, 9.0)
WRITING = (8.0, 60.0)


class Settings(NamedTuple):
    emulator: str
    anonymous: bool
    retry_seconds: float


def settings() -> Settings:
    return Settings(
        emulator=os.environ.get("STORAGE_EMULATOR_HOST", ""),
        anonymous=os.environ.get("MPTRAINING_GCS_ANONYMOUS") == "1",
        retry_seconds=float(os.environ.get("MPTRAINING_STORAGE_RETRY_SECONDS", "120")),
    )


class Endpoint:
    """The storage service that `settings` select, and its clients, which threads may share.

    `has_responded` is True once the service sent any response, even an error; `has_accepted` once it sent one that is
    no error. `on_retry`, if set, is called with one line before each retry of a request, from any thread; it must
    neither block nor raise.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.has_responded = False
        self.has_accepted = False
        self.on_retry: Callable[[str], None] | None = None
        self.pace = Pace()
        emulator = settings.emulator
        url = base_url(emulator) if emulator else _SERVICE
        self.connections = Connections(url, use_proxies=not emulator, connect_timeout=READING[0])
        self._token_lock = threading.Lock()

    def report_retry(self, uri: str, cause: str) -> None:
        """Report that a request for `uri` is retried because of `cause`."""
        if self.on_retry is not None:
            self.on_retry(" ".join(f"{uri}: {cause}; trying again".split()))

    @functools.cached_property
    def credentials(self) -> Credentials:
        """The application default credentials. Raises google.auth's DefaultCredentialsError."""
        import google.auth

        return google.auth.default(scopes=[_SCOPE])[0]

    @functools.cached_property
    def client(self) -> Client:
        """The control-plane client. Raises google.auth's DefaultCredentialsError."""
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        from mptraining_storage import http_session

        # The client would otherwise look up each bucket for OpenTelemetry traces, in a thread that retries for two
        # minutes if there is no response.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        emulator = self.settings.emulator
        anonymous = bool(emulator) or self.settings.anonymous
        credentials = AnonymousCredentials() if anonymous else self.credentials
        session = http_session.session(credentials, anonymous=anonymous, emulator=bool(emulator))
        session.hooks["response"].append(lambda response, **_: self.record_response(response.status_code))
        options = {"api_endpoint": base_url(emulator)} if emulator else None
        return Client(project=None, credentials=credentials, _http=session, client_options=options)

    def authorization(self) -> dict[str, str]:
        """Return the headers with the token, which is requested again shortly before it expires.

        Raises google.auth's GoogleAuthError.
        """
        headers: dict[str, str] = {}
        if not (self.settings.emulator or self.settings.anonymous):
            with self._token_lock:
                self.credentials.before_request(self._token_request, "GET", _SERVICE, headers)
        return headers

    def renew_token(self, headers: dict[str, str]) -> None:
        """Request another token after a 401 for these headers, unless another thread has done it."""
        if self.settings.emulator or self.settings.anonymous:
            return
        with self._token_lock:
            if headers.get("authorization") == f"Bearer {self.credentials.token}":
                self.credentials.refresh(self._token_request)

    @property
    def may_renew_token(self) -> bool:
        """Whether a 401 means that a token, once accepted, has ended early, and not that there is no permission."""
        return self.has_accepted and not self.settings.anonymous

    def record_response(self, status: int) -> None:
        """Record the status of a response of the service."""
        self.has_responded = True
        self.has_accepted = self.has_accepted or status < 300

    def principal(self) -> str:
        """Return the account whose permissions apply; empty if the credentials do not name it."""
        if self.settings.emulator:
            return ""
        if self.settings.anonymous:
            return "allUsers (MPTRAINING_GCS_ANONYMOUS=1)"
        credentials = self.credentials
        known = getattr(credentials, "service_account_email", None) or getattr(credentials, "account", None) or ""
        # Credentials of the metadata server have no email before the first token, or without a Google service account.
        return str(known) if "@" in str(known) else ""

    @functools.cached_property
    def _token_request(self) -> Any:
        from google.auth.transport.requests import Request

        return Request()


def endpoint() -> Endpoint:
    """Return the endpoint that the environment selects; the same object while its variables do not change."""
    return endpoint_of(settings())


@functools.lru_cache(maxsize=8)
def endpoint_of(settings: Settings) -> Endpoint:
    """Return the endpoint of these settings."""
    return Endpoint(settings)


def base_url(address: str) -> str:
    """Return the URL of an emulator's address, which may lack the scheme."""
    return (address if "://" in address else f"http://{address}").rstrip("/")
