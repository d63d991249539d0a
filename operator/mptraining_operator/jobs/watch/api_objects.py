"""Fields of Jobs, pods and sweeps that the operator reads, as types for msgspec: other fields of the JSON are skipped.

The decode of a pod's watch event takes a tenth of the time of `json.loads`. The names are those of the Kubernetes API
in snake case.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from mptraining_api.spec import KIND, PAUSED
from mptraining_operator.jobs.resources import names


class Labels(msgspec.Struct, frozen=True):
    """The labels of a job's children."""

    job: str | None = msgspec.field(default=None, name=names.JOB)
    job_uid: str = msgspec.field(default="", name=names.JOB_UID)
    attempt: str | None = msgspec.field(default=None, name=names.ATTEMPT)
    completion_index: str | None = msgspec.field(default=None, name=names.COMPLETION_INDEX)
    queue_job: str = msgspec.field(default="", name=names.QUEUE_JOB)


class Annotations(msgspec.Struct, frozen=True):
    paused: str = msgspec.field(default="", name=PAUSED)
    gang: str = msgspec.field(default="", name=names.GANG)
    machine: str | None = msgspec.field(default=None, name=names.MACHINE)
    queue_digest: str = msgspec.field(default="", name=names.QUEUE_DIGEST)
    queue_job_uid: str = msgspec.field(default="", name=names.QUEUE_JOB_UID)


class OwnerReference(msgspec.Struct, frozen=True):
    uid: str
    kind: str = ""
    controller: bool | None = None


class ManagedFields(msgspec.Struct, frozen=True):
    time: str | None = None
    subresource: str = ""


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    uid: str
    namespace: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Labels = Labels()
    annotations: Annotations = Annotations()
    owner_references: tuple[OwnerReference, ...] = ()
    managed_fields: tuple[ManagedFields, ...] = ()

    @property
    def controller(self) -> str:
        """The uid of the controlling owner; empty for none."""
        return next((owner.uid for owner in self.owner_references if owner.controller), "")

    @property
    def training_job(self) -> str:
        """The uid of the MPTrainingJob among its owners, whose controller may be a Job; without one, the controller."""
        return next((owner.uid for owner in self.owner_references if owner.kind == KIND), self.controller)

    @property
    def controlling_job(self) -> str:
        """The uid of the Job that controls it; empty for none."""
        return next((owner.uid for owner in self.owner_references if owner.controller and owner.kind == "Job"), "")


class EventSeries(msgspec.Struct, frozen=True, rename="camel"):
    last_observed_time: str | None = None


class ObjectReference(msgspec.Struct, frozen=True):
    uid: str = ""


class EventMetadata(msgspec.Struct, frozen=True, rename="camel"):
    creation_timestamp: str | None = None


class Event(msgspec.Struct, frozen=True, rename="camel"):
    """An event (core/v1); the writer sets one of its three times."""

    metadata: EventMetadata = EventMetadata()
    involved_object: ObjectReference = ObjectReference()
    reason: str = ""
    message: str = ""
    series: EventSeries | None = None
    last_timestamp: str | None = None
    event_time: str | None = None


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class JobSpec(msgspec.Struct, frozen=True):
    parallelism: int | None = 1
    suspend: bool | None = None
    # Parsed only for the Job of a queue.
    template: msgspec.Raw = msgspec.Raw(b"{}")


class JobStatus(msgspec.Struct, frozen=True, rename="camel"):
    start_time: str | None = None
    active: int | None = None
    ready: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    conditions: tuple[Condition, ...] = ()


class Job(msgspec.Struct, frozen=True):
    """A batch/v1 Job."""

    metadata: Metadata
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class Terminated(msgspec.Struct, frozen=True, rename="camel"):
    exit_code: int | None = None
    reason: str | None = None
    message: str | None = None
    finished_at: str | None = None


class Waiting(msgspec.Struct, frozen=True):
    reason: str | None = None
    message: str | None = None


class Running(msgspec.Struct, frozen=True):
    """The state of a container that runs; its time is not read."""


class ContainerState(msgspec.Struct, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    state: ContainerState = ContainerState()
    # Of a sidecar: whether its startup probe has succeeded.
    started: bool | None = None


class InitContainer(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    restart_policy: str | None = None


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str | None = None
    init_containers: tuple[InitContainer, ...] = ()


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: tuple[Condition, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


Kind = TypeVar("Kind", bound=msgspec.Struct)


def convert(answer: dict[str, Any], kind: type[Kind]) -> Kind:
    """Convert the API server's response to a write, which is a mapping."""
    # By way of JSON, because a Raw field takes nothing else.
    return msgspec.json.decode(msgspec.json.encode(answer), type=kind)
