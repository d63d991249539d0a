"""Running attempt: status while its workers wait or run, and its deadlines."""

from __future__ import annotations

from mptraining_api.launch import MODEL_WAITS
from mptraining_api.status import EventRecord, JobStatus, parse_time
from mptraining_operator.jobs.plan import conditions, waiting
from mptraining_operator.jobs.plan.actions import CreatePodGroup, Plan, ReadEvents
from mptraining_operator.jobs.plan.capacity import gangs, machines
from mptraining_operator.jobs.plan.deadlines import Deadline, earliest_deadline, oom_kills
from mptraining_operator.jobs.plan.end import charge_budget, end_is_due, end_without_charge
from mptraining_operator.jobs.plan.snapshot import SeenBatchJob, Snapshot

# Seconds between attempts to create a rejected PodGroup.
_POD_GROUP_RETRY = 10.0


def running_attempt(snapshot: Snapshot, status: JobStatus, now: float) -> Plan | None:
    """Report whether the attempt's pods wait or run, and enforce its deadlines."""
    attempt = conditions.current_attempt(status)
    batch_job = snapshot.batch_job(attempt.number) if attempt else None
    if attempt is None or batch_job is None:
        return None
    generation = snapshot.generation
    records: tuple[EventRecord, ...] = ()
    first_run: float | None = None
    why = ""
    read_at: float | None = None
    read_about = ""
    next_look: float | None = None
    # The pods of a preempted Job are still counted as ready until they terminate.
    preempted = batch_job.suspended and conditions.is_true(status, "Running")
    unready = waiting.pods_do_not_end(snapshot, now)
    if conditions.is_true(status, "Running") and not preempted and unready is None:
        after, records = _with_trouble(snapshot, status, batch_job, now)
    elif unready is None and not batch_job.suspended and waiting.trainers_run(snapshot, batch_job):
        message = _running_message(snapshot, status, batch_job)
        after = conditions.with_running(status, message, now, generation)
        if attempt.number == 1 and not _ran_before(status):
            first_run = now - snapshot.created
        records = (EventRecord("Running", message),)
    else:
        wait = waiting.waiting_reason(snapshot, batch_job, now)
        why = f"{wait.reason}: {wait.message}"
        read_at, read_about = waiting.next_event_read(snapshot, batch_job)
        next_look = waiting.next_look(snapshot, batch_job, now)
        after = conditions.with_waiting(status, wait.phase, wait.reason, wait.message, now, generation)
        if waiting.is_new(status, wait.reason) and wait.reason not in ("Starting", "Queued", waiting.STARTS_SLOWLY):
            records = (EventRecord(wait.reason, wait.message, "Warning"),)
        if batch_job.suspended:
            # activeDeadlineSeconds does not count the time of a Job that a client suspended.
            after = after.model_copy(update={"start_time": None})
        if preempted and unready is None:
            records = (EventRecord(wait.reason, f"the machines were preempted: {wait.message}", "Warning"),)
    kept = _model_waits(snapshot, after)
    if kept is not None:
        after = conditions.with_condition(after, "Running", True, MODEL_WAITS, kept, now, generation)
        if waiting.is_new(status, MODEL_WAITS):
            records = (*records, EventRecord(MODEL_WAITS, kept))
    times = (
        earliest_deadline(snapshot, after, batch_job, why),
        machines.try_deadline(snapshot, after, batch_job, why),
        gangs.release(snapshot, after, batch_job),
    )
    if (ending := _ending(snapshot, after, batch_job, times, now)) is not None:
        return ending
    creation = pod_group_creation(snapshot, batch_job)
    due = (
        *(deadline and deadline.at for deadline in times),
        creation,
        None if conditions.is_true(after, "Running") else waiting.unschedulable_at(snapshot, batch_job),
        end_is_due(snapshot, batch_job),
        read_at,
        next_look,
        waiting.next_stuck(snapshot, now),
    )
    wakes = [time for time in due if time and time > now]
    return Plan(
        status=None if after == snapshot.status else after,
        actions=(
            *((CreatePodGroup(batch_job.name, batch_job.uid),) if creation is not None and now >= creation else ()),
            *((ReadEvents(read_about),) if read_at is not None and now >= read_at else ()),
        ),
        event_records=records,
        wake_at=min(wakes, default=None),
        first_run=first_run,
    )


