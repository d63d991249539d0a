"""Parsers of API objects into the frozen values of a snapshot; missing fields get defaults.

An update that leaves the parsed value unchanged does not queue the job.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import msgspec
from pydantic import ValidationError

from mptraining_api import events
from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import API_VERSION, GROUP, KIND, MPTrainingJob, is_paused
from mptraining_api.status import SOURCE_CONTAINER, TRAINER_CONTAINER, JobStatus, Phase, parse_time
from mptraining_api.sweep.spec import SWEEP_KIND
from mptraining_api.sweep.status import SWEEP_UID
from mptraining_operator.jobs.plan.snapshot import SeenBatchJob, SeenPod
from mptraining_operator.jobs.plan.waiting import NAMESPACE_FULL, OUT_OF_SERVICE
from mptraining_operator.jobs.resources.queue_job import queue_placement
from mptraining_operator.jobs.watch import api_objects
from mptraining_operator.runtime.values import Key

RawObject = Mapping[str, Any]

# Waiting reasons of every container at its start.
_STARTING = ("ContainerCreating", "PodInitializing")
_LONGEST_NUMBER = 9
# The digits of an unsigned 64-bit number.
_LONGEST_VERSION = 20


_UNSCHEDULED = "FailedScheduling"


@dataclass(frozen=True, slots=True)
class StoredJob:
    """An MPTrainingJob as stored in the cache: JSON bytes, parsed only for a snapshot.

    `progress` is separate from `status`: it changes four times a minute and does not cause a reconcile.
    """

    key: Key
    uid: str
    version: int
    generation: int
    created: float
    deleting: bool
    spec: bytes
    status: bytes
    progress: bytes
    phase: str
    attempt: int
    # The workers it has taken, from its first attempt until it ends or is suspended; see the function `workers`.
    workers: int = 0
    paused: bool = False
    # progress.modelKeptUntil and progress.oomKills: unlike the rest of the progress they change the plan.
    model_kept_until: str = ""
    oom_kills: int = 0
    # The uid of the MPTrainingSweep that controls it, which makes it a trial; empty for none.
    sweep_uid: str = ""
    # The workers of its namespace that it waits for (limits.workersPerNamespace); 0 if it does not.
    awaited_workers: int = 0

    @property
    def ended(self) -> bool:
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def suspended(self) -> bool:
        return self.phase == Phase.SUSPENDED

    @property
    def work(self) -> tuple[object, ...]:
        """The fields that a plan depends on."""
        fixed = (self.uid, self.generation, self.deleting, self.spec, self.status, self.paused, self.sweep_uid)
        return (*fixed, self.model_kept_until, self.oom_kills)


def version_number(version: object) -> int:
    """Parse a resourceVersion to a number, which it is in every Kubernetes release; 0 if absent."""
    return max(0, _number(version, _LONGEST_VERSION))


def optional_time(time: str | None) -> float | None:
    """Parse metav1.Time or MicroTime to seconds since 1970; None if absent or out of Python's range, as year 0."""
    try:
        return parse_time(time) if time else None
    except (ValueError, OverflowError):
        return None


def job(raw: RawObject) -> StoredJob:
    metadata = raw["metadata"]
    status = dict(raw.get("status") or {})
    progress = status.pop("progress", None)
    return StoredJob(
        key=Key(sys.intern(metadata["namespace"]), metadata["name"]),
        uid=metadata["uid"],
        version=version_number(metadata.get("resourceVersion")),
        generation=int(metadata.get("generation", 0)),
        created=optional_time(metadata.get("creationTimestamp")) or 0.0,
        deleting="deletionTimestamp" in metadata,
        spec=msgspec.json.encode(raw.get("spec")),
        status=msgspec.json.encode(status),
        progress=b"" if progress is None else msgspec.json.encode(progress),
        phase=sys.intern(str(status.get("phase") or "")),
        attempt=_whole(status.get("currentAttempt")),
        workers=workers(status),
        paused=is_paused(metadata.get("annotations")),
        model_kept_until=str(progress.get("modelKeptUntil") or "") if isinstance(progress, dict) else "",
        oom_kills=_whole(progress.get("oomKills")) if isinstance(progress, dict) else 0,
        sweep_uid=sys.intern(_sweep_uid(metadata)),
        awaited_workers=(_whole(status.get("workers")) or 1) if _waits_for_room(status) else 0,
    )


