"""Retry policy of storage requests, and the status and cause of their errors."""

from __future__ import annotations

import http
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.api_core.retry import Retry

_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})


def is_temporary(status: int) -> bool:
    """Return whether a request that failed with this HTTP status may succeed later."""
    return status in _TEMPORARY


def retry_policy(seconds: float, on_retry: Callable[[str], None]) -> Retry:
    """Return a policy that retries transient errors for `seconds` in all, with growing random waits of at most 3 s.

    `on_retry` is called with the cause before each retry.
    """
    from google.api_core.retry import Retry

    return Retry(
        predicate=_is_transient,
        initial=0.5,
        multiplier=2.0,
        maximum=3.0,
        timeout=seconds,
        on_error=lambda error: on_retry(cause_of(error)),
    )


def cause_of(error: BaseException) -> str:
    """Return the cause of a failed request in a few words."""
    import requests

    status = status_of(error)
    if status:
        phrase = http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else ""
        return f"the bucket answered HTTP {status} {phrase}".rstrip()
    if isinstance(error, requests.Timeout):
        return "the bucket cannot be reached (no answer in time)"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the bucket cannot be reached (the connection was cut)"
    return f"the bucket cannot be reached ({_os_message(error)})"


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error of google-cloud-storage; 0 if there was no response."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.cloud.storage.exceptions import InvalidResponse

    if isinstance(error, GoogleAPICallError):
        return int(error.code or 0)
    if isinstance(error, InvalidResponse):
        return int(error.response.status_code)
    return 0


def is_untrusted(error: BaseException) -> bool:
    """Return whether the server's certificate is not trusted, which a retry does not change.

    A connection cut during the TLS handshake is an SSLError as well, but may succeed later.
    """
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def _is_transient(error: Exception) -> bool:
    import requests
    from google.auth.exceptions import GoogleAuthError

    from mptraining_records.storage import sign_in

    if isinstance(error, requests.RequestException):
        lost = requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError
        return isinstance(error, lost) and not is_untrusted(error)
    if isinstance(error, GoogleAuthError):
        return sign_in.refusal(error) is None
    return isinstance(error, ConnectionError) or is_temporary(status_of(error))


def _os_message(error: BaseException) -> str:
    """Return the operating system's message, which urllib3 and requests wrap several times."""
    found: BaseException | None = error
    message = str(error)
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            message = found.strerror
        reason = getattr(found, "reason", None) or next((arg for arg in found.args if isinstance(arg, Exception)), None)
        found = found.__cause__ or (reason if isinstance(reason, BaseException) else None) or found.__context__
    return message.partition("\n")[0][:200]
