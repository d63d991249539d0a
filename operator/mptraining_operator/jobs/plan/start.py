"""Start of an attempt: admission by the administrator's limits, then the intent in the status, then the children.

The intent is a plan of its own: the status with the attempt and the digest of the resolved job. From that write on the
API server refuses another spec, and the next plan creates the children of the attempt in the status, also after the
operator was stopped between the two. An attempt starts only when no process of an earlier one can be alive
(`no_live_pods`) and its backoff is over.
"""

from __future__ import annotations

from dataclasses import replace

from mptraining_api import outcomes
from mptraining_api.limit_rules import check_limits
from mptraining_api.pods.fields import PodTemplate
from mptraining_api.pods.images import has_moving_tag
from mptraining_api.problems import OutsideLimits, Problem
from mptraining_api.resolve.attempt import possible_workers
from mptraining_api.resolve.resolve import resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import ATTEMPTS_KEPT, Attempt, EventRecord, JobStatus, Phase, format_time, parse_time
from mptraining_operator.jobs.plan import conditions, elastic, end, kueue, waiting
from mptraining_operator.jobs.plan.actions import Action, Plan, ReadJobFile, StartAttempt
from mptraining_operator.jobs.plan.capacity import machines
from mptraining_operator.jobs.plan.deadlines import deadline_before, earliest_deadline
from mptraining_operator.jobs.plan.end import charge_budget, end_current_attempt
from mptraining_operator.jobs.plan.snapshot import Snapshot
from mptraining_operator.jobs.plan.suspend_and_cleanup import no_live_pods
from mptraining_operator.jobs.resources.job_objects import job_digest
from mptraining_operator.jobs.resources.volumes import outlives_pod

# Seconds between checks for free workers: the end of another job does not queue the jobs that wait for its workers.
NODE_CHECK_SECONDS = 5.0
_OLDER_OPERATOR = (
    "an older operator started the job, and this one cannot continue it: delete the job and create it again; "
    "its training continues from the checkpoints in spec.output.uri"
)


def refuse_or_delay(snapshot: Snapshot, status: JobStatus, start: StartAttempt, now: float) -> Plan | None:
    """Return the plan that fails or delays the next attempt, or None if it may start from `status`."""
    limits = snapshot.limits
    if snapshot.job is not None:
        try:
            check_limits(
                snapshot.job,
                start.job,
                limits.cluster.runtimes or {},
                operator_namespace=limits.operator_namespace,
                operator_account=limits.operator_account,
            )
        except OutsideLimits as problem:
            outcome = outcomes.OUTSIDE_LIMITS
            failed = conditions.with_finished(status, outcome, str(problem), now, snapshot.generation)
            return Plan(status=failed, event_records=(EventRecord(outcome.reason, str(problem), "Warning"),))
    most = limits.jobs.workers_per_namespace
    workers = start.attempt_job.workers
    if most is None or workers <= elastic.held(status) or snapshot.other_workers + workers <= most:
        return None
    return _wait_for_room(snapshot, status, workers, most, now)


def _wait_for_room(snapshot: Snapshot, status: JobStatus, workers: int, most: int, now: float) -> Plan:
    wait = waiting.namespace_full(Phase.RESTARTING if status.current_attempt else Phase.PENDING, workers, most)
    waits = waiting.with_wait(snapshot, status, wait, now)
    # Sweeps leave so many workers to the job. Other jobs use its quota meanwhile.
    status = (waits.status or status).model_copy(update={"workers": workers})
    return replace(waits, status=status, actions=kueue.leave(snapshot), wake_at=now + NODE_CHECK_SECONDS)