def _sweep_uid(metadata: RawObject) -> str:
    references = metadata.get("ownerReferences") or ()
    sweeps = (owner for owner in references if owner.get("controller") and owner.get("kind") == SWEEP_KIND)
    return next((str(owner.get("uid")) for owner in sweeps if str(owner.get("apiVersion")).startswith(f"{GROUP}/")), "")


def _waits_for_room(status: RawObject) -> bool:
    return any(
        condition.get("type") == "Running" and condition.get("reason") == NAMESPACE_FULL
        for condition in status.get("conditions") or ()
    )


def workers(status: RawObject) -> int:
    """Return the workers that the job has taken: one per worker, none while it waits for workers or is suspended.

    It keeps them between two attempts, so that other jobs cannot take them during a restart, and in a queue, which may
    admit it at any time.
    """
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    ended = conditions.get("Finished", {}).get("status") == "True" or status.get("phase") == Phase.SUSPENDED
    return (
        0
        if ended
        or _waits_for_room(status)
        or not (_whole(status.get("currentAttempt")) or status.get("phase") == Phase.QUEUED)
        else _whole(status.get("workers"))
    )


def owner(metadata: api_objects.Metadata) -> Key | None:
    """Return the job in the labels of a Job or pod, or None without the label."""
    name = metadata.labels.job
    return Key(sys.intern(metadata.namespace), sys.intern(name)) if name else None


def batch_job(raw: api_objects.Job) -> SeenBatchJob:
    metadata, status = raw.metadata, raw.status
    end = next(
        (
            condition
            for condition in status.conditions
            # SuccessCriteriaMet and FailureTarget are set while pods still run; these two after all have terminated.
            if condition.type in ("Complete", "Failed") and condition.status == "True"
        ),
        None,
    )
    return SeenBatchJob(
        name=metadata.name,
        uid=metadata.uid,
        owner_uid=sys.intern(metadata.training_job),
        attempt=_number(metadata.labels.attempt),
        placement=queue_placement(json.loads(bytes(raw.spec.template))) if metadata.labels.queue_job else None,
        queue_uid=sys.intern(metadata.annotations.queue_job_uid or metadata.controlling_job),
        queue_digest=metadata.annotations.queue_digest,
        version=version_number(metadata.resource_version) if metadata.labels.queue_job else 0,
        created=optional_time(metadata.creation_timestamp) or 0.0,
        machine=max(0, _number(metadata.annotations.machine)),
        parallelism=1 if raw.spec.parallelism is None else raw.spec.parallelism,
        started=optional_time(status.start_time),
        # A resumed Job keeps its previous startTime until the controller sets the condition Suspended to False.
        suspended=bool(raw.spec.suspend)
        or any(condition.type == "Suspended" and condition.status == "True" for condition in status.conditions),
        deleting=metadata.deletion_timestamp is not None,
        active=status.active or 0,
        ready=status.ready or 0,
        succeeded=status.succeeded or 0,
        failed=status.failed or 0,
        ended=cast(Literal["", "Complete", "Failed"], end.type if end else ""),
        end_reason=sys.intern((end and end.reason) or ""),
        end_message=(end and end.message) or "",
        ended_at=optional_time(end.last_transition_time) if end else None,
        changed=_status_written(metadata),
        gang=sys.intern(metadata.annotations.gang),
    )


def _status_written(metadata: api_objects.Metadata) -> float | None:
    times = [optional_time(entry.time) for entry in metadata.managed_fields if entry.subresource == "status"]
    return max((time for time in times if time is not None), default=None)


_NO_CONDITION = api_objects.Condition("", "")


