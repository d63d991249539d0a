"""End of an attempt: its outcome from Job and pods, the retry budget it is charged to, and the restart backoff.

The first failure that is not PeerLost decides. A pod that was disrupted no later than a moment after it decides
instead, since a peer often fails in a broken collective before the eviction is marked. The cause of a pod is the first
that applies: disruption, the node's own reason, OOMKilled, the last Event in the termination log if its exit code is
the pod's, the exit code. Where only PeerLost remains a node was lost; where nothing failed, somebody deleted the pods.
"""

from __future__ import annotations

import itertools
import re
import signal
from dataclasses import dataclass, replace

from mptraining_api import events, outcomes
from mptraining_api.outcomes import Budget, Outcome
from mptraining_api.resolve.runtimes import complete, runtime_name
from mptraining_api.status import EventRecord, JobStatus, Phase, format_time
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.actions import Action, EndAttempt, Plan
from mptraining_operator.jobs.plan.capacity import avoided_nodes, gangs
from mptraining_operator.jobs.plan.deadlines import began_to_wait, has_never_run, run_policy
from mptraining_operator.jobs.plan.next_steps import sentence
from mptraining_operator.jobs.plan.snapshot import Limits, SeenBatchJob, SeenPod, Snapshot

# Seconds. A worker whose peer is evicted often fails in a collective before the peer's pod gets DisruptionTarget.
_DISRUPTED_WITHIN = 15.0
# Values of pod status.reason: the kubelet or the node controller terminated the pod.
_NODE_REASONS = ("NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeAffinity")
# The reason of DisruptionTarget by the pod garbage collector: the Node object was deleted.
_NODE_DELETED = "DeletionByPodGC"
_ADMISSION_REASONS = ("UnexpectedAdmissionError", "OutOf")
# Terminals show messages that pods wrote: terminal escape sequences and control characters are removed from them.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    message: str
    # Whether a pod is evidence for the outcome; False for a fallback.
    from_pod: bool = False
    # The node that may have caused it.
    node: str = ""


def find_verdict(batch_job: SeenBatchJob, pods: tuple[SeenPod, ...]) -> Verdict:
    """Return the cause of a failed attempt, from its Indexed Job and its remaining pods."""
    # Those that failed by themselves, rather than being deleted after a peer failed.
    failures = [pod for pod in pods if pod.failed and (pod.deletion is None or pod.disruption)]
    failures.sort(key=lambda pod: (pod.finished or batch_job.created, pod.index))
    deciding = next((pod for pod in failures if _outcome(pod).budget != Budget.UNDECIDED), None)
    disrupted = next((pod for pod in pods if pod.disruption and pod.exit_code != 0), None)
    if disrupted and (deciding is None or _disrupted_before(disrupted, deciding)):
        deciding = disrupted
    if deciding is not None:
        outcome = _outcome(deciding)
        node = avoided_nodes.suspected_node(deciding, outcome)
        return Verdict(outcome, _CONTROL.sub("", _describe(deciding)), from_pod=True, node=node)
    if failures:
        superseded = next((pod for pod in failures if _outcome(pod) == outcomes.SUPERSEDED), None)
        lost = f"worker {failures[0].index} lost a peer, and no remaining pod shows the cause"
        return Verdict(outcomes.NODE_LOST, _describe(superseded) if superseded else lost)
    by_other = next((pod for pod in pods if pod.phase == "Failed" and pod.exit_code == 0 and pod.other), None)
    if by_other is not None:
        message = f"worker {by_other.index} succeeded, but its pod failed and ended its peers: {by_other.other}"
        return Verdict(outcomes.CHILD_DELETED, message, from_pod=True)
    if batch_job.end_reason == "PodFailurePolicy":
        # The only rule is about DisruptionTarget (`resources.indexed_job`). An evicted pod may already be deleted.
        return Verdict(outcomes.PREEMPTED, f"a worker was evicted: {batch_job.end_message.partition(' matching ')[0]}")
    condition = f"{batch_job.end_reason}: {batch_job.end_message}".strip(": ")
    return Verdict(outcomes.CHILD_DELETED, f"a worker's pod was deleted ({condition or 'no message'})")


