"""The rules that must hold after chaos: pure functions from the evidence to complaints, none if all rules hold.

No rule trusts the operator: its status and metrics are checked against the API server's events.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from mptraining_api import outcomes
from mptraining_api.outcomes import Budget
from tests.soak.chaos.jobs import Stub, trials
from tests.soak.chaos.record import ChildSeen, JobSeen, PodSeen, Seen, Step

# Permitted outcomes of an attempt that a fault hit: which one depends on the first observer.
_AFTER_FAULT = frozenset(each.reason for each in (outcomes.PREEMPTED, outcomes.NODE_LOST, outcomes.CHILD_DELETED))


@dataclass(frozen=True)
class Left:
    """An object that exists at the end; `owner` is the uid of its controller."""

    kind: str
    name: str
    uid: str
    owner: str


@dataclass(frozen=True)
class Evidence:
    """The observations of a whole run. Times are of one clock, the recorder's.

    `hit`: the uids of pods that a fault ended. `left`: the objects in the namespace when all jobs have ended, `remains`
    those after the jobs' deletion. `counted`: restarts that all replicas together had counted when they were last read,
    None if nobody could ask; `blind`: times in which a replica may have counted without being read again, or may have
    missed that its write was accepted. `phases`: the last leader's jobs by phase. `sweep`: the phase of the sweep, then
    job and state of each trial.
    """

    planned: tuple[Stub, ...]
    steps: tuple[Step, ...]
    hit: frozenset[str] = frozenset()
    left: tuple[Left, ...] = ()
    remains: tuple[Left, ...] = ()
    counted: int | None = None
    blind: tuple[tuple[float, float], ...] = ()
    phases: Mapping[str, int] = field(default_factory=dict)
    sweep: tuple[str, ...] = ()


def complaints(evidence: Evidence) -> tuple[str, ...]:
    """Return all violations of the rules; one line each."""
    rules = (
        *(
            ends_as_written,
            trials_as_written,
            one_child_each,
            never_two_at_once,
            counters_fit,
            final_is_final,
            nothing_orphaned,
        ),
        restarts_counted,
    )
    return tuple(line for rule in rules for line in rule(evidence))


def ends_as_written(evidence: Evidence) -> Iterator[str]:
    """Every job has ended, and each of its attempts as its workers ended it, unless a fault hit it."""
    last = last_seen(evidence)
    pods = (pod for pod in _all(evidence) if isinstance(pod, PodSeen))
    hit = {(pod.job, pod.attempt) for pod in pods if pod.uid in evidence.hit} | doubled(evidence)
    for stub in evidence.planned:
        seen = last.get(stub.name)
        if seen is None:
            yield f"{stub.name}: nobody saw it"
        elif not seen.finished:
            yield f"{stub.name}: has not ended, {seen.phase}"
        else:
            if seen.phase != stub.phase:
                yield f"{stub.name}: ended as {seen.phase} ({seen.reason}), not as {stub.phase}"
            for number, outcome in sorted(outcomes_seen(evidence, stub.name).items()):
                expected = {each.reason for each in stub.outcomes(number)}
                if (stub.name, number) in hit:
                    expected |= _AFTER_FAULT
                if outcome not in expected:
                    yield f"{stub.name}: attempt {number} was judged {outcome}, not {' or '.join(sorted(expected))}"


def trials_as_written(evidence: Evidence) -> Iterator[str]:
    """The sweep has ended with its four trials, each by one job; nobody created a job that is not planned.

    A pod that was deleted and succeeded before its grace period was over takes its termination log along; a trainer
    reports its metrics by HTTPS too, which these workers do not.
    """
    hit = {pod.job for pod in _all(evidence) if isinstance(pod, PodSeen) and pod.uid in evidence.hit}
    phase, *states = evidence.sweep
    lost = {f"{name} Failed its job reports no loss, but nothing": f"{name} Succeeded" for name in hit}
    expected = [f"{stub.name} Succeeded" for stub in trials()]
    if phase != "Succeeded" or [lost.get(state, state) for state in states] != expected:
        yield f"the sweep ended as {', '.join(evidence.sweep)}, not as Succeeded, {', '.join(expected)}"
    for name in sorted(last_seen(evidence).keys() - {stub.name for stub in evidence.planned}):
        yield f"{name}: a job that is not planned"


def one_child_each(evidence: Evidence) -> Iterator[str]:
    """Every attempt up to the current one has exactly one Indexed Job, which its job owns, and there are no others."""
    children: dict[tuple[str, int], dict[str, ChildSeen]] = defaultdict(dict)
    for seen in _all(evidence):
        if isinstance(seen, ChildSeen):
            children[seen.job, seen.attempt][seen.uid] = seen
    last = last_seen(evidence)
    for (name, attempt), found in sorted(children.items()):
        if len(found) > 1:
            yield f"{name}: attempt {attempt} had {len(found)} Indexed Jobs"
        if name not in last or any(each.owner != last[name].uid for each in found.values()):
            yield f"{name}: the Indexed Job of attempt {attempt} is not owned by it"
        elif attempt > last[name].attempt:
            yield f"{name}: an Indexed Job of attempt {attempt}, and its status knows {last[name].attempt}"
    for name, job in sorted(last.items()):
        for attempt in range(1, job.attempt + 1):
            if (name, attempt) not in children:
                yield f"{name}: attempt {attempt} had no Indexed Job"


def never_two_at_once(evidence: Evidence) -> Iterator[str]:
    """At no step do pods of two attempts live."""
    said = set()
    for job, pods in _alive(evidence):
        attempts = sorted({pod.attempt for pod in pods})
        line = f"{job}: attempts {', '.join(map(str, attempts))} lived at once"
        if len(attempts) > 1 and line not in said:
            said.add(line)
            yield line


def counters_fit(evidence: Evidence) -> Iterator[str]:
    """Each outcome is in the counter of its budget, counters never fall, attempts are numbered without a gap."""
    before: dict[str, JobSeen] = {}
    for seen in _all(evidence):
        if not isinstance(seen, JobSeen):
            continue
        old = before.get(seen.uid)
        if old and (seen.failures < old.failures or seen.restarts < old.restarts or seen.attempt < old.attempt):
            yield f"{seen.name}: a counter of its status fell"
        before[seen.uid] = seen
    for name, job in sorted(last_seen(evidence).items()):
        judged = outcomes_seen(evidence, name)
        budgets = Counter(outcomes.by_reason(each).budget for each in judged.values())
        if job.finished and sorted(judged) != list(range(1, job.attempt + 1)):
            yield f"{name}: {job.attempt} attempts, and outcomes of {sorted(judged)}"
        in_status = {"applicationFailures": job.failures, "infrastructureRestarts": job.restarts}
        counted = dict(
            zip(in_status, (budgets[Budget.BACKOFF_LIMIT], budgets[Budget.INFRASTRUCTURE_RETRIES]), strict=True)
        )
        for counter, value in in_status.items():
            if value != counted[counter]:
                yield f"{name}: {counter} is {value}, its attempts make {counted[counter]}"
        if job.start and job.end and job.end < job.start:
            yield f"{name}: ended at {job.end}, before its start at {job.start}"


def final_is_final(evidence: Evidence) -> Iterator[str]:
    """Neither the end of a job nor the outcome of an attempt changes afterwards."""
    ends: dict[str, JobSeen] = {}
    judged: dict[tuple[str, int], str] = {}
    for seen in _all(evidence):
        if not isinstance(seen, JobSeen):
            continue
        for number, outcome in seen.attempts:
            was = judged.get((seen.uid, number), "")
            if was and was != outcome:
                yield f"{seen.name}: attempt {number} was {was}, then {outcome or 'open again'}"
            judged[seen.uid, number] = outcome
        end = ends.get(seen.uid)
        if end is not None and end != seen:
            yield f"{seen.name}: had ended as {end.phase}, and its status changed"
        if seen.finished:
            ends[seen.uid] = seen


def nothing_orphaned(evidence: Evidence) -> Iterator[str]:
    """Everything in the namespace belongs to a job, directly or by its Indexed Job, and is deleted with the jobs."""
    owners = {job.uid for job in last_seen(evidence).values()} | {each.uid for each in evidence.left}
    for each in evidence.left:
        if each.owner not in owners:
            yield f"{each.kind} {each.name}: belongs to nothing that is there"
    for remain in evidence.remains:
        yield f"{remain.kind} {remain.name}: is still there after all jobs were deleted"


def restarts_counted(evidence: Evidence) -> Iterator[str]:
    """The operators' metrics count every restart and no other; at the end every job is counted in its phase."""
    last = last_seen(evidence)
    restarts = sum(max(0, job.attempt - 1) for job in last.values())
    unsure = sum(any(began <= at <= end for began, end in evidence.blind) for at in _restart_times(evidence))
    if evidence.counted is not None and not restarts - unsure <= evidence.counted <= restarts:
        yield (
            f"mptraining_restarts_total: the replicas counted {evidence.counted}, "
            f"the record has {restarts}, {unsure} of them when nobody could ask"
        )
    phases = Counter(job.phase for job in last.values())
    reported = {phase: count for phase, count in evidence.phases.items() if count}
    if reported != dict(phases):
        yield f"mptraining_jobs: the leader tells {reported}, the record {dict(phases)}"