def _running_message(snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob) -> str:
    workers = f"all {batch_job.parallelism} workers run" if batch_job.parallelism > 1 else "its worker runs"
    absent = machines.absent_accelerator(snapshot.job, status)
    return f"attempt {batch_job.attempt}: {workers}{f' on CPUs, as {absent} is absent' if absent else ''}"


def _with_trouble(
    snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob, now: float
) -> tuple[JobStatus, tuple[EventRecord, ...]]:
    """Report processes of a running attempt that were killed for memory, or a container that is not the trainer and
    fails or waits: once, because these messages change with each of its restarts.
    """
    running = conditions.condition(status, "Running")
    if running is None or running.reason != "Running" or ";" in running.message:
        return status, ()
    killed, (worker, state) = oom_kills(status), waiting.other_container(snapshot, batch_job)
    cause = killed or (f"; in the pod of {worker}, {state}" if state else "")
    if not cause:
        return status, ()
    message = f"{_running_message(snapshot, status, batch_job)}{cause}"
    after = conditions.with_running(status, message, now, snapshot.generation)
    if killed:
        return after, (EventRecord("ProcessKilledForMemory", message, "Warning"),)
    return after, (EventRecord("OtherContainer", message, "Warning"),)


def _ending(
    snapshot: Snapshot,
    status: JobStatus,
    batch_job: SeenBatchJob,
    times: tuple[Deadline | None, Deadline | None, Deadline | None],
    now: float,
) -> Plan | None:
    """Return the end of the attempt by one of three times: a deadline, the last moment to wait for its machines, the
    release of a half-placed gang. None if none is due.
    """
    deadline, tried, half = (deadline if deadline is not None and now >= deadline.at else None for deadline in times)
    if deadline is not None:
        return charge_budget(snapshot, status, deadline.outcome, deadline.message, now)
    if tried is not None:
        return machines.give_up(snapshot, status, batch_job, tried.message, now)
    return end_without_charge(snapshot, status, batch_job, half.outcome, half.message, now) if half else None


def _model_waits(snapshot: Snapshot, status: JobStatus) -> str | None:
    """Return the message of a running attempt whose training is done and whose worker 0 keeps the model."""
    progress = status.progress
    if progress is None or progress.attempt != status.current_attempt or progress.model_kept_until is None:
        return None
    ran = conditions.transition_time(status, "Running")
    if ran is None or not conditions.is_true(status, "Running"):
        return None
    if progress.update_time is not None and parse_time(progress.update_time) < ran:
        # Reported by a pod of this attempt before a client suspended its Job.
        return None
    return (
        f"training is done; worker 0 and its machine wait until {progress.model_kept_until} for the model to be "
        "fetched, because spec.output.uri is not given. Fetch it, and the job ends: "
        f"mptj fetch {snapshot.key.name} --namespace {snapshot.key.namespace}"
    )


def pod_group_creation(snapshot: Snapshot, batch_job: SeenBatchJob) -> float | None:
    """Return when to create the PodGroup that the pods of the Job wait for; None if it exists or is not needed."""
    if not batch_job.gang or batch_job.inactive or snapshot.lookups.pod_group_of == batch_job.uid:
        return None
    refusal = snapshot.lookups.refusal
    return batch_job.created if refusal is None else refusal.at + _POD_GROUP_RETRY


def _ran_before(status: JobStatus) -> bool:
    """Return whether the current attempt was running before and its queue preempted it."""
    attempts = status.attempts or []
    began, ran = attempts[-1].start_time if attempts else None, conditions.transition_time(status, "Running")
    return began is not None and ran is not None and ran > parse_time(began)