def _disrupted_before(disrupted: SeenPod, deciding: SeenPod) -> bool:
    if disrupted.disrupted_at is None or deciding.finished is None:
        return True
    return disrupted.disrupted_at <= deciding.finished + _DISRUPTED_WITHIN


def _outcome(pod: SeenPod) -> Outcome:
    if pod.disruption:
        return outcomes.NODE_LOST if pod.disruption == _NODE_DELETED else outcomes.PREEMPTED
    if pod.reason == "Evicted":
        # For pressure of the node the kubelet sets DisruptionTarget as well.
        return outcomes.STORAGE_LIMIT
    if pod.reason in _NODE_REASONS or pod.reason.startswith(_ADMISSION_REASONS):
        return outcomes.NODE_LOST
    if pod.exit_reason == "OOMKilled":
        return outcomes.OOM_KILLED
    last = _last_event(pod)
    if last is not None and last.exit_code == pod.exit_code:
        return outcomes.by_reason(last.reason)
    return outcomes.PROGRAM_FAILED if pod.exit_code is None else outcomes.by_exit_code(pod.exit_code)


def _last_event(pod: SeenPod) -> events.Finished | None:
    """Return the trainer's Finished event from the termination log, if present."""
    lines = pod.termination_message.strip().splitlines()
    last = events.parse(lines[-1]) if lines else None
    return last if isinstance(last, events.Finished) else None


def _describe(pod: SeenPod) -> str:
    """Describe the failure: worker, node, cause, and the next step where one is known."""
    where = f"worker {pod.index}" + (f" on node {pod.node}" if pod.node else "")
    if pod.disruption:
        return f"{where} was disrupted: {pod.disruption}" + (f" ({pod.message})" if pod.message else "")
    if pod.reason == "Evicted":
        return (
            f"{where} was evicted: {sentence(pod.message)} Files on its node are lost. Raise the volume's sizeLimit "
            "or podTemplate.resources.limits.ephemeral-storage, or write to a bucket or a claim (output.uri)."
        )
    if pod.reason and pod.exit_code is None:
        return f"{where} was ended by its node: {pod.reason}" + (f" ({pod.message})" if pod.message else "")
    last = _last_event(pod)
    # A trainer that failed without a child process, which the kernel killed, reports that itself.
    if pod.exit_reason == "OOMKilled" and last is None:
        return (
            f"{where} was killed for using more memory than its limit. Raise podTemplate.resources.limits.memory, "
            "or lower training.batchSize or data.shuffle.bufferSize, or set data.cache to None."
        )
    if last is not None:
        return f"{where}: {last.message}"
    # Without the trainer's Events, which are the last ones of a process without a Finished event.
    tail = "\n".join(line for line in pod.termination_message.splitlines() if events.parse(line) is None).strip()[-500:]
    # A pod whose other containers run on is deleted.
    container = f" --container {pod.waits_for}" if pod.waits_for else ""
    log = f" See kubectl logs {pod.name}{container}." if pod.terminated else ""
    return sentence(f"{where} ended {_exit(pod.exit_code)}" + (f": {tail}" if tail else "")) + log


def _exit(code: int | None) -> str:
    if code is None:
        return "without an exit code"
    # A shell's convention, which container runtimes follow: 128 + the number of the signal.
    name = signal.Signals(code - 128).name if code - 128 in set(signal.Signals) else None
    if name is None:
        return f"with exit code {code}"
    cause = ", an error in native code" if name in ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT") else ""
    return f"with exit code {code} ({name}{cause})"


