"""Authentication and authorization of GET /metrics by TokenReview and SubjectAccessReview, as kube-rbac-proxy does.

A token is accepted if the API server accepts it and RBAC allows its user `get` on the URL /metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from mptraining_api.access.review_cache import ReviewCache, TooManyReviews
from mptraining_api.access.reviews import accepted_user, bearer_token
from mptraining_api.kubernetes_api import ApiProblem

_log = logging.getLogger(__name__)

METRICS_PATH = "/metrics"
# Seconds for which a review is cached; a refusal shorter, since a missing role is usually granted soon.
ACCEPTED_SECONDS = 60.0
REFUSED_SECONDS = 10.0
# Reviews at the same time, and requests that wait for one: all that an unauthenticated client can cause.
_REVIEWS_AT_ONCE = 2
_MOST_WAITING = 20
_MOST_CACHED = 1_000


class AccessDenied(Exception):
    """A response other than 200; its text names the cause and the next step."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status

    @property
    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": "10"} if self.status == 503 else {}


class MetricsAccess:
    """Reviews of the tokens of scrapers. For one event loop.

    `review_token(token, audiences)` returns the `status` of a TokenReview; `review_access(user, path, verb)` the answer
    of a SubjectAccessReview. `monotonic` is in seconds.
    """

    def __init__(
        self,
        review_token: Callable[[str, tuple[str, ...]], Mapping[str, Any]],
        review_access: Callable[[Mapping[str, Any], str, str], bool],
        monotonic: Callable[[], float],
    ) -> None:
        self._review_token = review_token
        self._review_access = review_access
        self._monotonic = monotonic
        self._cache = ReviewCache[AccessDenied | None](
            monotonic,
            name="metrics review",
            at_once=_REVIEWS_AT_ONCE,
            most_cached=_MOST_CACHED,
            most_waiting=_MOST_WAITING,
        )

    async def authorize(self, authorization: str | None) -> None:
        """Return if the Authorization header has a token that may read the metrics. Raises AccessDenied."""
        token = bearer_token(authorization)
        if not token:
            raise AccessDenied(401, "no token: send `Authorization: Bearer` with a service account token")
        try:
            denied = await self._cache.get(token, METRICS_PATH, lambda: self._review(token), self._until)
        except TooManyReviews:
            raise AccessDenied(503, "too many tokens are being reviewed: scrape again later") from None
        except ApiProblem as problem:
            _log.warning("a token for %s could not be reviewed: %s", METRICS_PATH, problem)
            raise AccessDenied(503, "the token cannot be reviewed now: scrape again later") from None
        if denied is not None:
            raise AccessDenied(denied.status, str(denied))

    def stop(self) -> None:
        self._cache.stop()

    def _until(self, denied: AccessDenied | None) -> float:
        return self._monotonic() + (ACCEPTED_SECONDS if denied is None else REFUSED_SECONDS)

    def _review(self, token: str) -> AccessDenied | None:
        """Review the token by two calls of the API server. Raises ApiProblem."""
        user = accepted_user(self._review_token(token, ()), ())
        if user is None:
            return AccessDenied(401, "the token is expired, forged, or not for this cluster: send a current one")
        if self._review_access(user, METRICS_PATH, "get"):
            return None
        name = user.get("username", "")
        return AccessDenied(
            403, f"{name} may not get {METRICS_PATH}: bind the ClusterRole with the suffix -metrics-reader to it"
        )
