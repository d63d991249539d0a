"""How an attempt ends by itself or by decision, and which budget it is charged to."""

from __future__ import annotations

from mptraining_api import outcomes
from mptraining_api.outcomes import Budget, Outcome
from mptraining_api.status import JobStatus, Phase
from mptraining_operator.plan import backoff, conditions, verdict
from mptraining_operator.plan.actions import Action, Announcement, EndAttempt, Plan
from mptraining_operator.plan.deadlines import policy
from mptraining_operator.plan.snapshot import SeenBatchJob, Snapshot

# Seconds. A stream that is later than this has ended, and the next list comes sooner than its next news.
_NEWS_WITHIN = 30.0
# Seconds. A Job's controller that has counted all pods and says for so long nothing of the Job's end may never say it:
# seen on Kubernetes 1.34 after its API server was killed, with all pods counted as failed and no condition for minutes.
_SAID_WITHIN = 60.0


def over(snapshot: Snapshot, now: float) -> Plan | None:
    """The current attempt has ended by itself: the job is done, or the attempt is charged to a budget."""
    status = snapshot.status
    attempt = conditions.current(status) if status else None
    if status is None or attempt is None or attempt.outcome is not None:
        return None
    batch_job = snapshot.batch_job(attempt.number)
    if batch_job is None:
        if not conditions.holds(status, "Running"):
            return None
        message = f"Job {snapshot.key.name}-{attempt.number} is gone; somebody deleted it"
        return charge(snapshot, status, outcomes.CHILD_DELETED, message, now)
    due = end_is_due(snapshot, batch_job)
    silent = due is not None and now >= due
    if batch_job.ended == "Complete" or (silent and not batch_job.failed):
        status = status.model_copy(update={"start_time": status.start_time or _ran_from(batch_job)})
        workers = f"{batch_job.parallelism} worker" + ("s" if batch_job.parallelism > 1 else "")
        message = f"attempt {attempt.number} succeeded with {workers}"
        if _keeps_nothing(snapshot):
            message += "; its model is gone with its pods, because spec.output.uri was not given"
        status = conditions.finished(status, outcomes.SUCCEEDED, message, now, snapshot.generation)
        return Plan(status=status, announcements=(Announcement("Succeeded", message),))
    if batch_job.ended == "Failed" or silent:
        return _failed(snapshot, status, batch_job, now)
    return None


def end_is_due(snapshot: Snapshot, batch_job: SeenBatchJob) -> float | None:
    """When a Job that has counted its pods counts as ended, whatever its controller says; None while a pod lives."""
    counted = batch_job.failed > 0 or batch_job.succeeded >= batch_job.parallelism
    if batch_job.ended or batch_job.suspended or batch_job.deleting or not counted or batch_job.changed is None:
        return None
    if any(not pod.over for pod in snapshot.pods_of(batch_job.attempt)):
        return None
    return batch_job.changed + _SAID_WITHIN


def _failed(snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob, now: float) -> Plan:
    news = _judged_at(snapshot, batch_job)
    if news is not None and now < news:
        return Plan(wake_at=news)
    found = verdict.judge(batch_job, snapshot.pods_of(batch_job.attempt))
    return charge(snapshot, status, found.outcome, found.message, now)


def _judged_at(snapshot: Snapshot, batch_job: SeenBatchJob) -> float | None:
    """Until when to wait for news of the pods, which come by another stream than the Job's end; None when all is seen.

    Since Kubernetes 1.31 a Job is Failed only when all its pods are over: one that seems to run is seen too late, and
    its exit code decides. A pod that is not there was deleted, as peers are, or is seen too late as well: worth a
    shorter wait, and only where nothing that is seen decides.
    """
    if batch_job.ended_at is None:
        return None
    pods = snapshot.pods_of(batch_job.attempt)
    if any(not pod.over for pod in pods):
        return batch_job.ended_at + _NEWS_WITHIN
    missing = len(pods) < batch_job.parallelism and batch_job.end_reason != "PodFailurePolicy"
    if missing and not verdict.judge(batch_job, pods).seen:
        return batch_job.ended_at + snapshot.limits.settle
    return None


def _keeps_nothing(snapshot: Snapshot) -> bool:
    written = snapshot.job is not None and snapshot.job.spec.output is not None
    return not written and snapshot.limits.cluster.output(snapshot.key.namespace) is None


def _ran_from(batch_job: SeenBatchJob) -> str:
    return conditions.stamp(batch_job.started or batch_job.created)


def charge(snapshot: Snapshot, status: JobStatus, outcome: Outcome, message: str, now: float) -> Plan:
    """The attempt has ended with that outcome: retry while its budget lasts."""
    limits = policy(snapshot)
    counts = {
        Budget.BACKOFF_LIMIT: ("application_failures", limits.backoff_limit, "backoffLimit"),
        Budget.INFRASTRUCTURE_RETRIES: (
            "infrastructure_restarts",
            limits.infrastructure_retries,
            "infrastructureRetries",
        ),
    }
    generation = snapshot.generation
    if outcome.budget not in counts:
        status = conditions.finished(status, outcome, message, now, generation)
        return Plan(
            status=status,
            actions=end_current(snapshot, status),
            announcements=(Announcement(outcome.reason, message, "Warning"),),
        )
    field, limit, name = counts[outcome.budget]
    used = (getattr(status, field) or 0) + 1
    status = status.model_copy(update={field: used})
    if used > limit:
        message = f"{_sentence(message)} No retry is left (spec.runPolicy.{name}: {limit})."
        status = conditions.finished(status, outcome, message, now, generation)
        return Plan(
            status=status,
            actions=end_current(snapshot, status),
            announcements=(Announcement(outcome.reason, message, "Warning"),),
        )
    status = conditions.attempt_over(status, outcome, message, now)
    status = conditions.waiting(status, Phase.RESTARTING, outcome.reason, message, now, generation)
    said = Announcement(
        "Restarting", f"{_sentence(message)} Restart {used} of {limit} (spec.runPolicy.{name}).", "Warning"
    )
    wake = now + backoff.delay(status, snapshot.limits)
    return Plan(
        status=status,
        actions=end_current(snapshot, status),
        announcements=(said,),
        wake_at=wake,
        restart=outcome.reason,
    )


def _sentence(message: str) -> str:
    return message if message.endswith((".", "…")) else f"{message}."


def end_current(snapshot: Snapshot, status: JobStatus) -> tuple[Action, ...]:
    """What ends the current attempt's pods; nothing when they have ended or are about to."""
    batch_job = snapshot.batch_job(status.current_attempt or 0)
    if batch_job is None or batch_job.ended or batch_job.deleting:
        return ()
    return (EndAttempt(batch_job.name, batch_job.uid),)
