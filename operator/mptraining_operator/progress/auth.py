"""The pod that sent a progress report, by TokenReview, and the answers of the endpoint.

A worker's token has one audience: the progress endpoint for one job (`names.audience`). Nothing in a token is believed
before the API server has accepted it for the audience of the job in the request's path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mptraining_api import events
from mptraining_api.access.review_cache import ReviewCache
from mptraining_api.access.reviews import accepted_user, bearer_token, token_expiry
from mptraining_api.status import Progress
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.status import Report
from mptraining_operator.resources import names

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


class TokenReviewer:
    """Reviews of tokens by the API server; accepted ones are cached. For one event loop.

    `review(token, audiences)` sends a TokenReview and returns its `status`. `clock` is in seconds since 1970. A review
    is cached for `seconds`, at most until the token expires.
    """

    def __init__(
        self,
        review: Callable[[str, tuple[str, ...]], Mapping[str, Any]],
        clock: Callable[[], float],
        seconds: float,
    ) -> None:
        self._review = review
        self._clock = clock
        self._seconds = seconds
        self._cache = ReviewCache[str](clock, name="token review", at_once=_REVIEWS_AT_ONCE, most_cached=_MOST_CACHED)

    async def pod_uid(self, token: str, audience: str) -> str:
        """Return the uid of the pod that the token is bound to; "" if it is rejected or bound to none.

        Raises the exceptions of `review`.
        """

        def until(uid: str) -> float:
            return min(self._clock() + self._seconds, token_expiry(token) or 0.0) if uid else 0.0

        return await self._cache.get(
            token, audience, lambda: read_review(self._review(token, (audience,)), audience), until
        )

    def stop(self) -> None:
        self._cache.stop()


def read_review(status: Mapping[str, Any], audience: str) -> str:
    """Return the pod's uid in the `status` of a TokenReview; "" if the token is not accepted for this audience."""
    user = accepted_user(status, (audience,))
    if user is None:
        return ""
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
