"""Authentication of workers by TokenReview, with a cache, and authorization and validation of progress reports.

A worker's token has one audience: the progress endpoint for one job (`names.audience`). The unverified claims of a
token only select the audiences of the TokenReview, which distinguishes a valid token of another job from an expired or
forged one. Access depends on the API server's response alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from mptraining_api import events
from mptraining_api.spec import GROUP
from mptraining_api.status import Progress
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.status import Report
from mptraining_operator.resources import names

# Seconds until a rejected token is reviewed again: limits the reviews of a client in a loop, and corrects a mistake.
REFUSED_SECONDS = 5.0
_LONGEST_TOKEN = 16 * 1024
_ACCOUNT = "system:serviceaccount:"
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"


@dataclass(frozen=True, slots=True)
class Review:
    """Result of a TokenReview. `audiences` are the confirmed ones; pod name and uid are empty for an unbound token."""

    authenticated: bool
    audiences: tuple[str, ...] = ()
    namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""


REFUSED = Review(authenticated=False)


def read_review(status: Mapping[str, Any], requested: tuple[str, ...]) -> Review:
    """Parse the `status` of a TokenReview for the audiences `requested`; an incomplete one is REFUSED."""
    user = status.get("user") or {}
    # Without `audiences` in the status the authenticator does not check them, and the token may be for any audience.
    confirmed = tuple(each for each in status.get("audiences") or () if each in requested)
    account = str(user.get("username") or "")
    namespace, _, name = account.removeprefix(_ACCOUNT).partition(":")
    if status.get("authenticated") is not True or not confirmed or not account.startswith(_ACCOUNT) or not name:
        return REFUSED
    extra = user.get("extra") or {}
    return Review(True, confirmed, namespace, _first(extra.get(_POD_NAME)), _first(extra.get(_POD_UID)))


def unverified_claims(token: str) -> tuple[tuple[str, ...], float | None]:
    """Return the audiences of this endpoint in the token's claims, and its expiry (seconds since 1970), unverified.

    No audiences if it is not a token for this endpoint.
    """
    parts = token.split(".")
    if len(parts) != 3 or len(token) > _LONGEST_TOKEN:
        return (), None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return (), None
    if not isinstance(claims, dict):
        return (), None
    audiences = claims.get("aud")
    if isinstance(audiences, str):
        audiences = [audiences]
    if not isinstance(audiences, list):
        return (), None
    ours = tuple(each for each in audiences if isinstance(each, str) and each.startswith(f"{GROUP}/"))
    end = claims.get("exp")
    return ours, float(end) if isinstance(end, int | float) and not isinstance(end, bool) else None


class TokenReviewer:
    """Cache of token reviews; concurrent requests for one token share one review. Thread-safe.

    `review` sends a TokenReview and returns its `status`; its exceptions are raised to the callers and not cached.
    `clock` is in seconds since 1970. An accepted token is cached for `seconds`, at most until it expires.
    """

    def __init__(
        self,
        review: Callable[[str, tuple[str, ...]], Mapping[str, Any]],
        clock: Callable[[], float],
        seconds: float,
        *,
        most: int = 10_000,
    ) -> None:
        self._review = review
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        # Expiry and review by the token's SHA-256, so that a memory dump contains no tokens.
        self._answers: OrderedDict[bytes, tuple[float, Review]] = OrderedDict()
        self._pending: dict[bytes, Future[Review]] = {}

    def cached_review(self, token: str) -> Review | None:
        """Return the cached review, or None if the API server must review the token. Does not block."""
        with self._lock:
            return self._look_up(_digest(token))

    def review_token(self, token: str) -> Review:
        """Return the review of the token; blocks while the API server reviews it, once for concurrent callers."""
        digest = _digest(token)
        audiences, end = unverified_claims(token)
        if not audiences:
            return REFUSED
        with self._lock:
            known = self._look_up(digest)
            if known is not None:
                return known
            future = self._pending.get(digest)
            is_first = future is None
            if future is None:
                future = self._pending[digest] = Future()
        if is_first:
            self._ask(token, digest, audiences, end, future)
        return future.result()

    def _ask(
        self, token: str, digest: bytes, audiences: tuple[str, ...], end: float | None, future: Future[Review]
    ) -> None:
        try:
            answer = read_review(self._review(token, audiences), audiences)
        except BaseException as error:  # noqa: BLE001 - it is raised to all waiting callers
            with self._lock:
                del self._pending[digest]
            future.set_exception(error)
            return
        with self._lock:
            until = self._clock() + (self._seconds if answer.authenticated else REFUSED_SECONDS)
            if answer.authenticated and end is not None:
                # The API server has verified the signature, so the expiry can be trusted.
                until = min(until, end)
            self._answers[digest] = until, answer
            self._answers.move_to_end(digest)
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
            del self._pending[digest]
        future.set_result(answer)

    def _look_up(self, digest: bytes) -> Review | None:
        found = self._answers.get(digest)
        if found is None:
            return None
        until, answer = found
        if self._clock() < until:
            return answer
        del self._answers[digest]
        return None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _first(values: object) -> str:
    return str(values[0]) if isinstance(values, list | tuple) and values else ""


# Bytes; the same limit as in Kubeflow Trainer v2.
LARGEST_BODY = 64 * 1024
# Retry-After for a job or pod that may not have reached this replica's cache yet.
NOT_SEEN_YET_SECONDS = 5


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


def report_path(job: Key) -> str:
    """Return the URL path of the progress reports of a job."""
    return f"/v1/namespaces/{job.namespace}/jobs/{job.name}/progress"


def bearer_token(header: str | None) -> str:
    """Return the bearer token of an Authorization header. Raises Refused."""
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Refused(401, "no token: send `Authorization: Bearer` with the pod's projected service account token")
    return token.strip()


def check_caller(review: Review, key: Key, job: JobForProgress | None) -> JobForProgress:
    """Return the job if `review` identifies its live worker 0. Raises Refused."""
    if not review.authenticated:
        raise Refused(
            401,
            "the token is expired, forged, of a pod that is gone, or not for this endpoint: "
            "read it from its file again, the kubelet renews it",
        )
    if review.namespace != key.namespace:
        raise Refused(403, f"the token is of namespace {review.namespace}: report to the job that the pod belongs to")
    if job is None:
        raise Refused(404, f"no MPTrainingJob {key} is known here: report again later", NOT_SEEN_YET_SECONDS)
    if names.audience(key.namespace, job.uid) not in review.audiences:
        raise Refused(403, f"the token is of another job than {key}: report to the job that the pod belongs to")
    index = job.workers.get(review.pod_uid) if review.pod_uid else None
    if index is None:
        raise _not_among_the_workers(review, key, job)
    if index != 0:
        raise Refused(403, f"the pod is worker {index}: only worker 0 reports")
    return job


def check_report(body: bytes, job: JobForProgress) -> Report:
    """Parse the Event in the body. Raises Refused."""
    try:
        report = events.parse(body.decode())
    except (UnicodeDecodeError, RecursionError):
        report = None
    attempt = report.attempt if report is not None else None
    if attempt is not None and attempt != job.attempt:
        raise Refused(409, f"attempt {attempt} is not the current one, {job.attempt}: this worker is outdated")
    if not isinstance(report, events.Progress | events.Finished):
        raise Refused(400, f"{_describe(body)}: send one Event of kind Progress or Finished, as the trainer prints it")
    return report


def _not_among_the_workers(review: Review, key: Key, job: JobForProgress) -> Refused:
    """Return the error for an unknown pod: its name, verified by the API server, identifies an outdated worker."""
    attempt = _attempt_in(review.pod_name, key.name)
    if not review.pod_uid or attempt is None:
        return Refused(403, f"the token is not of a worker of {key}: only the job's own pods may report")
    if attempt < job.attempt:
        return Refused(409, f"attempt {attempt} is not the current one, {job.attempt}: this worker is outdated")
    error = f"the pod {review.pod_name} is not among the live workers of attempt {job.attempt}"
    return Refused(409, f"{error}: report again later if it was just created", NOT_SEEN_YET_SECONDS)


def _attempt_in(pod: str, job: str) -> int | None:
    """Return the attempt in the pod name `<job>-<attempt>-<index>-<letters>`, or None for any other name."""
    found = re.fullmatch(rf"{re.escape(job)}-(\d{{1,9}})-\d{{1,9}}-[a-z0-9]+", pod)
    return int(found[1]) if found else None


def _describe(body: bytes) -> str:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return "not JSON"
    kind = found.get("kind") if isinstance(found, dict) else None
    return (
        f"not a valid Event of kind {kind}" if kind in ("Progress", "Finished") else "not an Event of a supported kind"
    )
