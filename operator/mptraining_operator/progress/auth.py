"""The pod that sent a progress report, by TokenReview, and the answers of the endpoint.

A worker's token has one audience: the progress endpoint for one job (`names.audience`). Nothing in a token is believed
before the API server has accepted it for the audience of the job in the request's path.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mptraining_api import events
from mptraining_api.status import Progress
from mptraining_operator.jobs.resources import names
from mptraining_operator.progress.status import Report
from mptraining_operator.runtime.values import Key

# Bytes; the same limit as in Kubeflow Trainer v2.
LARGEST_BODY = 64 * 1024
# Token reviews at the same time, also if the API server is slow. They are all that an unauthenticated client can cause.
_REVIEWS_AT_ONCE = 4
_MOST_CACHED = 10_000
# Retry-After, because a new job or pod may not have reached this replica's cache yet.
_NOT_SEEN_YET_SECONDS = 5


@dataclass(frozen=True, slots=True)
class JobForProgress:
    """The job of a report. `workers`: index by pod uid, for the live pods of the current attempt."""

    uid: str
    attempt: int
    workers: Mapping[str, int]
    progress: Progress | None = None


class Refused(Exception):
    """A response other than 202. `error` has cause and next step in one line; `retry_after` is in seconds."""

    def __init__(self, status: int, error: str, retry_after: int | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.retry_after = retry_after


@dataclass(eq=False)
class TokenReviewer:
    """Reviews of tokens by the API server; accepted ones are cached. For one event loop.

    `review(token, audiences)` sends a TokenReview and returns its `status`. `clock` is in seconds since 1970. A review
    is cached for `seconds`, at most until the token expires.
    """

    review: Callable[[str, tuple[str, ...]], Mapping[str, Any]]
    clock: Callable[[], float]
    seconds: float

    def __post_init__(self) -> None:
        self._threads = ThreadPoolExecutor(_REVIEWS_AT_ONCE, thread_name_prefix="token review")
        # End and pod uid by SHA-256 of the token, so that a memory dump contains no tokens.
        self._results: dict[bytes, tuple[float, str]] = {}

    async def pod_uid(self, token: str, audience: str) -> str:
        """Return the uid of the pod that the token is bound to; "" if it is rejected or bound to none.

        Raises the exceptions of `review`.
        """
        digest = hashlib.sha256(f"{audience}\n{token}".encode("utf-8", "surrogateescape")).digest()
        until, uid = self._results.get(digest, (0.0, ""))
        if self.clock() < until:
            return uid
        loop = asyncio.get_running_loop()
        uid = read_review(await loop.run_in_executor(self._threads, self.review, token, (audience,)), audience)
        end = min(self.clock() + self.seconds, token_expiry(token) or 0.0) if uid else 0.0
        if end > self.clock():
            # The oldest comes first.
            self._results.pop(digest, None)
            if len(self._results) >= _MOST_CACHED:
                del self._results[next(iter(self._results))]
            self._results[digest] = end, uid
        return uid

    def stop(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def bearer_token(authorization: str | None) -> str:
    """Return the token of an Authorization header; "" if it has none."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def token_expiry(token: str) -> float | None:
    """Return the expiry of a JSON Web Token in seconds since 1970; None if the text is none, or does not expire.

    The signature is not verified: only a TokenReview tells whether the token is valid.
    """
    try:
        return float(json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))["exp"])
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError):
        # The last two: a number of hundreds of digits, and lists within lists, which anybody may send.
        return None


def read_review(status: Mapping[str, Any], audience: str) -> str:
    """Return the pod's uid in the `status` of a TokenReview; "" if the token is not accepted for this audience."""
    if status.get("authenticated") is not True:
        return ""
    # Without `audiences` in the status the authenticator does not check them, and the token may be for any audience.
    if audience not in (status.get("audiences") or ()):
        return ""
    user = status.get("user") or {}
    uids = (user.get("extra") or {}).get("authentication.kubernetes.io/pod-uid") or [""]
    return str(uids[0])


def report_path(job: Key) -> str:
    """Return the URL path of the progress reports of a job."""
    return f"/v1/namespaces/{job.namespace}/jobs/{job.name}/progress"


async def authenticate(
    reviewer: TokenReviewer, authorization: str | None, key: Key, job: JobForProgress | None
) -> JobForProgress:
    """Return the job if the Authorization header has a token of its live worker 0. Raises Refused."""
    token = bearer_token(authorization)
    if not token:
        raise Refused(401, "no token: send `Authorization: Bearer` with the pod's projected service account token")
    # The token is reviewed for an unknown job too, so that neither answer nor time reveals whether the job exists.
    uid = await reviewer.pod_uid(token, names.audience(key.namespace, job.uid if job else ""))
    if job is None or not uid:
        raise Refused(
            401,
            "the token is expired, forged, of a pod that is gone, or not for this job: "
            "read it from its file again, the kubelet renews it",
            _NOT_SEEN_YET_SECONDS,
        )
    if job.workers.get(uid) != 0:
        error = f"the pod is not the live worker 0 of attempt {job.attempt}: report again later if it was just created"
        raise Refused(403, error, _NOT_SEEN_YET_SECONDS)
    return job


def check_report(body: bytes, job: JobForProgress) -> Report:
    """Parse the Event in the body. Raises Refused."""
    try:
        report = events.parse(body.decode())
    except (UnicodeDecodeError, RecursionError):
        report = None
    if not isinstance(report, events.Progress | events.Finished):
        raise Refused(400, "send one Event of kind Progress or Finished, as the trainer prints it")
    if report.attempt != job.attempt:
        raise Refused(409, f"attempt {report.attempt} is not the current one, {job.attempt}")
    return report
