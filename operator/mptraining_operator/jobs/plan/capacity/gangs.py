"""Release of half-placed gangs: workers whose peers get no machine give theirs back.

Two jobs that each hold half of the machines that both need would otherwise wait for each other forever. Each releases
after a time of its own, so that one is first; the other takes the machines while the first one waits. Both times are
functions of the job's uid and of its releases so far: the same after a restart of the operator, different for each job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from mptraining_api.outcomes import GANG_RELEASED
from mptraining_api.status import Attempt, JobStatus
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.deadlines import Deadline
from mptraining_operator.jobs.plan.snapshot import SeenBatchJob, SeenPod, Snapshot

# The pause after a release grows like the contention window of Ethernet's exponential backoff (IEEE 802.3, 4.2.3.2.5),
# up to this multiple of `Limits.gang_release`. Simulated: 30 gangs on 8 machines need twice the time of a perfect
# order with it, 3 to 5 times with 16, and 15 times if the time of holding grows as well.
_LONGEST_PAUSE = 32.0


def release(snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob) -> Deadline | None:
    """Return when the attempt gives its machines back; None if all workers or none have one.

    The time counts from the last worker that got a machine: a cluster autoscaler adds them one by one.
    """
    first = snapshot.limits.gang_release
    # Kueue admits all workers of a queued job or none.
    queued = snapshot.queue_name is not None
    if not first or batch_job.inactive or batch_job.parallelism < 2 or conditions.is_true(status, "Running") or queued:
        return None
    pods = [pod for pod in snapshot.pods_of(batch_job.attempt) if pod.owner_uid == batch_job.uid]
    placed = [pod for pod in pods if pod.node]
    why = _obstacle(snapshot, batch_job, pods)
    if not placed or not why or any(pod.terminated or pod.deletion is not None for pod in pods):
        return None
    began = batch_job.started or batch_job.created
    seconds = hold_seconds(first, snapshot.uid, batch_job.attempt)
    message = (
        f"{len(placed)} of {batch_job.parallelism} workers had a machine, and the others got none for {seconds:.0f} s "
        f"(gangReleaseSeconds): {why}. The machines are free for other jobs until the next attempt"
    )
    at = max(pod.scheduled or began for pod in placed) + seconds
    return Deadline(at, GANG_RELEASED, message)


def _obstacle(snapshot: Snapshot, batch_job: SeenBatchJob, pods: Sequence[SeenPod]) -> str:
    """Return why a worker has no machine: the scheduler's message, or the refusal of its pod; empty if unknown."""
    unscheduled = next((pod.unscheduled for pod in pods if not pod.node and pod.unscheduled), "")
    refused = snapshot.lookups.warnings.get(batch_job.uid) if len(pods) < batch_job.parallelism else None
    return (unscheduled or (refused.message if refused and refused.reason else "")).strip(" .")


def releases_in_a_row(attempts: Sequence[Attempt]) -> int:
    """Return how many of the last attempts that have ended were released."""
    ended = [attempt.outcome for attempt in attempts if attempt.outcome is not None]
    return next((count for count, outcome in enumerate(reversed(ended)) if outcome != GANG_RELEASED.reason), len(ended))


def hold_seconds(first: float, uid: str, attempt: int) -> float:
    """Return for how long a half-placed attempt keeps its machines: from `first` to twice that."""
    return first * (1.0 + _fraction(uid, attempt, "hold"))


def pause_seconds(first: float, uid: str, attempt: int, releases: int) -> float:
    """Return the seconds between a release, of `releases` in a row, and the next attempt.

    At least half of `first`, which the scheduler needs to place another gang; the most doubles with each release.
    """
    return first * (0.5 + min(2.0 ** (releases - 1), _LONGEST_PAUSE) * _fraction(uid, attempt, "pause"))


def _fraction(uid: str, attempt: int, what: str) -> float:
    """Return a number in [0, 1) that is the same in every process and independent between jobs and attempts."""
    digest = hashlib.sha256(f"{uid}/{attempt}/{what}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48
