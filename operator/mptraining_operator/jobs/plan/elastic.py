"""Number of workers of an elastic job's attempts (spec.elastic): what can be placed at once, and more when it can grow.

Nothing here counts free machines: the scheduler, quotas, queues and the cluster autoscaler decide what can be placed,
and the only question that they all answer is a pod. So an attempt that is not placed as a whole is replaced by one with
as many workers as were placed, and an attempt with less than the maximum grows when the pods of a probe Job, which ask
for the machines that are missing, run. A pending probe occupies no machine, and it is the request that autoscalers and
queues understand; an attempt that ended to look for machines might only lose its own.

    no workers       (no attempt yet, suspended, waits for its namespace):  start with the most that
                   workersPerNamespace leaves
    placing        k of n workers have a node:  shrink to the largest size <= k
                   after `settle` seconds when the scheduler has refused the others and all had a node before,
                   after `elastic_wait` seconds in any other case; a queue that admits k: at once
    running        n < max, resizeSeconds after the attempt's start:  create the probe
                   k of its pods run:  end the attempt with a checkpoint, the next one has the largest size <= n + k
                   pods of the probe that do not suffice for a larger size are deleted, until resizeSeconds have passed
    ended          lost workers:  start with n, or with n and what the probe holds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mptraining_api.outcomes import NO_CAPACITY, QUEUE_PREEMPTED, RESIZED, SUSPENDED
from mptraining_api.resolve.attempt import possible_workers
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import Attempt, EventRecord, JobStatus, Phase, parse_time
from mptraining_operator.jobs.plan import conditions, end
from mptraining_operator.jobs.plan.actions import Action, EndAttempt, Plan, ReadJobFile, StartProbe
from mptraining_operator.jobs.plan.deadlines import run_policy
from mptraining_operator.jobs.plan.snapshot import Limits, SeenBatchJob, Snapshot
from mptraining_operator.jobs.plan.waiting import NAMESPACE_FULL

# Seconds. A restart costs about that much: an attempt that ends sooner does not grow.
_WORTH_A_RESTART = 120
# After them nothing is known about the machines of the next attempt.
_STARTS_AFRESH = (SUSPENDED.reason, NO_CAPACITY.reason, QUEUE_PREEMPTED.reason)


@dataclass(frozen=True, slots=True)
class Size:
    """The workers of the next attempt, for which the current one ends with `message`; None to keep the current one.

    Of the probe, the number of pods to create, or whether to keep it. `wake_at` is when to decide again, in seconds
    since 1970.
    """

    workers: int | None = None
    message: str = ""
    create: int = 0
    keep: bool = False
    wake_at: float | None = None


def largest(sizes: Sequence[int], most: int) -> int | None:
    """Return the largest of the ascending `sizes` that is at most `most`; None if all are larger."""
    return max((size for size in sizes if size <= most), default=None)


def most_allowed(snapshot: Snapshot, sizes: Sequence[int]) -> int:
    """Return the number of workers up to which the administrator's limits and the queue leave workers."""
    limits, queue_job = snapshot.limits.jobs, snapshot.queue_job
    left = None if limits.workers_per_namespace is None else limits.workers_per_namespace - snapshot.other_workers
    # A queue may admit a part of the workers, and adds none to them later.
    queued = None if queue_job is None or queue_job.suspended else queue_job.parallelism
    return min(most for most in (sizes[-1], limits.workers_per_job, left, queued) if most is not None)


def held(status: JobStatus) -> int:
    """Return the workers that the job keeps between two attempts or in its queue, as `watch.parse.workers` does."""
    running = conditions.condition(status, "Running")
    waits = running is not None and running.reason == NAMESPACE_FULL
    has = bool(status.current_attempt) or status.phase == Phase.QUEUED
    given_up = not has or status.phase == Phase.SUSPENDED or waits
    return 0 if given_up else status.workers or 0