def first_attempt(snapshot: Snapshot, status: JobStatus, now: float) -> Plan | None:
    """Start a job that has no attempt yet, or fail it if its spec is invalid."""
    if conditions.current_attempt(status) is not None:
        return None
    if status.current_attempt or snapshot.batch_jobs:
        return _adopted(snapshot, status, now)
    if snapshot.job is None:
        return _invalid(snapshot, status, snapshot.problem, now)
    try:
        job = resolve(snapshot.job, snapshot.limits.cluster)
    except Problem as problem:
        return _invalid(snapshot, status, str(problem), now)
    # A job that was refused and then edited.
    clean = conditions.cleared(status) if conditions.is_true(status, "Finished") else status
    if not no_live_pods(snapshot):
        # Pods of an earlier job of this name, or of a Job that was deleted after its status was cleared.
        return waiting.with_wait(snapshot, clean, waiting.waiting_reason(snapshot, None, now), now)
    return _intend(snapshot, clean, machines.start_of(1, job), job.to_json(), now)


def _invalid(snapshot: Snapshot, status: JobStatus, message: str, now: float) -> Plan:
    status = conditions.with_finished(status, outcomes.INVALID_SPEC, message, now, snapshot.generation)
    record = EventRecord(outcomes.INVALID_SPEC.reason, message, "Warning")
    return Plan(status=status, event_records=(record,))


def _adopted(snapshot: Snapshot, status: JobStatus, now: float) -> Plan:
    """Rebuild a status that was cleared in whole or in part: continue its current attempt, else the newest Job's."""
    number = status.current_attempt or max(job.attempt for job in snapshot.batch_jobs)
    batch_job = snapshot.batch_job(number)
    elastic = snapshot.job is not None and snapshot.job.spec.elastic is not None
    attempt = Attempt(
        number=number,
        machine=(batch_job and batch_job.machine) or None,
        workers=batch_job.parallelism if batch_job and elastic else None,
        start_time=format_time(batch_job.created if batch_job else now),
    )
    before = [attempt for attempt in status.attempts or () if attempt.number < number]
    attempts = [*before, attempt][-ATTEMPTS_KEPT:]
    status = status.model_copy(update={"current_attempt": number, "attempts": attempts})
    message = f"the status was edited; continuing with attempt {number}"
    status = conditions.with_waiting(status, Phase.PENDING, "Starting", message, now, snapshot.generation)
    return Plan(status=status, event_records=(EventRecord("StatusRebuilt", message, "Warning"),))


def next_attempt(  # noqa: PLR0911 - a row of cases
    snapshot: Snapshot, status: JobStatus, now: float
) -> Plan | None:
    """Start the next attempt when all pods of the previous one have terminated and its backoff is over."""
    attempt = conditions.current_attempt(status)
    if attempt is None or attempt.outcome is None:
        return None
    ending = end_current_attempt(snapshot, status)
    if ending or not no_live_pods(snapshot):
        return _wait_for_end(snapshot, status, now, ending)
    due = parse_time(attempt.completion_time or format_time(now)) + end.restart_backoff(
        status, snapshot.limits, snapshot.uid
    )
    deadline = deadline_before(due, snapshot, status, f"{attempt.outcome}: {attempt.message or ''}")
    if deadline is not None and now >= deadline.at:
        return charge_budget(snapshot, status, deadline.outcome, deadline.message, now)
    if now < due:
        return Plan(wake_at=deadline.at if deadline else due)
    if snapshot.lookups.job_text == "" and not status.resolved:
        # The resolved job is unknown, and the spec may have had fields that this version drops.
        return _invalid(snapshot, status, _OLDER_OPERATOR, now)
    job = _frozen(snapshot)
    if isinstance(job, Plan):
        return job
    start = machines.start_of(attempt.number + 1, job, machine=machines.next_machine(snapshot, status, now))
    return _intend(snapshot, status, start, snapshot.lookups.job_text or job.to_json(), now)


def _wait_for_end(snapshot: Snapshot, status: JobStatus, now: float, actions: tuple[Action, ...]) -> Plan:
    """Report pods of the previous attempt that do not end."""
    wait = waiting.pods_do_not_end(snapshot, now)
    if wait is None:
        return Plan(actions=actions, wake_at=waiting.next_stuck(snapshot, now))
    records = (EventRecord(wait.reason, wait.message, "Warning"),) if waiting.is_new(status, wait.reason) else ()
    status = conditions.with_waiting(status, wait.phase, wait.reason, wait.message, now, snapshot.generation)
    return Plan(status=status, actions=actions, event_records=records)


