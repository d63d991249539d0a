"""Whether the storage service answers: what is asked again and for how long, who hears of it, did it ever answer.

`contact` is the one of this process. Its owner sets `on_retry`, which hears one line each time something is asked
again, from any thread, and must neither wait nor raise; it decides how often to pass one on.
"""

from __future__ import annotations

import http
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.api_core.retry import Retry

_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})


class RetryListener:
    """`answered` is true once the service gave any answer, be it a refusal."""

    def __init__(self) -> None:
        self.answered = False
        self.on_retry: Callable[[str], None] | None = None

    def retrying(self, uri: str, cause: str) -> None:
        """Tells that `uri` is asked again because of `cause`."""
        if self.on_retry is not None:
            self.on_retry(" ".join(f"{uri}: {cause}; trying again".split()))


contact = RetryListener()


def is_temporary(status: int) -> bool:
    """Whether a request that was answered with this HTTP status may succeed later."""
    return status in _TEMPORARY


def retry_policy(uri: str, seconds: float) -> Retry:
    """Asks again after what may heal, with growing random waits of at most 3 s, for `seconds` in all."""
    from google.api_core.retry import Retry

    return Retry(
        predicate=_may_heal,
        initial=0.5,
        multiplier=2.0,
        maximum=3.0,
        timeout=seconds,
        on_error=lambda error: contact.retrying(uri, cause_of(error)),
    )


def cause_of(error: BaseException) -> str:
    """What went wrong with a request, in a few words."""
    import requests

    status = status_of(error)
    if status:
        phrase = http.HTTPStatus(status).phrase if status in set(http.HTTPStatus) else ""
        return f"the bucket answered HTTP {status} {phrase}".rstrip()
    if isinstance(error, requests.Timeout):
        return "the bucket cannot be reached (no answer in time)"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the bucket cannot be reached (the connection was cut)"
    return f"the bucket cannot be reached ({_innermost(error)})"


def status_of(error: BaseException) -> int:
    """The HTTP status behind an error of google-cloud-storage; 0 when there was no answer."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.cloud.storage.exceptions import InvalidResponse

    if isinstance(error, GoogleAPICallError):
        return int(error.code or 0)
    if isinstance(error, InvalidResponse):
        return int(error.response.status_code)
    return 0


def is_untrusted(error: BaseException) -> bool:
    """Whether the server's certificate is not trusted, which it will not be in a second either.

    A connection that is cut in its handshake is an SSLError as well, but may heal.
    """
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def _may_heal(error: Exception) -> bool:
    import requests
    from google.auth.exceptions import GoogleAuthError

    from mptraining_records.storage import sign_in

    if isinstance(error, requests.RequestException):
        lost = requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError
        return isinstance(error, lost) and not is_untrusted(error)
    if isinstance(error, GoogleAuthError):
        return sign_in.refusal(error) is None
    return isinstance(error, ConnectionError) or is_temporary(status_of(error))


def _innermost(error: BaseException) -> str:
    """The words of the operating system, which urllib3 and requests wrap several times."""
    found: BaseException | None = error
    said = str(error)
    while found is not None:
        if isinstance(found, OSError) and found.strerror:
            said = found.strerror
        reason = getattr(found, "reason", None) or next((arg for arg in found.args if isinstance(arg, Exception)), None)
        found = found.__cause__ or (reason if isinstance(reason, BaseException) else None) or found.__context__
    return said.partition("\n")[0][:200]