def pod(raw: api_objects.Pod) -> SeenPod:
    metadata, status = raw.metadata, raw.status
    conditions = {condition.type: condition for condition in status.conditions}
    disruption = conditions.get("DisruptionTarget", _NO_CONDITION)
    disrupted = disruption.status == "True"
    scheduled = conditions.get("PodScheduled", _NO_CONDITION)
    containers = _containers(raw)
    trainer = next(
        (container for container in containers if container.role == "trainer"),
        _Container("trainer", api_objects.ContainerStatus()),
    )
    end = _end(containers, trainer)
    waits_for, waiting = _waiting(containers, trainer)
    return SeenPod(
        name=metadata.name,
        uid=metadata.uid,
        job_uid=sys.intern(metadata.labels.job_uid),
        owner_uid=sys.intern(metadata.controller),
        attempt=_number(metadata.labels.attempt),
        index=_number(metadata.labels.completion_index),
        phase=_phase(status.phase),
        node=sys.intern(raw.spec.node_name or ""),
        deletion=optional_time(metadata.deletion_timestamp),
        disruption=(disruption.reason or "DisruptionTarget") if disrupted else "",
        disrupted_at=optional_time(disruption.last_transition_time) if disrupted else None,
        reason=status.reason or "",
        message=status.message or (disruption.message or "" if disrupted else ""),
        exit_code=end.exit_code,
        exit_reason=end.reason or "",
        termination_message=end.message or "",
        finished=optional_time(end.finished_at),
        hand_over=_hand_over(end),
        waiting=waiting.reason or "",
        waiting_message=waiting.message or "",
        waits_for=waits_for,
        image=sys.intern(trainer.status.image_id) if "@" in trainer.status.image_id else "",
        runs=trainer.state.running is not None,
        other=_other(containers, trainer),
        unscheduled=(scheduled.message or scheduled.reason or "Unschedulable") if scheduled.status == "False" else "",
        scheduled=optional_time(scheduled.last_transition_time) if scheduled.status == "True" else None,
    )


def unready(node: RawObject) -> bool:
    """Return whether the node is not Ready, nor tainted as out of service: then its pods may run, and only its kubelet
    ends them.

    With the taint the pod garbage collector marks pods that are being deleted as failed and removes them.
    """
    if any(taint.get("key") == OUT_OF_SERVICE for taint in node.get("spec", {}).get("taints") or ()):
        return False
    conditions = node.get("status", {}).get("conditions", ())
    return not any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def explains_wait(event: api_objects.Event) -> bool:
    """Return whether a Warning event may explain why containers do not run."""
    # The scheduler's message is in the pod's condition PodScheduled, and is old once the pod has a node.
    return event.reason != _UNSCHEDULED


def last_seen(event: api_objects.Event) -> float:
    """Return when the event happened last, in seconds since 1970; 0 if it does not say."""
    last = event.series.last_observed_time if event.series else None
    last = last or event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return optional_time(last) or 0.0


def _number(text: object, longest: int = _LONGEST_NUMBER) -> int:
    """Parse the number in a label; -1, which matches no attempt, if it is absent or not a number."""
    # Labels are user input: str.isdigit accepts superscripts, and int() raises for thousands of digits.
    plain = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= longest
    return int(str(text)) if plain else -1


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _phase(text: object) -> Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]:
    return text if text in ("Pending", "Running", "Succeeded", "Failed") else "Unknown"


class _Container(NamedTuple):
    """A container of a pod; `role` is that of the trainer, of an init container, of a sidecar, or of any other."""

    role: Literal["trainer", "init", "sidecar", "other"]
    status: api_objects.ContainerStatus

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def state(self) -> api_objects.ContainerState:
        return self.status.state

    @property
    def failure(self) -> api_objects.Terminated | None:
        """Its end, if it failed."""
        end = self.state.terminated
        return end if end is not None and end.exit_code else None

    @property
    def wait(self) -> api_objects.Waiting | None:
        """Its waiting state, if it is another than that of every container at its start."""
        wait = self.state.waiting
        return wait if wait is not None and wait.reason not in (*_STARTING, None) else None


def _containers(pod: api_objects.Pod) -> tuple[_Container, ...]:
    """Return the containers in the order of their start; ephemeral ones, for debugging, are not among them."""
    sidecars = {container.name for container in pod.spec.init_containers if container.restart_policy == "Always"}
    return (
        *(
            _Container("sidecar" if status.name in sidecars else "init", status)
            for status in pod.status.init_container_statuses
        ),
        *(
            _Container("trainer" if status.name == TRAINER_CONTAINER else "other", status)
            for status in pod.status.container_statuses
        ),
    )


def _started(trainer: _Container) -> bool:
    return trainer.state.running is not None or trainer.state.terminated is not None