def create_children(  # noqa: PLR0911 - a row of cases
    snapshot: Snapshot, status: JobStatus, now: float
) -> Plan | None:
    """Create the children of the attempt in the status, whose Indexed Job was not observed yet."""
    attempt = conditions.current_attempt(status)
    if attempt is None or attempt.outcome is not None or snapshot.batch_job(attempt.number):
        return None
    if status.phase == Phase.QUEUED:
        # The Job was deleted while it queued; pendingTimeoutSeconds does not count time in a queue.
        status = conditions.with_attempt(status, start_time=format_time(now))
    refusal = snapshot.lookups.refusal
    wait = waiting.waiting_reason(snapshot, None, now)
    if refusal is not None and refusal.kind == "Invalid":
        return charge_budget(snapshot, status, outcomes.INVALID_SPEC, wait.message, now)
    why = f"{wait.reason}: {wait.message}"
    deadline = earliest_deadline(snapshot, status, None, why)
    if deadline is not None and now >= deadline.at and _without_obstacle(snapshot, wait):
        # No operator was running: an outage is not charged to the job.
        status = conditions.with_attempt(status, start_time=format_time(now))
        deadline = earliest_deadline(snapshot, status, None, why)
    if deadline is not None and now >= deadline.at:
        return charge_budget(snapshot, status, deadline.outcome, deadline.message, now)
    written = conditions.with_waiting(status, wait.phase, wait.reason, wait.message, now, snapshot.generation)
    new = written != status and (refusal or snapshot.predecessors)
    records = (EventRecord(wait.reason, wait.message, "Warning"),) if new else ()
    wake = deadline.at if deadline else None
    again = waiting.retry_at(refusal, parse_time(attempt.start_time or format_time(now))) if refusal else now
    if now < again:
        return Plan(status=written, event_records=records, wake_at=min(again, wake or again))
    if not no_live_pods(snapshot):
        return Plan(status=written, event_records=records, wake_at=wake)
    job = _frozen(snapshot)
    if isinstance(job, Plan):
        return job
    again_as = machines.start_of(attempt.number, job, machine=attempt.machine or 0, workers=attempt.workers)
    if job_digest(snapshot.lookups.job_text or "") != status.job_digest:
        # The operator was stopped before it created the ConfigMap, or somebody deleted that or edited the status.
        text = snapshot.lookups.job_text or job.to_json()
        frozen = {**conditions.resolved_fields(again_as), "job_digest": job_digest(text)}
        return Plan(status=written.model_copy(update=frozen), job_text=text)
    start = _within_admission(snapshot, again_as)
    if start.workers != attempt.workers:
        size = {"workers": start.workers}
        attempts = [*(written.attempts or [])[:-1], attempt.model_copy(update=size)]
        written = written.model_copy(update={"attempts": attempts, "workers": start.attempt_job.workers})
        status = status.model_copy(update={"attempts": written.attempts})
    if (queued := kueue.admission(snapshot, status, start, now)) is not None:
        return queued
    start = replace(start, image=_pinned_image(snapshot, job))
    return Plan(status=written, actions=(start,), event_records=records, wake_at=wake)


def _within_admission(snapshot: Snapshot, start: StartAttempt) -> StartAttempt:
    """Return the start of an elastic attempt with no more workers than its new place in the queue and the limits allow.

    A fixed number of workers stays.
    """
    if start.workers is None:
        return start
    sizes = possible_workers(start.job)
    fits = elastic.largest(sizes, min(start.workers, elastic.most_allowed(snapshot, sizes)))
    return replace(start, workers=fits or sizes[0])


