"""The machine of an attempt: the first choice or an alternative, for how long it is tried, and the one after it.

An attempt whose machines do not come within `tryForSeconds` ends as NoCapacity, which no budget counts, and the next
attempt tries the next machine; after the last alternative comes the first choice again. An attempt that loses its
machines starts again with the first choice, except that a machine that did not come, or was taken away within its
`tryForSeconds`, rests: so a job neither waits again for what was absent a moment ago, nor changes without end.
"""

from __future__ import annotations

from mptraining_api import outcomes
from mptraining_api.outcomes import Budget
from mptraining_api.resolve.alternatives import describe
from mptraining_api.resolve.attempt import possible_workers
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import Machine, MPTrainingJob
from mptraining_api.status import EventRecord, JobStatus, parse_time
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.actions import Plan, StartAttempt
from mptraining_operator.jobs.plan.deadlines import Deadline, run_policy
from mptraining_operator.jobs.plan.end import with_end, with_uncharged_end
from mptraining_operator.jobs.plan.snapshot import SeenBatchJob, Snapshot

# A machine rests for this multiple of its tryForSeconds, so that waits for it take a quarter of the time at most.
_REST = 3
_FIELD = "spec.accelerator.tryForSeconds"


def start_of(number: int, job: ResolvedJob, *, machine: int = 0, workers: int | None = None) -> StartAttempt:
    """Return the start of an attempt of the frozen `job`.

    A job that was resolved again, because its frozen one was deleted, may not have that machine or size: the attempt
    then runs on the first choice, or has the number of workers of the job.
    """
    if machine > len(job.alternatives):
        machine = 0
    if job.workers_range is None or workers not in possible_workers(job):
        workers = None
    return StartAttempt(number, job, machine, workers)


def tried(job: MPTrainingJob | None, status: JobStatus) -> tuple[Machine, ...]:
    """Return the machines that the job is tried on, the first choice first; empty if it has no alternatives."""
    accelerator = job.spec.accelerator if job else None
    # A job that fell back to CPUs has no alternatives.
    if accelerator is None or absent_accelerator(job, status):
        return ()
    return (accelerator, *accelerator.alternatives) if accelerator.alternatives else ()


def absent_accelerator(job: MPTrainingJob | None, status: JobStatus) -> str:
    """Return the accelerator that the cluster lacks, of a job that trains on CPUs in its place; empty for others."""
    if job is None or status.machine_type != "cpu":
        return ""
    first = job.spec.accelerator
    types = [first.type, *(other.type for other in first.alternatives or ())]
    used = (status.attempts[-1].machine or 0) if status.attempts else 0
    return "" if types[min(used, len(types) - 1)] == "cpu" else first.type


def written_seconds(snapshot: Snapshot) -> int | None:
    return snapshot.job.spec.accelerator.try_for_seconds if snapshot.job else None


