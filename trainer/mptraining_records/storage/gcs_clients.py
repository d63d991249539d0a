"""Google Cloud Storage clients: credentials, endpoint, time-outs and retries.

The environment selects the endpoint and the credentials, in this order:
    STORAGE_EMULATOR_HOST          an emulator at this address, no real credentials, plain http allowed
    MPTRAINING_GCS_ANONYMOUS=1     public buckets, read only
    otherwise                      application default credentials (google-auth)
MPTRAINING_STORAGE_RETRY_SECONDS (default 16) limits the retries of a request; with the time-outs below a request
to a bucket that does not answer fails within 30 s.

`client` returns the control-plane client (google-cloud-storage), `store` the data-plane client (obstore).
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
from mptraining_records.storage.retry import contact

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


@functools.lru_cache(maxsize=8)
def client(settings: Settings) -> Client:
    """Return the control-plane client, which threads may share. Raises google.auth's DefaultCredentialsError."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    from mptraining_records.storage import http_session

    # The client would otherwise look up each bucket for OpenTelemetry traces, in a thread that retries for two minutes
    # if there is no response.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    anonymous = bool(settings.emulator) or settings.anonymous
    credentials = AnonymousCredentials() if anonymous else default_credentials()
    session = http_session.session(credentials, anonymous=anonymous, emulator=bool(settings.emulator))
    session.hooks["response"].append(_record_response)
    options = {"api_endpoint": base_url(settings.emulator)} if settings.emulator else None
    return Client(project=None, credentials=credentials, _http=session, client_options=options)


@functools.lru_cache(maxsize=64)
def store(bucket: str, settings: Settings, *, writing: bool) -> GCSStore:
    """Return the data-plane client of one bucket. Raises InvalidData if there are no credentials."""
    from obstore.store import GCSStore

    config: GCSConfig = {}
    provider: Callable[[], Any] | None = None
    # An upload receives nothing while it sends, so that a read time-out would abort it; only its total time is limited.
    client: ClientConfig = {"allow_http": bool(settings.emulator), "connect_timeout": f"{READING[0]:g}s"}
    client |= {"timeout": "120s"} if writing else {"read_timeout": f"{READING[1]:g}s", "timeout": "300s"}
    if settings.emulator:
        config["base_url"] = base_url(settings.emulator)
        provider = _emulator_credentials
        # Only an explicit proxy makes the client ignore those of the environment; the exclusion then disables it.
        url = base_url(settings.emulator)
        client |= {"proxy_url": url, "proxy_excludes": urlsplit(url).hostname or ""}
    elif settings.anonymous:
        config["skip_signature"] = True
    else:
        provider = _token_provider(bucket)
    return GCSStore(
        bucket,
        config=config,
        client_options=client,
        retry_config={
            "max_retries": 8,
            "retry_timeout": timedelta(seconds=settings.retry_seconds),
            "backoff": {"max_backoff": timedelta(seconds=3)},
        },
        credential_provider=provider,
    )


def base_url(address: str) -> str:
    return (address if "://" in address else f"http://{address}").rstrip("/")


@functools.cache
def default_credentials() -> Credentials:
    """Load the application default credentials, once. Raises google.auth's DefaultCredentialsError."""
    import google.auth

    return google.auth.default(scopes=[_SCOPE])[0]


def principal(settings: Settings) -> str:
    """Return the account whose permissions apply; empty if the credentials do not name it."""
    if settings.emulator:
        return ""
    if settings.anonymous:
        return "allUsers (MPTRAINING_GCS_ANONYMOUS=1)"
    credentials = default_credentials()
    known = getattr(credentials, "service_account_email", None) or getattr(credentials, "account", None) or ""
    # Credentials of the metadata server have no email before the first token, or without a Google service account.
    return str(known) if "@" in str(known) else ""


def _record_response(response: Any, *_: object, **__: object) -> Any:
    contact.answered = True
    return response


def _emulator_credentials() -> dict[str, Any]:
    return {"token": "emulator", "expires_at": None}


def _token_provider(bucket: str) -> Callable[[], Any]:
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        credentials: Any = default_credentials()
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