def restart_backoff(status: JobStatus, limits: Limits, uid: str = "") -> float:
    """Return the backoff in seconds after the last attempt, doubled for each consecutive attempt of the same budget.

    After a released gang it depends on the `uid` of the job, see `capacity.gangs`.

    batch/v1 Jobs wait 10 s, 20 s, 40 s … up to 6 minutes for a failing program (kubernetes.io, "Pod backoff failure
    policy"); infrastructure failures start with a shorter backoff.
    """
    ended = [attempt for attempt in status.attempts or () if attempt.outcome]
    if ended and (releases := gangs.releases_in_a_row(ended)):
        return gangs.pause_seconds(limits.gang_release, uid, ended[-1].number, releases)
    budgets = [outcomes.by_reason(attempt.outcome or "").budget for attempt in ended]
    if not budgets or budgets[-1] == Budget.NONE:
        return 0.0
    in_a_row = len(list(itertools.takewhile(lambda budget: budget == budgets[-1], reversed(budgets))))
    first = limits.program_backoff if budgets[-1] == Budget.BACKOFF_LIMIT else limits.infrastructure_backoff
    return float(min(first * 2 ** (in_a_row - 1), limits.longest_backoff))


# Seconds. A watch stream with a longer delay has ended, and the next list arrives before its next event.
_POD_UPDATES_WITHIN = 30.0
# Seconds that containers which a webhook of the cluster added, such as a mesh proxy, may run after the trainer.
_OTHERS_END_WITHIN = 10.0
# Seconds. The Job controller may count all pods and never write the terminal condition: observed on Kubernetes 1.34
# after its API server was killed, with all pods counted as failed and no condition for minutes.
_CONDITION_WITHIN = 60.0


# The fate of the model of a job without output.uri, by the last Event of worker 0.
_HAND_OVER = {
    "": "; its model is gone with its pods, because spec.output.uri was not given",
    "Fetched": "; its model was fetched from worker 0",
    "NotFetched": "; its model was not fetched in time and is gone with its pods: give spec.output.uri to keep it",
}


# A program that calls os._exit(0) ends the trainer with it.
_NO_REPORT = (
    "worker 0 ended with exit code 0 without a report, so whether it trained is unknown. Remove os._exit from the "
    "program, or see the job's logs"
)


def attempt_ended(snapshot: Snapshot, status: JobStatus, now: float) -> Plan | None:
    """Finish the job if the current attempt succeeded; charge a failed attempt to its budget."""
    attempt = conditions.current_attempt(status)
    if attempt is None or attempt.outcome is not None:
        return None
    batch_job = snapshot.batch_job(attempt.number)
    if batch_job is None:
        if not conditions.is_true(status, "Running"):
            return None
        message = f"Job {snapshot.key.name}-{attempt.number} was deleted"
        return charge_budget(snapshot, status, outcomes.CHILD_DELETED, message, now)
    due = end_is_due(snapshot, batch_job)
    silent = due is not None and now >= due
    if batch_job.ended == "Complete":
        return _succeeded(snapshot, status, batch_job, now)
    if batch_job.ended == "Failed" or silent:
        return _failed(snapshot, status, batch_job, now)
    return None


def _has_output(snapshot: Snapshot) -> bool:
    job, cluster = snapshot.job, snapshot.limits.cluster
    if job is None or job.spec.output is not None:
        return job is not None
    return complete(cluster.runtimes or {}, runtime_name(job, cluster.default_runtimes)).output is not None


def _succeeded(snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob, now: float) -> Plan:
    message = f"attempt {batch_job.attempt} succeeded with {batch_job.parallelism} worker"
    message += "s" if batch_job.parallelism > 1 else ""
    message += _warnings(snapshot.pods_of(batch_job.attempt))
    if not _has_output(snapshot):
        chief = next((pod for pod in snapshot.pods_of(batch_job.attempt) if pod.index == 0), None)
        arrives_until = (batch_job.ended_at or now) + snapshot.limits.settle
        if chief is not None and not chief.terminated and chief.exit_code is None and now < arrives_until:
            # Pods arrive on another stream than the Job; the last Event of this one says whether the model was fetched.
            return Plan(wake_at=arrives_until)
        message += _HAND_OVER[chief.hand_over if chief else ""]
    message += _other_containers(snapshot.pods_of(batch_job.attempt))
    started = status.start_time or format_time(batch_job.started or batch_job.created)
    status = status.model_copy(update={"start_time": started})
    status = conditions.with_finished(status, outcomes.SUCCEEDED, message, now, snapshot.generation)
    return Plan(status=status, event_records=(EventRecord("Succeeded", message),))