def next_size(sizes: Sequence[int], snapshot: Snapshot, status: JobStatus) -> int:
    """Return the number of workers of the next attempt: the smallest size if the limits leave workers for none."""
    before = conditions.current_attempt(status)
    if before is None or before.outcome in _STARTS_AFRESH or not held(status):
        size = sizes[-1]
    elif resized_to(status) is not None:
        size = resized_to(status) or sizes[-1]
    else:
        more = snapshot.probe.ready if snapshot.probe else 0
        size = (before.workers or sizes[-1]) + more
    return largest(sizes, min(size, most_allowed(snapshot, sizes))) or sizes[0]


def resized_to(status: JobStatus) -> int | None:
    """Return the number of workers for which the last attempt ended; None if it ended otherwise, or runs."""
    before = conditions.current_attempt(status)
    return status.workers if before is not None and before.outcome == RESIZED.reason else None


def decide(sizes: Sequence[int], snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob, now: float) -> Size:
    """Return the size of the current attempt, whose Indexed Job is `batch_job`."""
    attempt = conditions.current_attempt(status)
    if attempt is None or batch_job.inactive:
        return Size()
    if conditions.is_true(status, "Running"):
        return _growth(sizes, snapshot, status, attempt, now)
    return _shrunk(sizes, snapshot, status, attempt, batch_job, now)


def _shrunk(
    sizes: Sequence[int], snapshot: Snapshot, status: JobStatus, attempt: Attempt, batch_job: SeenBatchJob, now: float
) -> Size:
    """Return the resize of an attempt whose workers do not all run, or else when to decide again."""
    workers = attempt.workers or sizes[-1]
    if batch_job.parallelism < workers:
        # A queue admitted a part of the workers; the others never come.
        target = largest(sizes, batch_job.parallelism)
        message = f"the queue admitted {batch_job.parallelism} of {workers} workers"
        return Size() if target is None else Size(target, message)
    pods = [pod for pod in snapshot.pods_of(batch_job.attempt) if pod.deletion is None and not pod.terminated]
    placed = sum(bool(pod.node) for pod in pods)
    if placed >= workers:
        return Size()
    refused = next((pod.unscheduled for pod in pods if pod.unscheduled), "")
    judged = len(pods) == workers and all(pod.node or pod.unscheduled for pod in pods)
    # A scheduler tries a refused pod again after its backoff, seconds after the machine was freed by a probe.
    quick = judged and _lost_machines(status)
    limit = snapshot.limits.settle if quick else snapshot.limits.elastic_wait
    began = batch_job.started or batch_job.created
    if now < began + limit:
        return Size(wake_at=began + limit)
    target = largest(sizes, placed)
    if target is None:
        return Size()
    cause = f": {refused}" if refused else ""
    return Size(target, f"{placed} of {workers} workers could be placed within {limit:g} s{cause}")


def _lost_machines(status: JobStatus) -> bool:
    """Return whether all workers of this attempt had a machine before: those without one now have lost it."""
    before, attempt = ([None, None, *(status.attempts or [])])[-2:]
    if before is None or attempt is None or before.outcome in _STARTS_AFRESH:
        return False
    return attempt.workers is None or before.workers is None or attempt.workers <= before.workers


def _growth(sizes: Sequence[int], snapshot: Snapshot, status: JobStatus, attempt: Attempt, now: float) -> Size:
    ran = conditions.transition_time(status, "Running")
    if attempt.start_time is None or ran is None:
        return Size()
    workers = attempt.workers or sizes[-1]
    most = largest(sizes, most_allowed(snapshot, sizes)) or workers
    if most <= workers or _ends_soon(status):
        return Size()
    interval = run_policy(snapshot).resize_seconds
    due = max(parse_time(attempt.start_time), ran) + interval
    if now < due:
        return Size(wake_at=due)
    next_round = now + interval - (now - due) % interval
    if snapshot.probe is not None:
        return _probed(sizes, workers, most, snapshot.probe, snapshot.limits, now) or Size(wake_at=next_round)
    if (now - due) % interval >= snapshot.limits.elastic_wait:
        return Size(wake_at=next_round)
    return Size(create=most - workers)


