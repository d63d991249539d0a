"""Who shows a token: the API server says (TokenReview), and is believed for a while.

A worker's token is for one audience, the progress endpoint about one job (`names.audience`). What the token itself
claims is only used to ask the right question: with the audience it claims, a sound token of another job is told from
one that is expired or forged. Everything that is granted rests on the API server's answer.
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

# A refused token is not asked about again for so many seconds: long enough against a loop, short enough for a mistake.
REFUSED_SECONDS = 5.0
_LONGEST_TOKEN = 16 * 1024
_ACCOUNT = "system:serviceaccount:"
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"


@dataclass(frozen=True, slots=True)
class Review:
    """The API server's word on a token. `audiences` are those it confirmed; names and uid are empty without a pod."""

    authenticated: bool
    audiences: tuple[str, ...] = ()
    namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""


REFUSED = Review(authenticated=False)


def read_review(status: Mapping[str, Any], asked: tuple[str, ...]) -> Review:
    """What the `status` of a TokenReview with the audiences `asked` says; anything incomplete is a refusal."""
    user = status.get("user") or {}
    # Without `audiences` in the answer the authenticator did not look at them, and the token may be for anybody.
    confirmed = tuple(each for each in status.get("audiences") or () if each in asked)
    account = str(user.get("username") or "")
    namespace, _, name = account.removeprefix(_ACCOUNT).partition(":")
    if status.get("authenticated") is not True or not confirmed or not account.startswith(_ACCOUNT) or not name:
        return REFUSED
    extra = user.get("extra") or {}
    return Review(True, confirmed, namespace, _first(extra.get(_POD_NAME)), _first(extra.get(_POD_UID)))


def claimed(token: str) -> tuple[tuple[str, ...], float | None]:
    """The audiences of this endpoint that the token claims to be for, and when it claims to end (seconds since 1970).

    Neither is verified. No audience for what is no token of ours.
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
    """Asks once for a token and remembers the answer; any thread may call it.

    `review` sends a TokenReview and returns its `status`; what it raises comes through and is not remembered. `clock`
    in seconds since 1970. An accepted token is believed for `seconds`, and never beyond its own end.
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
        # By SHA-256, lest a dump of memory shows tokens; with the time until which it holds.
        self._answers: OrderedDict[bytes, tuple[float, Review]] = OrderedDict()
        self._under_way: dict[bytes, Future[Review]] = {}

    def remembered(self, token: str) -> Review | None:
        """The answer that is still known; None when the API server has to be asked. Never waits."""
        with self._lock:
            return self._look_up(_digest(token))

    def identify(self, token: str) -> Review:
        """Who shows this token. Waits for the API server if it has to, once for all who ask about the same token."""
        digest = _digest(token)
        audiences, end = claimed(token)
        if not audiences:
            return REFUSED
        with self._lock:
            known = self._look_up(digest)
            if known is not None:
                return known
            future = self._under_way.get(digest)
            leads = future is None
            if future is None:
                future = self._under_way[digest] = Future()
        if leads:
            self._ask(token, digest, audiences, end, future)
        return future.result()

    def _ask(
        self, token: str, digest: bytes, audiences: tuple[str, ...], end: float | None, future: Future[Review]
    ) -> None:
        try:
            answer = read_review(self._review(token, audiences), audiences)
        except BaseException as error:  # noqa: BLE001 - it is raised to all who wait
            with self._lock:
                del self._under_way[digest]
            future.set_exception(error)
            return
        with self._lock:
            until = self._clock() + (self._seconds if answer.authenticated else REFUSED_SECONDS)
            if answer.authenticated and end is not None:
                # The signature holds, so the claim does.
                until = min(until, end)
            self._answers[digest] = until, answer
            self._answers.move_to_end(digest)
            while len(self._answers) > self._most:
                self._answers.popitem(last=False)
            del self._under_way[digest]
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


# As Kubeflow's Trainer v2: more is no report.
LARGEST_BODY = 64 * 1024
# A pod just created may not have been seen here yet.
NOT_SEEN_YET_SECONDS = 5


@dataclass(frozen=True, slots=True)
class JobForProgress:
    """What is to be known of a job. `workers`: uid to index of the pods of the current attempt that are not over."""

    uid: str
    attempt: int
    workers: Mapping[str, int]
    progress: Progress | None = None


class Refused(Exception):
    """An answer that is not 202. `error` says the cause and the next step in one line; `retry_after` in seconds."""

    def __init__(self, status: int, error: str, retry_after: int | None = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.retry_after = retry_after


def path(job: Key) -> str:
    """Where on the endpoint the workers of that job report to."""
    return f"/v1/namespaces/{job.namespace}/jobs/{job.name}/progress"


def bearer(header: str | None) -> str:
    """The token in an Authorization header. Raises Refused."""
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Refused(401, "no token: send `Authorization: Bearer` with the pod's projected service account token")
    return token.strip()


def check_caller(review: Review, key: Key, job: JobForProgress | None) -> JobForProgress:
    """The job, when `review` shows one of its workers that is alive. Raises Refused."""
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
    """The Event in the body. Raises Refused."""
    try:
        report = events.parse(body.decode())
    except (UnicodeDecodeError, RecursionError):
        report = None
    attempt = report.attempt if report is not None else None
    if attempt is not None and attempt != job.attempt:
        raise Refused(409, f"attempt {attempt} is not the current one, {job.attempt}: this worker's time is over")
    if not isinstance(report, events.Progress | events.Finished):
        raise Refused(
            400, f"{_what_it_is(body)}: send one Event of kind Progress or Finished, as the trainer prints it"
        )
    return report


def _not_among_the_workers(review: Review, key: Key, job: JobForProgress) -> Refused:
    """The pod's name, which the API server vouches for, tells a late worker from somebody else's pod."""
    attempt = _attempt_in(review.pod_name, key.name)
    if not review.pod_uid or attempt is None:
        return Refused(403, f"the token is not of a worker of {key}: only the job's own pods may report")
    if attempt < job.attempt:
        return Refused(409, f"attempt {attempt} is not the current one, {job.attempt}: this worker's time is over")
    error = f"the pod {review.pod_name} is not among the live workers of attempt {job.attempt}"
    return Refused(409, f"{error}: report again later if it was just created", NOT_SEEN_YET_SECONDS)


def _attempt_in(pod: str, job: str) -> int | None:
    """The attempt of the pod `<job>-<attempt>-<index>-<letters>`; None for any other name."""
    found = re.fullmatch(rf"{re.escape(job)}-(\d{{1,9}})-\d{{1,9}}-[a-z0-9]+", pod)
    return int(found[1]) if found else None


def _what_it_is(body: bytes) -> str:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return "not JSON"
    kind = found.get("kind") if isinstance(found, dict) else None
    return f"not a sound Event of kind {kind}" if kind in ("Progress", "Finished") else "not an Event that is kept"
