"""What a plan says is to be done: values, carried out in their order by `apply`, status first.

Each action may be carried out twice, or by two replicas at once, with the effect of once: names are deterministic,
deletions carry the uid that was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import JobStatus


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """The job's ConfigMap, Service and NetworkPolicy where they are missing, then the attempt's Indexed Job."""

    number: int
    job: ResolvedJob


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Deletes an Indexed Job in the foreground: it is gone when its pods are. Its workers save and leave."""

    batch_job: str
    uid: str


@dataclass(frozen=True, slots=True)
class ForgetAttempt:
    """Deletes an Indexed Job that has ended, with its pods, in the background."""

    batch_job: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Deletes a pod that no Indexed Job answers for any more: asked of the API server first, because news of Jobs and
    of pods come by different ways, and a pod may be seen before its Job.
    """

    pod: str
    uid: str
    batch_job: str
    batch_job_uid: str


@dataclass(frozen=True, slots=True)
class FailPod:
    """Writes Failed with DisruptionTarget into the status of a pod whose node is lost; nothing else ends it."""

    pod: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Deletes the MPTrainingJob itself: its time to live is over."""

    uid: str


@dataclass(frozen=True, slots=True)
class ReadJobFile:
    """Asks for the frozen job of attempt 1; the plan is made anew with it."""


@dataclass(frozen=True, slots=True)
class ReadNode:
    """Asks whether a node is lost; the plan is made anew with the answer."""

    node: str


Action = StartAttempt | EndAttempt | ForgetAttempt | DeletePod | FailPod | DeleteJob | ReadJobFile | ReadNode


@dataclass(frozen=True, slots=True)
class EventRecord:
    """A Kubernetes event about the job, said once its status is written."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


@dataclass(frozen=True, slots=True)
class Loss:
    """Accelerator time lost to a restart, for the metrics: from an attempt's end until the next one ran."""

    accelerator: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """The status to write first, then what to do, what to say, and when to look again.

    `status` None leaves it alone; `status.progress` is another writer's and never differs from what was seen.
    `wake_at` in seconds since 1970.
    """

    status: JobStatus | None = None
    actions: tuple[Action, ...] = ()
    event_records: tuple[EventRecord, ...] = ()
    wake_at: float | None = None
    # The cause of a restart that begins with this plan, for the metrics.
    restart: str = ""
    losses: tuple[Loss, ...] = ()