def _other_containers(pods: tuple[SeenPod, ...]) -> str:
    pod = next((pod for pod in pods if pod.other), None)
    if pod is None:
        return ""
    deleted = "" if pod.terminated else ", and its pod is deleted"
    return f"; in the pod of worker {pod.index}, {pod.other}{deleted}"


def _warnings(pods: tuple[SeenPod, ...]) -> str:
    """Return the shortcomings of the result, by the last Event of worker 0."""
    chief = next((pod for pod in pods if pod.index == 0), None)
    last = _last_event(chief) if chief else None
    warnings = (last.warnings or ()) if last else (_NO_REPORT,) if chief and chief.exit_code == 0 else ()
    return "".join(f"; warning: {text}" for text in warnings)


def end_is_due(snapshot: Snapshot, batch_job: SeenBatchJob) -> float | None:
    """Return when a Job is treated as ended without a terminal condition.

    All its pods are counted, or a trainer has failed or all have succeeded in pods that other containers keep alive.
    """
    if batch_job.inactive:
        return None
    pods = snapshot.pods_of(batch_job.attempt)
    if any(not pod.terminated for pod in pods):
        alive = [pod for pod in pods if not pod.terminated and pod.deletion is None]
        ends = [pod.finished or 0.0 for pod in alive if pod.failed]
        if not ends and _all_trained(batch_job, pods):
            ends = [max(pod.finished or 0.0 for pod in pods)]
        return min(ends) + _OTHERS_END_WITHIN if ends else None
    counted = batch_job.failed > 0 or batch_job.succeeded >= batch_job.parallelism
    return batch_job.changed + _CONDITION_WITHIN if counted and batch_job.changed is not None else None


def _all_trained(batch_job: SeenBatchJob, pods: tuple[SeenPod, ...]) -> bool:
    """Return whether every trainer has succeeded, whatever its pod's other containers do."""
    return len(pods) >= batch_job.parallelism and all(pod.exit_code == 0 for pod in pods)


def _failed(snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob, now: float) -> Plan:
    wait_until = _wait_for_pods_until(snapshot, batch_job)
    if wait_until is not None and now < wait_until:
        return Plan(wake_at=wait_until)
    pods = snapshot.pods_of(batch_job.attempt)
    if batch_job.succeeded >= batch_job.parallelism or _all_trained(batch_job, pods):
        return _succeeded(snapshot, status, batch_job, now)
    verdict = find_verdict(batch_job, pods)
    status = conditions.with_attempt(status, node=verdict.node or None)
    charged = charge_budget(snapshot, status, verdict.outcome, verdict.message, now)
    records = avoided_nodes.event_records(status, verdict.node) if charged.restart else ()
    return replace(charged, event_records=(*charged.event_records, *records))


def _wait_for_pods_until(snapshot: Snapshot, batch_job: SeenBatchJob) -> float | None:
    """Return until when to wait for pod updates, which arrive on another stream than the Job; None if all arrived.

    A Job becomes Failed only after all its pods have terminated: a pod that appears to run is outdated, and its exit
    code decides the outcome. A missing pod was deleted, as peers are, or has not arrived yet: the wait is shorter, and
    happens only if no observed pod decides the outcome.
    """
    if batch_job.ended_at is None:
        return None
    pods = snapshot.pods_of(batch_job.attempt)
    if any(not pod.terminated for pod in pods):
        return batch_job.ended_at + _POD_UPDATES_WITHIN
    missing = len(pods) < batch_job.parallelism and batch_job.end_reason != "PodFailurePolicy"
    if missing and not find_verdict(batch_job, pods).from_pod:
        return batch_job.ended_at + snapshot.limits.settle
    return None


