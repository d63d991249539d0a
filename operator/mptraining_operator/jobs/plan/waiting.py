"""Reasons why the workers of an attempt do not run yet, with the message of the component that reports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mptraining_api.problems import Problem
from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolve.resolve import resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import TRAINER_CONTAINER, EventRecord, JobStatus, Phase
from mptraining_operator.jobs.plan import conditions, next_steps
from mptraining_operator.jobs.plan.actions import Plan
from mptraining_operator.jobs.plan.next_steps import sentence
from mptraining_operator.jobs.plan.snapshot import Refusal, SeenBatchJob, SeenPod, SeenWarning, Snapshot
from mptraining_operator.jobs.resources import names
from mptraining_operator.jobs.resources.indexed_job import trainer_resources

# Waiting reasons of the kubelet for an image that it cannot pull.
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
# Waiting reasons of every container at its start.
_USUAL = ("ContainerCreating", "PodInitializing", "")
# Reasons of the kubelet's and the attach controller's events about a volume.
_VOLUME = ("FailedMount", "FailedAttachVolume")
# Events are read for a start that takes longer than this multiple of `Limits.settle`: a list of events costs the API
# server more than a watch of pods, and most starts need none.
_FIRST_READ = 3.0
# Seconds; the intervals between two reads double up to it.
_LONGEST_READ_INTERVAL = 300.0
# Seconds after which a start that nothing has explained is described by what the pods show.
_SLOW = 45.0

_REFUSED = {
    "NameTaken": ("ChildNameTaken", "Delete that object, or give the job another name."),
    "Refused": ("ChildRefused", ""),
    "Invalid": ("InvalidSpec", "Fix the field that the API server names, and apply the job again."),
    "NoGang": ("GangNotServed", "Install it, or choose another scheduling.gang."),
    "NoQueue": ("QueueNotServed", "Install Kueue, create the queue, or correct scheduling.queueName."),
}


# Seconds between attempts to create a rejected child: a quota is rarely freed soon.
_SHORTEST_RETRY = 2.0
_LONGEST_RETRY = 60.0
# Reported before an attempt starts: the limit workersPerNamespace is reached.
NAMESPACE_FULL = "NamespaceFull"
# Reported while pods of a node that is not ready are past their grace period.
NODE_NOT_READY = "NodeNotReady"
# Reported while pods of a ready node are past their grace period.
PODS_DO_NOT_END = "PodsDoNotEnd"
# Reported without an Event: a busy cluster starts many jobs slowly at once.
STARTS_SLOWLY = "StartsSlowly"
# The taint by which an administrator declares that no process of the node runs (Kubernetes, "Non-graceful node
# shutdown").
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


@dataclass(frozen=True, slots=True)
class Wait:
    phase: Phase
    reason: str
    message: str


def waiting_reason(snapshot: Snapshot, batch_job: SeenBatchJob | None, now: float) -> Wait:
    """Return phase, reason and message of an attempt that does not run; `batch_job` is None before its creation."""
    status = snapshot.status
    first = status and ((status.current_attempt or 1) == 1 or status.waited_seconds is not None)
    phase = Phase.PENDING if first else Phase.RESTARTING
    stuck = pods_do_not_end(snapshot, now)
    if stuck is not None:
        return stuck
    if batch_job is None:
        return _of_children(snapshot, phase)
    if batch_job.suspended:
        who = f"the client that suspended Job {batch_job.name}"
        return Wait(Phase.QUEUED, "Queued", f"waiting for {who} to admit attempt {batch_job.attempt}")
    if batch_job.gang and snapshot.lookups.refusal is not None:
        # No PodGroup: the scheduler leaves the pods without a node.
        return _of_children(snapshot, phase)
    return _of_pods(snapshot, batch_job, phase, now)


def node_not_ready(snapshot: Snapshot, now: float) -> Wait | None:
    """Describe the wait for pods past their grace period on nodes that are not ready; None if there are none.

    A kubelet that does not report may have containers that still write checkpoints: the next attempt waits for them
    until the kubelet is back, or the administrator declares that the machine is gone.
    """
    known = snapshot.lookups.unready_nodes
    stuck = {
        pod.node
        for pod in (*snapshot.pods, *snapshot.predecessors)
        if pod.node and not pod.terminated and pod.deletion is not None
        if now >= pod.deletion + snapshot.limits.stuck_pod
    }
    unready = sorted(node for node in stuck if known.get(node))
    if stuck and (not unready or stuck - known.keys()):
        # A node has to be read again, or its pods are about to end: the message stays for a moment.
        return _previous(snapshot, NODE_NOT_READY)
    if not unready:
        return None
    nodes = " ".join(unready)
    message = (
        f"pods do not end, because their node is not ready: {nodes}. Their processes may still write checkpoints. "
        f"If the machine is gone: kubectl taint nodes {nodes} {OUT_OF_SERVICE}=nodeshutdown:NoExecute, "
        f"or kubectl delete node {nodes}"
    )
    return Wait(_phase_after(snapshot), NODE_NOT_READY, message)


def pods_do_not_end(snapshot: Snapshot, now: float) -> Wait | None:
    """Describe the wait for pods past their grace period, on any node; None if there are none."""
    unready = node_not_ready(snapshot, now)
    pod = next((pod for pod in _ending(snapshot) if now >= (pod.deletion or now) + 2 * snapshot.limits.stuck_pod), None)
    if unready is not None or pod is None:
        return unready
    message = (
        f"pod {pod.name} was deleted and does not end: a finalizer or a container keeps it. It shows both: "
        f"kubectl get pod {pod.name} --namespace {snapshot.key.namespace} --output yaml"
    )
    return Wait(_phase_after(snapshot), PODS_DO_NOT_END, message)


def _phase_after(snapshot: Snapshot) -> Phase:
    ran = snapshot.status is not None and snapshot.status.phase in (Phase.RUNNING, Phase.RESTARTING)
    return Phase.RESTARTING if ran else Phase.PENDING


def next_stuck(snapshot: Snapshot, now: float) -> float | None:
    """Return when a pod that is being deleted is reported as one that does not end."""
    times = [(pod.deletion or now) + 2 * snapshot.limits.stuck_pod for pod in _ending(snapshot)]
    return min((at for at in times if at > now), default=None)


def _ending(snapshot: Snapshot) -> tuple[SeenPod, ...]:
    """Return the pods that are being deleted, and whose end the next attempt waits for."""
    deleting = {job.uid for job in snapshot.batch_jobs if job.deleting and not job.ended}
    pods = (*snapshot.pods, *snapshot.predecessors)
    return tuple(pod for pod in pods if pod.deletion and (pod.owner_uid in deleting or not pod.terminated))


def _of_children(snapshot: Snapshot, phase: Phase) -> Wait:
    refusal = snapshot.lookups.refusal
    if refusal is not None:
        return refused(refusal, phase, snapshot.key.namespace)
    # Without pod names or counts: otherwise each pod that terminates would cause a status write.
    if snapshot.predecessors:
        pods = f"kubectl get pods -l {names.JOB}={snapshot.key.name}"
        message = (
            f"pods of an earlier job of this name are still terminating ({pods}); this one starts when they are gone"
        )
        return Wait(phase, "EarlierJobEnds", message)
    attempt = snapshot.status.current_attempt if snapshot.status else None
    if attempt is None:
        return Wait(phase, "Starting", "earlier pods are still terminating; attempt 1 starts when they are gone")
    return Wait(phase, "Starting", f"attempt {attempt} is being created")


def refused(refusal: Refusal, phase: Phase, namespace: str) -> Wait:
    """Describe a child that the API server rejected, with the next step."""
    reason, step = _REFUSED[refusal.kind]
    step = step or next_steps.of_refusal(refusal.message, namespace)
    return Wait(phase, reason, f"{refusal.child}: {sentence(refusal.message)} {step}")


def with_wait(
    snapshot: Snapshot, status: JobStatus, wait: Wait, now: float, event_type: Literal["Normal", "Warning"] = "Normal"
) -> Plan:
    """Return the plan of a job that waits before its next attempt: its status, and an Event for a new reason."""
    new = wait.reason != "Starting" and is_new(status, wait.reason)
    if conditions.is_true(status, "Suspended"):
        status = conditions.with_resumed(status, now, snapshot.generation)
    after = conditions.with_waiting(status, wait.phase, wait.reason, wait.message, now, snapshot.generation)
    return Plan(status=after, event_records=(EventRecord(wait.reason, wait.message, event_type),) if new else ())


def retry_at(refusal: Refusal, began: float) -> float:
    """Return when to create a rejected child again; the delay grows with the time since the first try `began`."""
    return refusal.at + min(max((refusal.at - began) / 2, _SHORTEST_RETRY), _LONGEST_RETRY)


def _of_pods(snapshot: Snapshot, batch_job: SeenBatchJob, phase: Phase, now: float) -> Wait:
    pods = snapshot.pods_of(batch_job.attempt)
    workers = f"of {batch_job.parallelism} workers"
    refusal = snapshot.lookups.warnings.get(batch_job.uid)
    if refusal is not None and refusal.reason and len(pods) < batch_job.parallelism:
        message = refusal.message.removeprefix("(combined from similar events): ").removeprefix("Error creating: ")
        step = next_steps.of_refusal(message, snapshot.key.namespace)
        return Wait(phase, "PodsRefused", f"{len(pods)} {workers} could be created: {sentence(message)} {step}")
    waits = [pod for pod in pods if pod.waiting not in _USUAL]
    if waits:
        return _container_waits(snapshot, phase, min(waits, key=lambda pod: pod.waiting not in _IMAGE))
    for pod in pods:
        warning = snapshot.lookups.warnings.get(pod.uid)
        if warning is not None and warning.reason and _starts_slowly(pod):
            return _not_starting(snapshot, phase, pod, warning)
    unscheduled = [pod for pod in pods if pod.unscheduled]
    began = _began(batch_job, pods)
    # Every pod is unscheduled for a moment: report it only after `settle` seconds.
    if unscheduled and now >= began + snapshot.limits.settle:
        why = unscheduled[0].unscheduled
        text = f"{len(unscheduled)} {workers}: {sentence(why)} {_placement(snapshot, batch_job, why)}"
        return Wait(phase, "Unschedulable", text.rstrip())
    if now >= began + _SLOW and (text := _slow(snapshot, batch_job, pods)):
        return Wait(phase, STARTS_SLOWLY, text)
    # The containers start: a message that is already in the status is not worth another write.
    before = _previous(snapshot, "Starting")
    return before or Wait(phase, "Starting", f"attempt {batch_job.attempt} is being created")


def _began(batch_job: SeenBatchJob, pods: tuple[SeenPod, ...]) -> float:
    """Return since when the pods start: their creation, or the time at which the last of them got its node."""
    starts = [pod.scheduled for pod in pods if pod.scheduled is not None and pod.phase == "Pending"]
    return max([batch_job.started or batch_job.created, *starts])


def _container_waits(snapshot: Snapshot, phase: Phase, pod: SeenPod) -> Wait:
    name = f"container {pod.waits_for!r}: " if pod.waits_for else ""
    text = sentence(f"worker {pod.index}: {name}{pod.waiting}: {pod.waiting_message or 'no message'}")
    if pod.waiting in _IMAGE and not pod.waits_for:
        job = _frozen(snapshot)
        return Wait(phase, "ImagePullFailed", f"{text} {next_steps.of_image((job and job.image) or '')}")
    if pod.waiting in _IMAGE:
        step = "Check its image in podTemplate.initContainers, or in the webhook that adds it."
        return Wait(phase, "ImagePullFailed", f"{text} {step}")
    step = next_steps.of_container(text, snapshot.key.namespace, pod.name, pod.waits_for or TRAINER_CONTAINER)
    return Wait(phase, "ContainerNotStarting", f"{text} {step}")


def _slow(snapshot: Snapshot, batch_job: SeenBatchJob, pods: tuple[SeenPod, ...]) -> str:
    """Describe a start that neither the status of a pod nor an event explains."""
    namespace = f"--namespace {snapshot.key.namespace}"
    if len(pods) < batch_job.parallelism:
        return (
            f"{len(pods)} of {batch_job.parallelism} workers were created. Its events say why: "
            f"kubectl describe job {batch_job.name} {namespace}"
        )
    for pod in pods:
        if pod.phase != "Pending" or pod.runs:
            continue
        if not pod.node:
            scheduling = snapshot.job.spec.scheduling if snapshot.job else None
            name = (scheduling and scheduling.scheduler_name) or "the gang's or the cluster's default"
            return (
                f"worker {pod.index}: no scheduler has tried to place it. Does the scheduler run "
                f"(scheduling.schedulerName: {name})? More: kubectl describe pod {pod.name} {namespace}"
            )
        if pod.waits_for:
            return (
                f"worker {pod.index} waits for its init container {pod.waits_for!r}, which runs. "
                f"Its output: kubectl logs {pod.name} --container {pod.waits_for} {namespace}"
            )
        return (
            f"worker {pod.index} on node {pod.node}: its containers are being created; a large image takes minutes. "
            f"More: kubectl describe pod {pod.name} {namespace}"
        )
    return ""


def _placement(snapshot: Snapshot, batch_job: SeenBatchJob, message: str) -> str:
    """Return the next step for workers without a node, with the labels and resources that they ask for."""
    job = _frozen(snapshot)
    if job is None:
        return ""
    template = job.pod_template
    placement = for_attempt(job, machine=batch_job.machine).placement
    terms = placement.node_affinity or ()
    labels = {
        expression["key"]: "|".join(expression.get("values", ("*",)))
        for term in terms[:1]
        for expression in term.get("matchExpressions", ())
    }
    selector = {**labels, **((template and template.node_selector) or {}), **placement.node_selector}
    resources = trainer_resources(template, placement)
    return next_steps.of_placement(message, snapshot.key.namespace, selector, resources["requests"])


def _frozen(snapshot: Snapshot) -> ResolvedJob | None:
    try:
        if snapshot.lookups.job_text:
            return ResolvedJob.read(snapshot.lookups.job_text)
        return resolve(snapshot.job, snapshot.limits.cluster) if snapshot.job else None
    except Problem:
        return None


def trainers_run(snapshot: Snapshot, batch_job: SeenBatchJob) -> bool:
    """Return whether every trainer runs, also where another container keeps a pod from being ready."""
    if batch_job.ready + batch_job.succeeded >= batch_job.parallelism:
        return True
    return sum(pod.runs for pod in snapshot.pods_of(batch_job.attempt)) >= batch_job.parallelism


def other_container(snapshot: Snapshot, batch_job: SeenBatchJob) -> tuple[str, str]:
    """Return the worker whose pod has a container that fails or waits while the trainers run, and its state."""
    pod = next((pod for pod in snapshot.pods_of(batch_job.attempt) if pod.other and pod.runs), None)
    return (f"worker {pod.index}", pod.other) if pod else ("", "")


def _starts_slowly(pod: SeenPod) -> bool:
    """Return whether the pod has a node and its status does not show why its containers do not run."""
    return pod.phase == "Pending" and bool(pod.node) and pod.waiting in _USUAL and not pod.runs


def _not_starting(snapshot: Snapshot, phase: Phase, pod: SeenPod, warning: SeenWarning) -> Wait:
    text = sentence(f"worker {pod.index}: {warning.reason}: {warning.message}")
    if warning.reason in _VOLUME:
        step = "Create what is missing, or correct spec.source or podTemplate.volumes."
        return Wait(phase, "VolumeNotMounted", f"{text} {step}")
    step = next_steps.of_container(text, snapshot.key.namespace, pod.name, pod.waits_for or TRAINER_CONTAINER)
    return Wait(phase, "ContainerNotStarting", f"{text} {step}")


def next_event_read(snapshot: Snapshot, batch_job: SeenBatchJob) -> tuple[float | None, str]:
    """Return when to read the events about which object (uid) that may explain why not all workers run.

    None and an empty text if their status explains it.
    """
    pods = snapshot.pods_of(batch_job.attempt)
    slow = next((pod.uid for pod in pods if _starts_slowly(pod)), None)
    about = batch_job.uid if len(pods) < batch_job.parallelism else slow
    if about is None or batch_job.suspended or batch_job.ended:
        return None, ""
    began = _began(batch_job, pods)
    first = _FIRST_READ * snapshot.limits.settle
    read = snapshot.lookups.warnings.get(about)
    if read is None:
        return began + first, about
    return read.read_at + min(max(first, read.read_at - began), _LONGEST_READ_INTERVAL), about


def next_look(snapshot: Snapshot, batch_job: SeenBatchJob, now: float) -> float | None:
    """Return when to look at an attempt again whose workers still start; the intervals double."""
    if batch_job.suspended or batch_job.ended:
        return None
    began = _began(batch_job, snapshot.pods_of(batch_job.attempt))
    first = _FIRST_READ * snapshot.limits.settle
    return began + first if now < began + first else now + min(max(first, now - began), _LONGEST_READ_INTERVAL)


def is_new(status: JobStatus, reason: str) -> bool:
    """Return whether the job did not wait for that reason before."""
    before = conditions.condition(status, "Running")
    return before is None or before.reason != reason


def _previous(snapshot: Snapshot, reason: str) -> Wait | None:
    """Return what the status says, if it waits for that reason."""
    if snapshot.status is None or snapshot.status.phase is None:
        return None
    before = conditions.condition(snapshot.status, "Running")
    if before is None or before.status != "False" or before.reason != reason:
        return None
    return Wait(snapshot.status.phase, before.reason, before.message)


def namespace_full(phase: Phase, workers: int, most: int) -> Wait:
    """Describe a job that waits for workers of its namespace; without the number in use, which changes frequently."""
    message = (
        f"{workers} worker{'s' if workers > 1 else ''} would be more than the {most} of this namespace "
        "(runtimes.default.limits.workersPerNamespace): it starts when other jobs have ended, whichever job fits first"
    )
    return Wait(phase, NAMESPACE_FULL, message)


def unschedulable_at(snapshot: Snapshot, batch_job: SeenBatchJob) -> float | None:
    """Return when an unscheduled pod is reported, or None if all pods are scheduled."""
    if batch_job.suspended or not any(pod.unscheduled for pod in snapshot.pods_of(batch_job.attempt)):
        return None
    return (batch_job.started or batch_job.created) + snapshot.limits.settle