def try_seconds(snapshot: Snapshot, machines: tuple[Machine, ...]) -> int:
    """Return for how many seconds each machine is tried: by default an equal share of pendingTimeoutSeconds."""
    return written_seconds(snapshot) or max(1, run_policy(snapshot).pending_timeout_seconds // len(machines))


def next_machine(snapshot: Snapshot, status: JobStatus, now: float) -> int:
    """Return the machine of the next attempt, after the last one of the status has ended."""
    machines, attempts = tried(snapshot.job, status), status.attempts or []
    if not machines or not attempts:
        return 0
    last = attempts[-1]
    used = min(last.machine or 0, len(machines) - 1)
    outcome = outcomes.by_reason(last.outcome or "")
    # A gang that got only some of its machines waits for no more of them.
    if outcome in (outcomes.NO_CAPACITY, outcomes.GANG_RELEASED):
        order = _after(used, len(machines))
        rests = {number: _rest_ends(snapshot, status, machines, number, absent=False) for number in order}
    elif outcome.budget == Budget.INFRASTRUCTURE_RETRIES or outcome == outcomes.SUSPENDED:
        order = list(range(len(machines)))
        rests = {number: _rest_ends(snapshot, status, machines, number, absent=True) for number in order}
    else:
        # Its machines are still there, or the job queues for them again.
        return used
    return next((number for number in order if rests[number] <= now), min(order, key=rests.__getitem__))


def _after(machine: int, count: int) -> list[int]:
    """Return the machines that follow `machine`, in their order."""
    return [(machine + 1 + step) % count for step in range(count - 1)]


def _rest_ends(
    snapshot: Snapshot, status: JobStatus, machines: tuple[Machine, ...], machine: int, *, absent: bool
) -> float:
    """Return until when a machine rests that was taken away in moments or, with `absent`, did not come; else 0."""
    seconds = try_seconds(snapshot, machines)
    for attempt in reversed(status.attempts or []):
        if (attempt.machine or 0) != machine or not attempt.completion_time:
            continue
        ended = parse_time(attempt.completion_time)
        outcome = outcomes.by_reason(attempt.outcome or "")
        began = parse_time(attempt.start_time) if attempt.start_time else ended
        lost = outcome.budget == Budget.INFRASTRUCTURE_RETRIES and ended - began < seconds
        return ended + _REST * seconds if lost or (absent and outcome == outcomes.NO_CAPACITY) else 0.0
    return 0.0


def try_deadline(snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob, why: str) -> Deadline | None:
    """Return when the current attempt gives up its machines; None without alternatives, or once they have come.

    A Job that a client suspended waits without limit.
    """
    machines, attempt = tried(snapshot.job, status), conditions.current_attempt(status)
    if not machines or attempt is None or attempt.start_time is None or conditions.is_true(status, "Running"):
        return None
    placed = [pod for pod in snapshot.pods_of(attempt.number) if pod.node and not pod.terminated]
    if batch_job.suspended or len(placed) >= batch_job.parallelism:
        return None
    machine = min(attempt.machine or 0, len(machines) - 1)
    began = batch_job.started or batch_job.created
    seconds = try_seconds(snapshot, machines)
    message = f"{describe(machines[machine])} did not come within {seconds} s ({_FIELD}): {why}"
    return Deadline(began + seconds, outcomes.NO_CAPACITY, message)


def queue_deadline(snapshot: Snapshot, status: JobStatus, queue_job: SeenBatchJob) -> Deadline | None:
    """Return when the job no longer queues for that machine; None for one without alternatives or `tryForSeconds`."""
    machines, seconds = tried(snapshot.job, status), written_seconds(snapshot)
    if not machines or seconds is None:
        return None
    machine = min(queue_job.machine, len(machines) - 1)
    # Since its start, or since the queue took its machines back.
    began = max(queue_job.created, conditions.transition_time(status, "Running") or 0.0)
    message = f"the queue did not admit {describe(machines[machine])} within {seconds} s ({_FIELD})"
    return Deadline(began + seconds, outcomes.NO_CAPACITY, message)


def give_up(snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob, message: str, now: float) -> Plan:
    """End the current attempt, whose machines did not come; the next attempt tries the next machine."""
    outcome = outcomes.NO_CAPACITY
    status = with_uncharged_end(snapshot, status, batch_job, outcome, message, now)
    following = announced(snapshot, status, next_machine(snapshot, status, now))
    record = EventRecord(outcome.reason, f"{message.rstrip('.')}. Next: {following}", "Warning")
    return with_end(snapshot, status, record, wake_at=now)


def announced(snapshot: Snapshot, status: JobStatus, machine: int) -> str:
    """Return that machine and for how long it is tried; empty for a job without alternatives."""
    machines = tried(snapshot.job, status)
    if not machines:
        return ""
    if snapshot.queue_name and written_seconds(snapshot) is None:
        return f"{describe(machines[machine])}, when its queue admits it"
    return f"{describe(machines[machine])} for {try_seconds(snapshot, machines)} s"


def plan_of_tries(snapshot: Snapshot, status: JobStatus, machine: int) -> str:
    """Return which machine an attempt tries and which one follows; empty for a job without alternatives."""
    machines = tried(snapshot.job, status)
    if not machines:
        return ""
    following = machines[_after(machine, len(machines))[0]]
    return f"; tries {announced(snapshot, status, machine)}, then {describe(following)}"
