"""A refusal ends a job for good; an error that may be temporary is retried."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, OAuthError, RefreshError, TransportError

from mptraining_storage import sign_in


def metadata(status: int | None) -> RefreshError:
    """Return google-auth's error for a response of the metadata server, or for none."""
    error = RefreshError("Failed to retrieve …")
    response = [] if status is None else [SimpleNamespace(status=status, data=b"no")]
    error.__cause__ = TransportError("Failed to retrieve …: [Errno 111] Connection refused", *response)
    return error


def iam(status: int) -> RefreshError:
    return RefreshError("Unable to acquire impersonated credentials", json.dumps({"error": {"code": status}}))


def exchange(error: str) -> OAuthError:
    return OAuthError(f"Error code {error}: it says why", json.dumps({"error": error, "error_description": "why"}))


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(TransportError("Connection refused"), id="no answer"),
        pytest.param(metadata(None), id="no metadata server"),
        pytest.param(metadata(500), id="metadata server 500"),
        pytest.param(metadata(429), id="metadata server 429"),
        pytest.param(iam(503), id="IAM 503"),
        pytest.param(iam(429), id="IAM 429"),
        pytest.param(exchange("internal_failure"), id="STS fails"),
        pytest.param(OAuthError("<html>", "<html>Bad Gateway</html>"), id="something before STS"),
        pytest.param(RefreshError("Unable to acquire …", "<html>"), id="something before IAM"),
        pytest.param(RefreshError("internal_failure: None", {"error": "internal_failure"}, retryable=True), id="OAuth"),
    ],
)
def test_a_temporary_error_is_no_refusal(error: GoogleAuthError) -> None:
    assert sign_in.refusal(error) is None


@pytest.mark.parametrize(
    ("error", "begins"),
    [
        (metadata(403), "the metadata server gives no token (HTTP 403: no)"),
        (metadata(404), "the metadata server gives no token (HTTP 404: no)"),
        (iam(403), "Google denied impersonation of the service account (HTTP 403: )"),
        (exchange("invalid_grant"), "Google did not accept the provider's token (invalid_grant: why)"),
        (
            RefreshError("invalid_grant: Bad", {"error": "invalid_grant", "error_description": "Bad Request"}),
            "the Google credentials were refused (invalid_grant: Bad Request)",
        ),
        (
            RefreshError("invalid_grant: …", {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}),
            "Google did not accept the service account's key (invalid_grant: Invalid JWT Signature)",
        ),
        (RefreshError("File '/t' was not found."), "File '/t' was not found"),
    ],
)
def test_a_refusal_names_the_account_and_the_request(error: GoogleAuthError, begins: str) -> None:
    refusal = sign_in.refusal(error)
    assert refusal is not None
    assert refusal.cause == begins
    assert refusal.next_step


def test_a_file_that_is_named_is_not_called_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sign_in.KEY_FILE, raising=False)
    error = DefaultCredentialsError("Your default credentials were not found.")
    assert sign_in.no_credentials(error).cause == "no Google credentials found"
    monkeypatch.setenv(sign_in.KEY_FILE, "/secrets/key.json")
    named = sign_in.no_credentials(DefaultCredentialsError("File /secrets/key.json was not found."))
    assert named.cause.endswith("is of no use (File /secrets/key.json was not found)")
