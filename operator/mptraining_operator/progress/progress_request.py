"""Whether a report is believed, and the answer it gets: pure, one check after the other, the next step in each refusal.

A worker stops at a refusal unless it carries `retry_after`: that stands where a moment later all may be well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from mptraining_api import events
from mptraining_api.status import Progress
from mptraining_operator.plan.snapshot import Key
from mptraining_operator.progress.auth import Review
from mptraining_operator.progress.status import Report
from mptraining_operator.resources import names

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