def _without_obstacle(snapshot: Snapshot, wait: waiting.Wait) -> bool:
    """Return whether no rejected child and no earlier pods delay the job, now or at the previous reconcile."""
    before = conditions.condition(snapshot.status, "Running") if snapshot.status else None
    return no_live_pods(snapshot) and wait.reason == "Starting" and (before is None or before.reason == wait.reason)


def _intend(snapshot: Snapshot, status: JobStatus, start: StartAttempt, text: str, now: float) -> Plan:
    """Record the next attempt, which runs the resolved job of that text, or why it has to wait."""
    if start.job.workers_range is not None:
        start = replace(start, workers=elastic.next_size(possible_workers(start.job), snapshot, status))
    waiting_plan = refuse_or_delay(snapshot, status, start, now)
    waiting_plan = waiting_plan or kueue.admission(snapshot, status, start, now)
    if waiting_plan is not None:
        return waiting_plan
    after = conditions.with_attempt_started(status, start, now, snapshot.generation)
    after = after.model_copy(update={"job_digest": job_digest(text)})
    return Plan(status=after, job_text=text, event_records=_started(snapshot, after, start))


def _pinned_image(snapshot: Snapshot, job: ResolvedJob) -> str:
    """Return the image with its digest that an earlier attempt ran, if the job's tag may name another one by now."""
    if job.image is None or job.alternatives or not has_moving_tag(job.image):
        return ""
    return next((pod.image for pod in snapshot.pods if pod.image), "")


def _started(snapshot: Snapshot, status: JobStatus, start: StartAttempt) -> tuple[EventRecord, ...]:
    number, job = start.number, start.attempt_job
    kind = job.accelerator.asked_for or job.accelerator.type
    workers = f"{job.workers} worker" + ("s" if job.workers > 1 else "")
    replicas = f"{job.replicas} replica" + ("s" if job.replicas > 1 else "")
    strategy = "" if job.strategy == "None" else f"{job.strategy} over "
    how = f"{strategy}{replicas}, {job.precision.policy}"
    tries = machines.plan_of_tries(snapshot, status, start.machine)
    records = [EventRecord("Started", f"attempt {number}: {workers} for {kind}, {how}{tries}")]
    if job.accelerator.asked_for:
        message = f"{kind} is absent from this cluster; the operator's setting cpuFallback is on"
        records.append(EventRecord("FellBackToCPU", message, "Warning"))
    if number == 1 and (lost := _output_is_lost(job)):
        records.append(EventRecord("NothingKept", lost, "Warning"))
    if snapshot.problem:
        # The job trains without fields of a newer version; an Event reports them.
        records.append(EventRecord("UnknownField", snapshot.problem, "Warning"))
    return tuple(records)


def _output_is_lost(job: ResolvedJob) -> str:
    if job.output is None:
        return "spec.output.uri is not given: checkpoints and model are deleted with the pods"
    if outlives_pod(job.output, job.pod_template or PodTemplate()):
        return ""
    return (
        f"spec.output.uri: {job.output!r} is in the pod: checkpoints and model are deleted with it; "
        "expected gs://bucket/folder, or a path below a claim of podTemplate.volumes that is mounted"
    )


def _frozen(snapshot: Snapshot) -> ResolvedJob | Plan:
    """Return the resolved job of all attempts, so that neither an upgrade nor an edit changes a job that has started.

    If its ConfigMap was deleted, or not yet created, the spec is resolved again.
    """
    if snapshot.lookups.job_text:
        return ResolvedJob.read(snapshot.lookups.job_text)
    if snapshot.lookups.job_text is None:
        return Plan(actions=(ReadJobFile(),))
    if snapshot.job is None:
        return Plan(event_records=(EventRecord("SpecUnreadable", snapshot.problem, "Warning"),))
    try:
        return resolve(snapshot.job, snapshot.limits.cluster)
    except Problem as problem:
        return Plan(event_records=(EventRecord("OperatorProblem", str(problem), "Warning"),))
