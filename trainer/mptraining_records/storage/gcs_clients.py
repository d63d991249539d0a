"""Google Cloud Storage clients: credentials, endpoint, time-outs and retries.

The environment selects the endpoint and the credentials, in this order:
    STORAGE_EMULATOR_HOST          an emulator at this address, no real credentials, plain http allowed
    MPTRAINING_GCS_ANONYMOUS=1     public buckets, read only
    otherwise                      application default credentials (google-auth)
MPTRAINING_STORAGE_RETRY_SECONDS (default 16) limits the retries of a request.

An `Endpoint` owns the control-plane client (google-cloud-storage) and the data-plane clients (obstore).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from mptraining_api.problems import InvalidData
from mptraining_records.storage import sign_in

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.cloud.storage import Client
    from obstore.store import ClientConfig, GCSConfig, GCSStore

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
        retry_seconds=float(os.environ.get("MPTRAINING_STORAGE_RETRY_SECONDS", "16")),
    )


class Endpoint:
    """The storage service that `settings` select, and its clients, which threads may share.

    `has_responded` is True once the service sent any response, even an error. `on_retry`, if set, is called with one
    line before each retry of a request, from any thread; it must neither block nor raise.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.has_responded = False
        self.on_retry: Callable[[str], None] | None = None
        self._stores: dict[tuple[str, bool], GCSStore] = {}

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

        from mptraining_records.storage import http_session

        # The client would otherwise look up each bucket for OpenTelemetry traces, in a thread that retries for two
        # minutes if there is no response.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        emulator = self.settings.emulator
        anonymous = bool(emulator) or self.settings.anonymous
        credentials = AnonymousCredentials() if anonymous else self.credentials
        session = http_session.session(credentials, anonymous=anonymous, emulator=bool(emulator))
        session.hooks["response"].append(self._record_response)
        options = {"api_endpoint": base_url(emulator)} if emulator else None
        return Client(project=None, credentials=credentials, _http=session, client_options=options)

    def store(self, bucket: str, *, retries: bool = True) -> GCSStore:
        """Return the data-plane client of one bucket. Raises InvalidData if there are no credentials.

        Without `retries`, obstore sends each request once.
        """
        if (bucket, retries) not in self._stores:
            self._stores[bucket, retries] = self._new_store(bucket, self.settings.retry_seconds if retries else 0.0)
        return self._stores[bucket, retries]

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

    def _record_response(self, response: Any, *_: object, **__: object) -> Any:
        self.has_responded = True
        return response

    def _new_store(self, bucket: str, retry_seconds: float) -> GCSStore:
        from obstore.store import GCSStore

        config: GCSConfig = {}
        provider: Callable[[], Any] | None = None
        client: ClientConfig = {
            "allow_http": bool(self.settings.emulator),
            "connect_timeout": f"{READING[0]:g}s",
            "read_timeout": f"{READING[1]:g}s",
            "timeout": "300s",
        }
        if self.settings.emulator:
            url = base_url(self.settings.emulator)
            config["base_url"] = url
            provider = _emulator_credentials
            # Only an explicit proxy makes the client ignore those of the environment; the exclusion then disables it.
            client |= {"proxy_url": url, "proxy_excludes": urlsplit(url).hostname or ""}
        elif self.settings.anonymous:
            config["skip_signature"] = True
        else:
            provider = self._token_provider(bucket)
        return GCSStore(
            bucket,
            config=config,
            client_options=client,
            retry_config={
                "max_retries": 8,
                # A retry time-out of 0 seconds disables the retries.
                "retry_timeout": timedelta(seconds=retry_seconds),
                "backoff": {"max_backoff": timedelta(seconds=3)},
            },
            credential_provider=provider,
        )

    def _token_provider(self, bucket: str) -> Callable[[], Any]:
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
        from google.auth.transport.requests import Request

        try:
            credentials: Any = self.credentials
        except DefaultCredentialsError as error:
            found, next_step = sign_in.no_credentials(error)
            raise InvalidData(f"gs://{bucket}", found, next_step=next_step) from error
        request = Request()

        def token() -> dict[str, Any]:
            try:
                credentials.refresh(request)
            except GoogleAuthError as error:
                refusal = sign_in.refusal(error)
                if refusal is not None:
                    raise sign_in.Refused(refusal) from None
                raise ConnectionError("the credential provider does not answer") from None
            expiry = credentials.expiry
            if expiry is not None and expiry.tzinfo is None:
                expiry = expiry.replace(tzinfo=UTC)
            return {"token": credentials.token, "expires_at": expiry}

        return token


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


def _emulator_credentials() -> dict[str, Any]:
    return {"token": "emulator", "expires_at": None}