def _probed(
    sizes: Sequence[int], workers: int, most: int, probe: SeenBatchJob, limits: Limits, now: float
) -> Size | None:
    """Return what the probe's running pods allow an attempt of `workers` workers; None to delete the probe."""
    if probe.deleting or probe.ended:
        return None
    more = min(probe.ready, most - workers)
    since = probe.changed or probe.created
    target = largest(sizes, workers + more) or workers
    if target > workers:
        # Further machines may come at the same moment.
        if target < most and now < since + limits.settle:
            return Size(keep=True, wake_at=since + limits.settle)
        gained = "1 more machine" if more == 1 else f"{more} more machines"
        return Size(target, f"{gained} for {workers} worker{'s' * (workers > 1)}", keep=True)
    if more and now >= since + limits.elastic_wait:
        # It occupies machines that are not enough.
        return None
    return Size(keep=True, wake_at=since + limits.elastic_wait if more else None)


def _ends_soon(status: JobStatus) -> bool:
    progress = status.progress
    if progress is None or progress.attempt != status.current_attempt:
        return False
    remaining = progress.estimated_remaining_seconds
    return progress.percent_complete == 100 or (remaining is not None and remaining < _WORTH_A_RESTART)


def keeps_probe(status: JobStatus) -> bool:
    """Return whether a probe may exist: with a running attempt, and until the next one starts in its place."""
    attempt = conditions.current_attempt(status)
    if attempt is None or conditions.is_true(status, "Finished") or conditions.is_true(status, "Suspended"):
        return False
    if attempt.outcome == QUEUE_PREEMPTED.reason:
        return False
    return held(status) > 0 if attempt.outcome is not None else conditions.is_true(status, "Running")


def _resized(snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob, size: Size, now: float) -> Plan:
    outcome, workers = RESIZED, "1 worker" if size.workers == 1 else f"{size.workers} workers"
    message = f"{size.message.rstrip('.')}; the next attempt has {workers}"
    status = end.with_uncharged_end(snapshot, status, batch_job, outcome, message, now)
    # `next_size` reads the workers.
    status = status.model_copy(update={"workers": size.workers})
    record = EventRecord(outcome.reason, message)
    return end.with_end(snapshot, status, record, wake_at=now, restart=outcome.reason)


def with_size(decided: Plan, snapshot: Snapshot, now: float) -> Plan:
    """Return the plan with the end of an attempt that cannot be placed as a whole, or that can grow: the next one has
    another number of workers. Otherwise with the creation or deletion of the probe, and the time of the next decision.
    """
    status, probe = decided.status or snapshot.status, snapshot.probe
    if status is None:
        return decided
    size = Size(keep=keeps_probe(status))
    actions: tuple[Action, ...] = ()
    attempt = conditions.current_attempt(status)
    elastic = snapshot.job is not None and snapshot.job.spec.elastic is not None
    over = attempt is None or attempt.outcome is not None or conditions.is_true(status, "Finished")
    if elastic and attempt is not None and not over:
        text = decided.job_text or snapshot.lookups.job_text
        if not text:
            # It was not read yet, or is lost, so that the next attempt resolves the spec.
            read = ReadJobFile()
            known = text is not None or read in decided.actions
            return decided if known else replace(decided, actions=(*decided.actions, read))
        job, batch_job = ResolvedJob.read(text), snapshot.batch_job(attempt.number)
        size = decide(possible_workers(job), snapshot, status, batch_job, now) if batch_job else Size()
        if size.workers is not None and batch_job is not None:
            return _resized(snapshot, status, batch_job, size, now)
        if size.create:
            actions = (StartProbe(job, attempt.machine or 0, size.create),)
    if probe is not None and not size.keep and not probe.deleting:
        # In the foreground: it exists until its machines are free.
        actions = (EndAttempt(probe.name, probe.uid),)
    wakes = [at for at in (decided.wake_at, size.wake_at) if at is not None]
    if not actions and min(wakes, default=None) == decided.wake_at:
        return decided
    return replace(decided, actions=(*decided.actions, *actions), wake_at=min(wakes, default=None))