def doubled(evidence: Evidence) -> frozenset[tuple[str, int]]:
    """Return job and attempt of every worker that had two pods at once.

    That is no second gang, and not caused by the operator: a Job's controller whose response was lost creates a pod
    again, and deletes the younger one when it sees both. The trainer's fence lets one of them write.
    """
    found = set()
    for job, pods in _alive(evidence):
        workers = Counter((pod.attempt, pod.index) for pod in pods)
        found |= {(job, attempt) for (attempt, _), times in workers.items() if times > 1}
    return frozenset(found)


def _alive(evidence: Evidence) -> Iterator[tuple[str, Collection[PodSeen]]]:
    """Return, after each step, the running pods of every job that it changed."""
    alive: dict[str, dict[str, PodSeen]] = defaultdict(dict)
    for step in evidence.steps:
        touched = set()
        for change in step.changes:
            pod = change.seen
            if isinstance(pod, PodSeen):
                touched.add(pod.job)
                if change.gone or not pod.alive:
                    alive[pod.job].pop(pod.uid, None)
                else:
                    alive[pod.job][pod.uid] = pod
        for job in sorted(touched):
            yield job, alive[job].values()


def _all(evidence: Evidence) -> Iterator[Seen]:
    """Return all observed objects, without the last state of deleted ones."""
    return (change.seen for step in evidence.steps for change in step.changes if not change.gone)


def last_seen(evidence: Evidence) -> dict[str, JobSeen]:
    """Return the last state of every job."""
    return {seen.name: seen for seen in _all(evidence) if isinstance(seen, JobSeen)}


def outcomes_seen(evidence: Evidence, name: str) -> dict[int, str]:
    """Return the outcomes of all attempts of a job; a status keeps only the last ten."""
    found = (seen for seen in _all(evidence) if isinstance(seen, JobSeen) and seen.name == name)
    return {number: outcome for seen in found for number, outcome in seen.attempts if outcome}


def _restart_times(evidence: Evidence) -> Iterator[float]:
    """Return when each attempt that is not its job's last was first seen to have ended."""
    last = last_seen(evidence)
    known: set[tuple[str, int]] = set()
    for step in evidence.steps:
        for change in step.changes:
            seen = change.seen
            if not isinstance(seen, JobSeen):
                continue
            for number, outcome in seen.attempts:
                if outcome and number < last[seen.name].attempt and (seen.uid, number) not in known:
                    known.add((seen.uid, number))
                    yield step.at
