"""Parsers of API objects into the frozen values of a snapshot; missing fields get defaults.

An update that leaves the parsed value unchanged does not queue the job.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic import ValidationError

from mptraining_api.problems import InvalidSpec
from mptraining_api.spec import API_VERSION, KIND, MPTrainingJob
from mptraining_api.status import JobStatus, Phase, parse_time
from mptraining_operator.plan.snapshot import Key, SeenBatchJob, SeenPod, SeenWarning
from mptraining_operator.plan.waiting import NAMESPACE_FULL, OUT_OF_SERVICE
from mptraining_operator.resources import names

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
    # The nodes it has taken, from its first attempt until it ends or is suspended; see the function `nodes`.
    nodes: int = 0

    def same_work(self, other: StoredJob) -> bool:
        """Return whether `other` differs in no field that a plan depends on."""
        mine = (self.uid, self.generation, self.deleting, self.spec, self.status)
        return mine == (other.uid, other.generation, other.deleting, other.spec, other.status)


def resource_version(raw: RawObject) -> int:
    """Return metadata.resourceVersion as a number, which it is in every Kubernetes release; 0 if absent."""
    return max(0, _number(raw.get("metadata", {}).get("resourceVersion", ""), _LONGEST_VERSION))


def uid(raw: RawObject) -> str:
    return str(raw.get("metadata", {}).get("uid", ""))


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
        version=resource_version(raw),
        generation=int(metadata.get("generation", 0)),
        created=optional_time(metadata.get("creationTimestamp")) or 0.0,
        deleting="deletionTimestamp" in metadata,
        spec=_compact(raw.get("spec")),
        status=_compact(status),
        progress=b"" if progress is None else _compact(progress),
        phase=sys.intern(str(status.get("phase") or "")),
        attempt=_whole(status.get("currentAttempt")),
        nodes=nodes(status),
    )


def nodes(status: RawObject) -> int:
    """Return the nodes that the job has taken: one per worker, none while it waits for nodes or is suspended.

    It keeps them between two attempts, so that other jobs cannot take them during a restart, and in a queue, which may
    admit it at any time.
    """
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    ended = conditions.get("Finished", {}).get("status") == "True" or status.get("phase") == Phase.SUSPENDED
    waits = conditions.get("Running", {}).get("reason") == NAMESPACE_FULL
    return 0 if ended or waits or not _whole(status.get("currentAttempt")) else _whole(status.get("workers"))


def owner(raw: RawObject) -> Key | None:
    """Return the job in the labels of a Job or pod, or None without the label."""
    metadata = raw["metadata"]
    name = metadata.get("labels", {}).get(names.JOB)
    return Key(sys.intern(metadata["namespace"]), sys.intern(name)) if name else None


def batch_job(raw: RawObject) -> SeenBatchJob:
    metadata, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    conditions = status.get("conditions", ())
    end: RawObject = next(
        (
            condition
            for condition in conditions
            # SuccessCriteriaMet and FailureTarget are set while pods still run; these two after all have terminated.
            if condition["type"] in ("Complete", "Failed") and condition["status"] == "True"
        ),
        {},
    )
    return SeenBatchJob(
        name=metadata["name"],
        uid=metadata["uid"],
        owner_uid=sys.intern(_controller(metadata)),
        attempt=_number(metadata.get("labels", {}).get(names.ATTEMPT)),
        created=optional_time(metadata.get("creationTimestamp")) or 0.0,
        parallelism=_whole(spec.get("parallelism", 1)),
        started=optional_time(status.get("startTime")),
        # A resumed Job keeps its previous startTime until the controller sets the condition Suspended to False.
        suspended=bool(spec.get("suspend"))
        or any(each["type"] == "Suspended" and each["status"] == "True" for each in conditions),
        deleting="deletionTimestamp" in metadata,
        active=_whole(status.get("active")),
        ready=_whole(status.get("ready")),
        succeeded=_whole(status.get("succeeded")),
        failed=_whole(status.get("failed")),
        ended=cast(Literal["", "Complete", "Failed"], end.get("type", "")),
        end_reason=sys.intern(end.get("reason") or ""),
        end_message=end.get("message") or "",
        ended_at=optional_time(end.get("lastTransitionTime")),
        changed=_status_written(metadata),
    )


def _status_written(metadata: RawObject) -> float | None:
    writers = metadata.get("managedFields", ())
    times = [optional_time(each.get("time")) for each in writers if each.get("subresource") == "status"]
    return max((time for time in times if time is not None), default=None)


def pod(raw: RawObject) -> SeenPod:
    metadata, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    labels = metadata.get("labels", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    disruption = conditions.get("DisruptionTarget", {})
    disrupted = disruption.get("status") == "True"
    scheduled = conditions.get("PodScheduled", {})
    waiting_for_node = scheduled.get("status") == "False"
    failure = _first_failure(status)
    waiting = _waiting(status)
    exit_code = failure.get("exitCode")
    return SeenPod(
        name=metadata["name"],
        uid=metadata["uid"],
        job_uid=sys.intern(labels.get(names.JOB_UID, "")),
        owner_uid=sys.intern(_controller(metadata)),
        attempt=_number(labels.get(names.ATTEMPT)),
        index=_number(
            labels.get(names.COMPLETION_INDEX) or metadata.get("annotations", {}).get(names.COMPLETION_INDEX)
        ),
        phase=_phase(status.get("phase")),
        node=sys.intern(spec.get("nodeName") or ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        deletion=optional_time(metadata.get("deletionTimestamp")),
        disruption=(disruption.get("reason") or "DisruptionTarget") if disrupted else "",
        disrupted_at=optional_time(disruption.get("lastTransitionTime")) if disrupted else None,
        reason=status.get("reason") or "",
        message=status.get("message") or (disruption.get("message") or "" if disrupted else ""),
        exit_code=None if exit_code is None else int(exit_code),
        exit_reason=failure.get("reason") or "",
        termination_message=failure.get("message") or "",
        finished=optional_time(failure.get("finishedAt")),
        waiting=waiting.get("reason") or "",
        waiting_message=waiting.get("message") or "",
        unscheduled=(scheduled.get("message") or scheduled.get("reason") or "Unschedulable")
        if waiting_for_node
        else "",
    )


def unready(node: RawObject) -> bool:
    """Return whether the node is not Ready, nor tainted as out of service: then its pods may run, and only its kubelet
    ends them.

    With the taint the pod garbage collector marks pods that are being deleted as failed and removes them.
    """
    if any(taint.get("key") == OUT_OF_SERVICE for taint in node.get("spec", {}).get("taints") or ()):
        return False
    conditions = node.get("status", {}).get("conditions", ())
    return not any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def newest_warning(events: Iterable[RawObject], *, read_at: float) -> SeenWarning:
    """Return the newest of these Warning events, with empty texts if there is none."""

    def last_seen(raw: RawObject) -> float:
        series = raw.get("series") or {}
        last = series.get("lastObservedTime") or raw.get("lastTimestamp") or raw.get("eventTime")
        return optional_time(last or raw["metadata"].get("creationTimestamp")) or 0.0

    # The scheduler's message is in the pod's condition PodScheduled, and is old once the pod has a node.
    newest: RawObject = max((each for each in events if each.get("reason") != _UNSCHEDULED), key=last_seen, default={})
    return SeenWarning(
        reason=str(newest.get("reason") or ""), message=str(newest.get("message") or ""), read_at=read_at
    )


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _controller(metadata: RawObject) -> str:
    references = metadata.get("ownerReferences", ())
    return next((str(reference["uid"]) for reference in references if reference.get("controller")), "")


def _number(text: object, longest: int = _LONGEST_NUMBER) -> int:
    """Parse the number in a label; -1, which matches no attempt, if it is absent or not a number."""
    # Labels are user input: str.isdigit accepts superscripts, and int() raises for thousands of digits.
    plain = isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= longest
    return int(str(text)) if plain else -1


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _phase(text: object) -> Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]:
    return text if text in ("Pending", "Running", "Succeeded", "Failed") else "Unknown"


def _containers(status: RawObject) -> Iterator[RawObject]:
    yield from status.get("initContainerStatuses", ())
    yield from status.get("containerStatuses", ())


def _first_failure(status: RawObject) -> RawObject:
    """Return the terminated state of the first container that failed, or an empty mapping."""
    ends = [container.get("state", {}).get("terminated") for container in _containers(status)]
    failures = [end for end in ends if end and end.get("exitCode")]
    return min(failures, key=lambda end: optional_time(end.get("finishedAt")) or 0.0, default={})


def _waiting(status: RawObject) -> RawObject:
    """Return the waiting state of a container that cannot start, or an empty mapping."""
    states = (container.get("state", {}).get("waiting") for container in _containers(status))
    return next((state for state in states if state and state.get("reason") not in (*_STARTING, None)), {})


def read_job(stored: StoredJob) -> tuple[MPTrainingJob | None, str]:
    """Return the job and a description of its problem.

    Unknown fields, as of a newer version, give both; an unreadable spec gives no job.
    """
    metadata = {"name": stored.key.name, "namespace": stored.key.namespace, "uid": stored.uid}
    head = json.dumps({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}).encode()
    text = head[:-1] + b',"spec":' + stored.spec + b"}"
    try:
        return MPTrainingJob.model_validate_json(text), ""
    except ValidationError:
        problem = _describe_problem(json.loads(stored.spec), metadata)
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
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ("status", *first["loc"]))
        return None, f"{where}: {first['msg']}; was it written by another version?"


def _describe_problem(spec: Any, metadata: dict[str, str]) -> str:
    """Describe the problem of a spec with the message of `mptj check`."""
    try:
        MPTrainingJob.parse({"metadata": metadata, "spec": spec})
    except InvalidSpec as problem:
        return str(problem)
    return "spec: it cannot be read"
