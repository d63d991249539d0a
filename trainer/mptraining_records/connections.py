"""The connections to buckets: whose credentials, how long to wait, which address.

The environment decides, in this order:
    STORAGE_EMULATOR_HOST          an emulator at this address, no real credentials, plain http allowed
    MPTRAINING_GCS_ANONYMOUS=1     public buckets, read only
    otherwise                      application default credentials (google-auth)
MPTRAINING_STORAGE_RETRY_SECONDS (default 16) bounds how long a request is repeated; with the time-outs below
a read from a bucket that does not answer fails within 30 s.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from mptraining_api.problems import InvalidData

if TYPE_CHECKING:
    from obstore.store import ClientConfig, GCSConfig, GCSStore

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
LOGIN = (
    "Run `gcloud auth application-default login`, give the pod a service account, "
    "or set MPTRAINING_GCS_ANONYMOUS=1 for a public bucket"
)


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


@functools.lru_cache(maxsize=64)
def store(bucket: str, settings: Settings, *, writing: bool) -> GCSStore:
    from obstore.store import GCSStore

    config: GCSConfig = {}
    credentials: Callable[[], Any] | None = None
    if settings.emulator:
        config["base_url"] = base_url(settings.emulator)
        credentials = _emulator_credentials
    elif settings.anonymous:
        config["skip_signature"] = True
    else:
        credentials = _default_credentials(bucket)
    # A read that is silent for 9 s is lost. An upload is silent while it sends, so it gets time to send.
    client: ClientConfig = {"allow_http": bool(settings.emulator), "connect_timeout": "4s"}
    client |= {"timeout": "120s"} if writing else {"read_timeout": "9s", "timeout": "300s"}
    return GCSStore(
        bucket,
        config=config,
        client_options=client,
        retry_config={
            "max_retries": 8,
            "retry_timeout": timedelta(seconds=settings.retry_seconds),
            "backoff": {"max_backoff": timedelta(seconds=3)},
        },
        credential_provider=credentials,
    )


def base_url(address: str) -> str:
    return (address if "://" in address else f"http://{address}").rstrip("/")


def _emulator_credentials() -> dict[str, Any]:
    return {"token": "emulator", "expires_at": None}


def _default_credentials(bucket: str) -> Callable[[], Any]:
    import google.auth
    import google.auth.exceptions
    from google.auth.transport.requests import Request

    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise InvalidData(f"gs://{bucket}", "no Google credentials found", next_step=LOGIN) from error
    request = Request()

    def token() -> dict[str, Any]:
        credentials.refresh(request)
        expiry = credentials.expiry
        if expiry is not None and expiry.tzinfo is None:
            expiry = expiry.replace(tzinfo=UTC)
        return {"token": credentials.token, "expires_at": expiry}

    return token