def charge_budget(snapshot: Snapshot, status: JobStatus, outcome: Outcome, message: str, now: float) -> Plan:
    """Record the outcome of the attempt; restart it if its retry budget allows, else fail the job."""
    limits = run_policy(snapshot)
    retries, generation = limits.infrastructure_retries, snapshot.generation
    counts = {
        Budget.BACKOFF_LIMIT: ("application_failures", limits.backoff_limit, "backoffLimit"),
        Budget.INFRASTRUCTURE_RETRIES: ("infrastructure_restarts", retries, "infrastructureRetries"),
    }
    field, limit, name = counts.get(outcome.budget, ("", 0, ""))
    used = ((getattr(status, field) or 0) if field else 0) + 1
    if field:
        status = status.model_copy(update={field: used})
    if used > limit:
        if field:
            message = f"{sentence(message)} No retry is left (spec.runPolicy.{name}: {limit})."
        status = conditions.with_finished(status, outcome, message, now, generation)
        return with_end(snapshot, status, EventRecord(outcome.reason, message, "Warning"))
    status = conditions.with_attempt_ended(status, outcome, message, now)
    status = conditions.with_waiting(status, Phase.RESTARTING, outcome.reason, message, now, generation)
    text = f"{sentence(message)} Restart {used} of {limit} (spec.runPolicy.{name})."
    wake = now + restart_backoff(status, snapshot.limits)
    return with_end(snapshot, status, EventRecord("Restarting", text, "Warning"), wake_at=wake, restart=outcome.reason)


def end_without_charge(
    snapshot: Snapshot, status: JobStatus, batch_job: SeenBatchJob, outcome: Outcome, message: str, now: float
) -> Plan:
    """Record the outcome of the attempt and restart it after `restart_backoff`, charged to no budget."""
    ended = conditions.with_attempt_ended(status, outcome, message, now)
    backoff = restart_backoff(ended, snapshot.limits, snapshot.uid)
    text = f"{sentence(message)} Attempt {(status.current_attempt or 0) + 1} starts in {backoff:.0f} s."
    status = with_uncharged_end(
        snapshot, status, batch_job, outcome, message, now, waiting_message=text, next_start=now + backoff
    )
    record = EventRecord(outcome.reason, text, "Warning")
    return with_end(snapshot, status, record, wake_at=now + backoff, restart=outcome.reason)


def with_uncharged_end(
    snapshot: Snapshot,
    status: JobStatus,
    batch_job: SeenBatchJob,
    outcome: Outcome,
    message: str,
    now: float,
    *,
    waiting_message: str = "",
    next_start: float | None = None,
) -> JobStatus:
    """Return the status after the end of an attempt that no budget counts.

    Until an attempt has run, pendingTimeoutSeconds counts over all of them, up to the `next_start`, by default now, but
    not the time in a queue. `waiting_message` is that of the job, by default the attempt's.
    """
    never_ran = has_never_run(status)
    waited = status.waited_seconds
    if never_ran:
        until = now if next_start is None else next_start
        more = 0 if batch_job.suspended else max(0, int(until - began_to_wait(status, batch_job)))
        waited = (waited or 0) + more
    status = conditions.with_attempt_ended(status, outcome, message, now)
    phase = Phase.PENDING if never_ran else Phase.RESTARTING
    shown = waiting_message or message
    status = conditions.with_waiting(status, phase, outcome.reason, shown, now, snapshot.generation)
    return status.model_copy(update={"waited_seconds": waited})


def with_end(
    snapshot: Snapshot, status: JobStatus, record: EventRecord, *, wake_at: float | None = None, restart: str = ""
) -> Plan:
    """Return the plan with that status and Event which terminates the current attempt."""
    actions = end_current_attempt(snapshot, status)
    return Plan(status=status, actions=actions, event_records=(record,), wake_at=wake_at, restart=restart)


def end_current_attempt(snapshot: Snapshot, status: JobStatus) -> tuple[Action, ...]:
    """Return the action that terminates the current attempt; empty if it has ended or is being deleted."""
    batch_job = snapshot.batch_job(status.current_attempt or 0)
    if batch_job is None or batch_job.ended or batch_job.deleting:
        return ()
    return (EndAttempt(batch_job.name, batch_job.uid),)
