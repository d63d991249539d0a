"""How an attempt ended, judged by its first failure.

When one worker fails, Kubernetes ends its peers and collectives break: what comes later says nothing about the cause
(facts measured on Kubernetes 1.34: the peers of a failed worker leave with their preemption code).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mptraining_api import events, outcomes
from mptraining_api.outcomes import Budget, Outcome
from mptraining_operator.plan.snapshot import SeenBatchJob, SeenPod

# A worker whose peer is being evicted often dies of a broken collective before the peer's pod is marked.
_DISRUPTED_WITHIN = 15.0
# The kubelet or the node controller ended the pod, not its program (pod status.reason).
_NODE_REASONS = ("Evicted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting", "NodeAffinity")
_ADMISSION_REASONS = ("UnexpectedAdmissionError", "OutOf")
_FAIL_JOB_RULE = "rule at index 0"
# A pod's own words are shown on terminals: what colours them, clears them or types into them stays out of the status.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    message: str
    # Whether a pod shows it; else it is what remains when none does.
    seen: bool = False


def judge(batch_job: SeenBatchJob, pods: tuple[SeenPod, ...]) -> Verdict:
    """What ended the attempt, from its failed Indexed Job and what is left of its pods."""
    failures = sorted(
        (pod for pod in pods if _counts(pod)), key=lambda pod: (pod.finished or batch_job.created, pod.index)
    )
    deciding = next((pod for pod in failures if _budget(pod) != Budget.UNDECIDED), None)
    disrupted = next((pod for pod in pods if pod.disruption), None)
    if disrupted and (deciding is None or _in_time(disrupted, deciding)):
        deciding = disrupted
    if deciding is not None:
        return Verdict(_outcome(deciding), _CONTROL.sub("", _words(deciding)), seen=True)
    if failures:
        found = f"worker {failures[0].index} lost a peer, and no cause is left to see"
        return Verdict(outcomes.NODE_LOST, found)
    if batch_job.end_reason == "PodFailurePolicy" and _FAIL_JOB_RULE in batch_job.end_message:
        # After an eviction no pod is left.
        return Verdict(outcomes.PREEMPTED, f"a worker was evicted: {batch_job.end_message}")
    said = f"{batch_job.end_reason}: {batch_job.end_message}".strip(": ")
    return Verdict(outcomes.CHILD_DELETED, f"somebody deleted a worker's pod ({said or 'no words'})")


def _counts(pod: SeenPod) -> bool:
    """Whether the pod failed by itself, rather than being told to leave because another did."""
    return pod.phase == "Failed" and (pod.deletion is None or bool(pod.disruption))


def _in_time(disrupted: SeenPod, deciding: SeenPod) -> bool:
    if disrupted.disrupted_at is None or deciding.finished is None:
        return True
    return disrupted.disrupted_at <= deciding.finished + _DISRUPTED_WITHIN


def _budget(pod: SeenPod) -> Budget:
    return _outcome(pod).budget


def _outcome(pod: SeenPod) -> Outcome:
    if pod.disruption:
        return outcomes.NODE_LOST if pod.disruption == "NodeLost" else outcomes.PREEMPTED
    if pod.reason in _NODE_REASONS or pod.reason.startswith(_ADMISSION_REASONS):
        return outcomes.NODE_LOST
    if pod.exit_reason == "OOMKilled":
        return outcomes.OOM_KILLED
    last = _last_event(pod)
    if last is not None and last.exit_code == pod.exit_code:
        return outcomes.by_reason(last.reason)
    return outcomes.PROGRAM_FAILED if pod.exit_code is None else outcomes.by_exit_code(pod.exit_code)


def _last_event(pod: SeenPod) -> events.Finished | None:
    """What the trainer left in the termination log, if it had the time to."""
    lines = pod.last_words.strip().splitlines()
    last = events.parse(lines[-1]) if lines else None
    return last if isinstance(last, events.Finished) else None


def _words(pod: SeenPod) -> str:
    """Who, on which node, how, and the next step where one is known."""
    where = f"worker {pod.index}" + (f" on node {pod.node}" if pod.node else "")
    if pod.disruption:
        return f"{where} was disrupted: {pod.disruption}" + (f" ({pod.message})" if pod.message else "")
    if pod.reason and pod.exit_code is None:
        return f"{where} was ended by its node: {pod.reason}" + (f" ({pod.message})" if pod.message else "")
    if pod.exit_reason == "OOMKilled":
        return (
            f"{where} was killed for using more memory than its limit. Raise podTemplate.resources.limits.memory, "
            "or lower training.batchSize or data.shuffle.bufferSize."
        )
    last = _last_event(pod)
    if last is not None:
        return f"{where}: {last.message}"
    code = "without an exit code" if pod.exit_code is None else f"with exit code {pod.exit_code}"
    tail = pod.last_words.strip()[-500:]
    log = f"See kubectl logs {pod.name}."
    return f"{where} ended {code}" + (f": {tail}. {log}" if tail else f". {log}")
