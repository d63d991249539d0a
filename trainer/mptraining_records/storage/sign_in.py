"""What it means that Google gave no token: whether it may heal, who has to mend what. Keys, external accounts, GKE.

google-auth says it in six ways: an error of OAuth's or of IAM's in JSON, an answer of the metadata server, a file that
is not there, an answer that did not come. obstore passes on nothing but the text of what its provider raised, which
is why a refusal can be written as one, `Refused`, and found again in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mptraining_records.storage.retry import is_temporary

if TYPE_CHECKING:
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
LOGIN = (
    "Run `gcloud auth application-default login`, give the pod a service account, "
    "or set MPTRAINING_GCS_ANONYMOUS=1 for a public bucket"
)
_LONGEST = 300
# As obstore passes on what the provider of credentials raised.
_MARK = "provider: Refused: "


class Refusal(NamedTuple):
    """What was refused, and what to do; parts of a Problem."""

    found: str
    next_step: str


class Refused(Exception):
    """A refusal as a text that outlives the way through another language."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(json.dumps(refusal))


def refused_in(text: str) -> Refusal | None:
    """The refusal that a text tells of, as a `Refused` was made into a part of it."""
    _, found, rest = text.partition(_MARK)
    if not found:
        return None
    told, _ = json.JSONDecoder().raw_decode(rest)
    return Refusal(*told)


def no_credentials(error: DefaultCredentialsError) -> Refusal:
    """There are none, or the file that the environment names is none."""
    if not os.environ.get(KEY_FILE):
        return Refusal("no Google credentials found", LOGIN)
    return Refusal(
        f"the file that {KEY_FILE} names is of no use ({_line(error.args[0])})",
        "Mount a service account's key or a credential configuration there",
    )


def refusal(error: GoogleAuthError) -> Refusal | None:
    """Why there is no token; None where it was not refused and may come when it is asked for again."""
    from google.auth.exceptions import RefreshError, TransportError

    if error.retryable:
        return None
    unanswered = next((each for each in (error, error.__cause__) if isinstance(each, TransportError)), None)
    if unanswered is not None:
        return _of_metadata(unanswered)
    answer = _answer(error)
    said = answer.get("error")
    if isinstance(said, Mapping):
        return _of_iam(said)
    if said:
        return _of_oauth(f"{said}: {answer.get('error_description', '')}".rstrip(": "), error)
    # Without an answer it is the file with a provider's token. Else something answered that is not Google.
    file = isinstance(error, RefreshError) and len(error.args) == 1
    return (
        Refusal(_line(error.args[0]), "Mount the token where the credential configuration names it") if file else None
    )


def _of_metadata(error: GoogleAuthError) -> Refusal | None:
    response = error.args[1] if len(error.args) > 1 else None
    status = int(getattr(response, "status", 0))
    if not status or is_temporary(status) or status >= 500:
        return None
    content = getattr(response, "data", b"")
    said = _line(content.decode(errors="replace") if isinstance(content, bytes) else content)
    return Refusal(
        f"the metadata server gives no token (HTTP {status}: {said})",
        "Check the pod's Kubernetes service account: its annotation iam.gke.io/gcp-service-account names a Google one, "
        "on which it needs roles/iam.workloadIdentityUser",
    )


def _of_iam(error: Mapping[str, Any]) -> Refusal | None:
    status = int(error.get("code", 0))
    if is_temporary(status) or status >= 500:
        return None
    return Refusal(
        f"Google let nobody act as the service account (HTTP {status}: {_line(error.get('message', ''))})",
        "Grant roles/iam.workloadIdentityUser on the service account of the credential configuration to the pool's "
        "principal",
    )


def _of_oauth(said: str, error: GoogleAuthError) -> Refusal | None:
    from google.auth.exceptions import OAuthError

    if said.startswith(("internal_failure", "server_error", "temporarily_unavailable")):
        return None
    if isinstance(error, OAuthError):
        return Refusal(
            f"Google did not accept the provider's token ({_line(said)})",
            "Compare its issuer and audience with those of the workload identity provider",
        )
    if "JWT" in said or "account not found" in said:
        return Refusal(
            f"Google did not accept the service account's key ({_line(said)})",
            f"Make a new key for the file that {KEY_FILE} names",
        )
    return Refusal(f"the Google credentials were refused ({_line(said)})", LOGIN)


def _answer(error: GoogleAuthError) -> Mapping[str, Any]:
    """The JSON that came; empty for anything else."""
    content = error.args[1] if len(error.args) > 1 else {}
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except ValueError:
            content = {}
    return content if isinstance(content, Mapping) else {}


def _line(text: object) -> str:
    return str(text).strip().partition("\n")[0].rstrip(" .")[:_LONGEST]
