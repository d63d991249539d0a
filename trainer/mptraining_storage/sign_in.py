"""Causes and remedies of failed Google authentication: keys, external accounts, GKE Workload Identity.

google-auth reports them in several forms: an OAuth or IAM error in JSON, a response of the metadata server, a missing
file, a missing response.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mptraining_storage.retry import is_temporary

if TYPE_CHECKING:
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
LOGIN = (
    "Run `gcloud auth application-default login`, give the pod a service account, "
    "or set MPTRAINING_GCS_ANONYMOUS=1 for a public bucket"
)
_MAX_MESSAGE = 300


class Refusal(NamedTuple):
    """Cause and next step of an authentication failure that a retry does not change; parts of a Problem."""

    cause: str
    next_step: str


def no_credentials(error: DefaultCredentialsError) -> Refusal:
    """Return the refusal for missing credentials, or for an invalid file named by the environment."""
    if not os.environ.get(KEY_FILE):
        return Refusal("no Google credentials found", LOGIN)
    return Refusal(
        f"the file that {KEY_FILE} names is of no use ({_first_line(error.args[0])})",
        "Mount a service account's key or a credential configuration there",
    )


def refusal(error: GoogleAuthError) -> Refusal | None:
    """Return the refusal of a token; None if the token was not refused and a retry may succeed."""
    from google.auth.exceptions import RefreshError, TransportError

    if error.retryable:
        return None
    unanswered = next((cause for cause in (error, error.__cause__) if isinstance(cause, TransportError)), None)
    if unanswered is not None:
        return _metadata_refusal(unanswered)
    answer = _json_response(error)
    reported = answer.get("error")
    if isinstance(reported, Mapping):
        return _iam_refusal(reported)
    if reported:
        return _oauth_refusal(f"{reported}: {answer.get('error_description', '')}".rstrip(": "), error)
    # A RefreshError without a response comes from reading the provider's token file; other responses are not Google's.
    if isinstance(error, RefreshError) and len(error.args) == 1:
        return Refusal(_first_line(error.args[0]), "Mount the token where the credential configuration names it")
    return None


def _metadata_refusal(error: GoogleAuthError) -> Refusal | None:
    response = error.args[1] if len(error.args) > 1 else None
    status = int(getattr(response, "status", 0))
    if not status or is_temporary(status) or status >= 500:
        return None
    content = getattr(response, "data", b"")
    reported = _first_line(content.decode(errors="replace") if isinstance(content, bytes) else content)
    return Refusal(
        f"the metadata server gives no token (HTTP {status}: {reported})",
        "Check the pod's Kubernetes service account: its annotation iam.gke.io/gcp-service-account names a Google one, "
        "on which it needs roles/iam.workloadIdentityUser",
    )


def _iam_refusal(error: Mapping[str, Any]) -> Refusal | None:
    status = int(error.get("code", 0))
    if is_temporary(status) or status >= 500:
        return None
    return Refusal(
        f"Google denied impersonation of the service account (HTTP {status}: {_first_line(error.get('message', ''))})",
        "Grant roles/iam.workloadIdentityUser on the service account of the credential configuration to the pool's "
        "principal",
    )


def _oauth_refusal(reported: str, error: GoogleAuthError) -> Refusal | None:
    from google.auth.exceptions import OAuthError

    if reported.startswith(("internal_failure", "server_error", "temporarily_unavailable")):
        return None
    if isinstance(error, OAuthError):
        return Refusal(
            f"Google did not accept the provider's token ({_first_line(reported)})",
            "Compare its issuer and audience with those of the workload identity provider",
        )
    if "JWT" in reported or "account not found" in reported:
        return Refusal(
            f"Google did not accept the service account's key ({_first_line(reported)})",
            f"Make a new key for the file that {KEY_FILE} names",
        )
    return Refusal(f"the Google credentials were refused ({_first_line(reported)})", LOGIN)


def _json_response(error: GoogleAuthError) -> Mapping[str, Any]:
    """Return the JSON object of the response; empty for anything else."""
    content = error.args[1] if len(error.args) > 1 else {}
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError:
            content = {}
    return content if isinstance(content, Mapping) else {}


def _first_line(text: object) -> str:
    return str(text).strip().partition("\n")[0].rstrip(" .")[:_MAX_MESSAGE]
