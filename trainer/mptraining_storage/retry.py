"""Retries of storage requests, and the status and cause of their errors."""

from __future__ import annotations

import http
import itertools
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from mptraining_api.problems import StorageUnavailable
from mptraining_storage.content import HttpError, seconds_of

if TYPE_CHECKING:
    from google.api_core.retry import Retry

T = TypeVar("T")

_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})
_RATE_LIMIT = re.compile(r"\b(user)?rateLimitExceeded\b", re.IGNORECASE)
# Waits grow from 0.02 s to 3 s: the first is short, since most refusals are of a single request, whose records all
# others wait for. They have random jitter, so that workers that fail together do not retry together:
# https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
# The job's program may have seeded `random` identically on every worker, so that `secrets` draws the jitter.
_FIRST_WAIT, _GROWTH, _LONGEST_WAIT = 0.02, 4.0, 3.0


def is_temporary(status: int, text: str = "") -> bool:
    """Return whether a request that failed with this HTTP status and text may succeed later."""
    return status in _TEMPORARY or (status == 403 and bool(_RATE_LIMIT.search(text)))


class RetryLater(StorageUnavailable):
    """The service names the seconds after which a request may be sent again."""

    def __init__(self, where: str, cause: str, seconds: float) -> None:
        super().__init__(where, cause)
        self.seconds = seconds


# Set while no request of this process is retried.
_given_up = threading.Event()


@contextmanager
def without_retries() -> Iterator[None]:
    """In the block, no request of any thread is retried, and those that wait for a retry fail at once.

    The end of a run does not wait for threads that retry what no longer matters.
    """
    _given_up.set()
    try:
        yield
    finally:
        _given_up.clear()


def retried(request: Callable[[], T], *, seconds: float, on_retry: Callable[[StorageUnavailable], None]) -> T:
    """Return the result of a request that is retried for `seconds` after StorageUnavailable, with growing random waits.

    `on_retry` is called with the error before each retry.
    """
    began = time.monotonic()
    for attempt in itertools.count():
        try:
            return request()
        except StorageUnavailable as error:
            remaining = seconds - (time.monotonic() - began)
            if remaining <= 0 or _given_up.is_set():
                raise
            on_retry(error)
            wait = min(_LONGEST_WAIT, _FIRST_WAIT * _GROWTH ** min(attempt, 8)) * secrets.randbelow(1001) / 1000
            # All requests got the same Retry-After: without the random part they would be sent together again.
            _given_up.wait(min(wait + error.seconds if isinstance(error, RetryLater) else wait, remaining))
    raise AssertionError


def retry_policy(seconds: float, on_retry: Callable[[str], None], *, may_renew_token: bool) -> Retry:
    """Return a policy of google-cloud-storage that retries transient errors for `seconds` in all.

    The random waits grow to 3 s at most, or are as long as the service asks for. `on_retry` is called with the cause
    before each retry. With `may_renew_token` a 401 is transient.
    """
    from google.api_core.retry import Retry

    began = time.monotonic()

    def failed(error: Exception) -> None:
        on_retry(cause_of(error))
        remaining = seconds - (time.monotonic() - began)
        _given_up.wait(max(0.0, min(retry_after_of(error), remaining)))

    def may_retry(error: Exception) -> bool:
        return not _given_up.is_set() and (_is_transient(error) or (may_renew_token and status_of(error) == 401))

    return Retry(predicate=may_retry, initial=0.5, multiplier=2.0, maximum=3.0, timeout=seconds, on_error=failed)


def cause_of(error: BaseException) -> str:
    """Return the cause of a failed request in a few words."""
    import requests

    status = status_of(error)
    if status:
        return describe(status)
    if isinstance(error, requests.Timeout):
        return "the bucket cannot be reached (no answer in time)"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the bucket cannot be reached (the connection was cut)"
    return f"the bucket cannot be reached ({_os_message(error)})"


def describe(status: int) -> str:
    """Return the sentence about a response with an error's status."""
    phrase = http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else ""
    return f"the bucket answered HTTP {status} {phrase}".rstrip()


def status_of(error: BaseException) -> int:
    """Return the HTTP status of a failed request; 0 if there was no response."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.cloud.storage.exceptions import InvalidResponse

    if isinstance(error, HttpError):
        return error.status
    if isinstance(error, GoogleAPICallError):
        return int(error.code or 0)
    if isinstance(error, InvalidResponse):
        return int(error.response.status_code)
    return 0


def text_of(error: BaseException) -> str:
    """Return the message of a failed request with what the service wrote."""
    return f"{error} {getattr(getattr(error, 'response', None), 'text', '')}"


def retry_after_of(error: BaseException) -> float:
    """Return the seconds that the service asks to wait before a retry; 0 if it does not say."""
    if isinstance(error, HttpError):
        return error.retry_after
    response = getattr(error, "response", None)
    return 0.0 if response is None else seconds_of(response.headers.get("Retry-After"))


def is_untrusted(error: BaseException) -> bool:
    """Return whether the server's certificate is not trusted, which a retry does not change.

    A connection cut during the TLS handshake is an SSLError as well, but may succeed later.
    """
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def _is_transient(error: Exception) -> bool:
    import requests
    from google.auth.exceptions import GoogleAuthError

    from mptraining_storage import sign_in

    if isinstance(error, requests.RequestException):
        lost = requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError
        return isinstance(error, lost) and not is_untrusted(error)
    if isinstance(error, GoogleAuthError):
        return sign_in.refusal(error) is None
    return isinstance(error, ConnectionError) or is_temporary(status_of(error), text_of(error))


def _os_message(error: BaseException) -> str:
    """Return the operating system's message, which urllib3 and requests wrap several times."""
    cause: BaseException | None = error
    message = str(error)
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            message = cause.strerror
        reason = getattr(cause, "reason", None) or next((arg for arg in cause.args if isinstance(arg, Exception)), None)
        cause = cause.__cause__ or (reason if isinstance(reason, BaseException) else None) or cause.__context__
    return message.partition("\n")[0][:200]