def _end(containers: Sequence[_Container], trainer: _Container) -> api_objects.Terminated:
    """Return the end of the trainer, or of the init container that failed before it; an empty one if there is none."""
    if trainer.state.terminated is not None:
        return trainer.state.terminated
    failed = next(
        (container for container in containers if container.role == "init" and container.failure is not None), None
    )
    if failed is None or failed.failure is None:
        return api_objects.Terminated()
    end = failed.failure
    if failed.name == SOURCE_CONTAINER:
        return end
    # The exit codes of other init containers are not the trainer's.
    message = f"init container {failed.name!r} ended with exit code {end.exit_code}. {end.message or ''}".strip()
    return msgspec.structs.replace(end, exit_code=1, message=message)


def _hand_over(end: api_objects.Terminated) -> Literal["", "Fetched", "NotFetched"]:
    """Return what the last Event of a trainer that succeeded says about the model that it kept."""
    # Few pods keep a model: only their messages are parsed.
    if end.exit_code != 0 or "handOver" not in (end.message or ""):
        return ""
    event = events.parse(end.message or "")
    return (event.hand_over or "") if isinstance(event, events.Finished) else ""


def _waiting(containers: Sequence[_Container], trainer: _Container) -> tuple[str, api_objects.Waiting]:
    """Return the container that the trainer waits for, or that failed before it, by name if it is not the trainer, and
    its waiting state.
    """
    if _started(trainer):
        return "", api_objects.Waiting()
    for container in containers:
        if container.role == "other":
            continue
        runs = container.state.running is not None and (container.role == "init" or container.status.started is False)
        failed = container.role == "init" and container.failure is not None
        if container.wait is not None or runs or failed:
            return "" if container.role == "trainer" else container.name, container.wait or api_objects.Waiting()
    return "", api_objects.Waiting()


def _other(containers: Sequence[_Container], trainer: _Container) -> str:
    """Describe the first container that is not the trainer, which does not wait for it, and fails, waits or runs on."""
    ended = trainer.state.terminated is not None
    for container in containers:
        name = f"container {container.name!r}"
        if container.role == "other" and container.failure is not None:
            return f"{name} ended with exit code {container.failure.exit_code}"
        # The kubelet ends sidecars after the trainer.
        waits = container.role == "other" or (container.role == "sidecar" and _started(trainer) and not ended)
        if waits and container.wait is not None:
            return f"{name} does not run: {container.wait.reason}: {container.wait.message or 'no message'}"
        if container.role == "other" and ended and container.state.running is not None:
            return f"{name} runs on"
    return ""


_CONTAINERS = ("spec", "podTemplate", "initContainers")


def read_job(stored: StoredJob) -> tuple[MPTrainingJob | None, str]:
    """Return the job and a description of its problem.

    Unknown fields, as of a newer version, give both; an unreadable spec gives no job. The resource has no schema of
    init containers, so that an unknown field of theirs is a mistake and not one of a newer version.
    """
    metadata: dict[str, Any] = {"name": stored.key.name, "namespace": stored.key.namespace, "uid": stored.uid}
    if stored.sweep_uid:
        # By its owner, whatever became of the label.
        metadata["labels"] = {SWEEP_UID: stored.sweep_uid}
    head = json.dumps({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}).encode()
    text = head[:-1] + b',"spec":' + stored.spec + b"}"
    try:
        return MPTrainingJob.model_validate_json(text), ""
    except ValidationError as error:
        problem = _describe_problem(json.loads(stored.spec), metadata)
        if any(detail["loc"][:3] == _CONTAINERS for detail in error.errors(include_url=False)):
            return None, problem
    try:
        return MPTrainingJob.read(text), problem
    except ValidationError:
        return None, problem


def read_status(stored: StoredJob) -> tuple[JobStatus | None, str]:
    """Return the status with its progress, or None and the reason if this version cannot read it."""
    members = [stored.status[1:-1], b'"progress":' + stored.progress if stored.progress else b""]
    text = b"{" + b",".join(member for member in members if member) + b"}"
    try:
        return JobStatus.read(text), ""
    except ValidationError as error:
        return None, unreadable_status(error)


def unreadable_status(error: ValidationError) -> str:
    """Describe why this version cannot read a status."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in ("status", *first["loc"]))
    return f"{where}: {first['msg']}; was it written by another version?"


def _describe_problem(spec: Any, metadata: dict[str, Any]) -> str:
    """Describe the problem of a spec with the message of `mptj check`."""
    try:
        MPTrainingJob.parse({"metadata": metadata, "spec": spec})
    except InvalidSpec as problem:
        return str(problem)
    return "spec: it cannot be read"
