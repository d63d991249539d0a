"""The result of planning as frozen values: actions, event records, metrics. `apply` writes the status, then acts.

Actions are idempotent, also when two replicas execute the same one: names are deterministic, and deletions carry the
observed uid as a precondition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import EventRecord, JobStatus


@dataclass(frozen=True, slots=True)
class StartAttempt:
    """Create what is missing of the namespace's shared objects and the job's ConfigMap, then the Indexed Job.

    `job` is the frozen job; `machine` and `workers` are those of the attempt, as for `resolve.attempt.for_attempt`.
    `image` is what an earlier attempt ran, if it is not the frozen job's.
    """

    number: int
    job: ResolvedJob
    machine: int = 0
    workers: int | None = None
    image: str = ""

    @property
    def attempt_job(self) -> ResolvedJob:
        """The job of this attempt."""
        return for_attempt(self.job, machine=self.machine, workers=self.workers)


@dataclass(frozen=True, slots=True)
class StartProbe:
    """Create the Job whose pods ask for the machines with which an elastic attempt would grow.

    `job` is the frozen job and `machine` that of the attempt.
    """

    job: ResolvedJob
    machine: int
    pods: int


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create the PodGroup of an Indexed Job, which owns it, if it does not exist."""

    batch_job: str
    uid: str


@dataclass(frozen=True, slots=True)
class EndAttempt:
    """Delete an Indexed Job with foreground propagation; its workers save a checkpoint and exit."""

    batch_job: str
    uid: str


@dataclass(frozen=True, slots=True)
class ForgetAttempt:
    """Delete an Indexed Job that has ended, with background propagation to its pods."""

    batch_job: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod whose Indexed Job no longer exists.

    The Job is read from the API server first: Jobs and pods arrive on different watch streams, and a pod may arrive
    before its Job.
    """

    pod: str
    uid: str
    batch_job: str
    batch_job_uid: str


@dataclass(frozen=True, slots=True)
class DeleteJob:
    """Delete the MPTrainingJob, whose ttlSecondsAfterFinished has expired."""

    uid: str


@dataclass(frozen=True, slots=True)
class ReadJobFile:
    """Read the resolved job of all attempts from its ConfigMap, then plan again."""


@dataclass(frozen=True, slots=True)
class ReadNode:
    """Read whether a node is ready, then plan again."""

    node: str


@dataclass(frozen=True, slots=True)
class ReadEvents:
    """Read the newest Warning event about the Indexed Job or pod of that uid, then plan again."""

    about: str


@dataclass(frozen=True, slots=True)
class JoinQueue:
    """Create the Job that holds the job's place in its queue over all attempts.

    `start` is the attempt that it queues for, with the most workers; `digest` is that of what the queue admits.
    """

    start: StartAttempt
    digest: str = ""


@dataclass(frozen=True, slots=True)
class LeaveQueue:
    """Delete that Job, and with it its Workload."""

    queue_job: str
    uid: str


@dataclass(frozen=True, slots=True)
class ReportToQueue:
    """Write the status of that Job: Kueue keeps the quota while pods are active, and ends the Workload with the Job."""

    queue_job: str
    active: int
    ready: int
    ended: Literal["", "Complete", "Failed"] = ""
    # With `ended`: the reason and the message of the condition, and the workers that succeeded.
    reason: str = ""
    message: str = ""
    workers: int = 0
    # Seconds since 1970; Kueue removes startTime when it preempts the job.
    started: float | None = None
    # The observed ones of that Job; the version is a precondition, and a conflict ends the execution of the plan.
    uid: str = ""
    version: int = 0


Action = (
    JoinQueue
    | LeaveQueue
    | ReportToQueue
    | StartAttempt
    | StartProbe
    | CreatePodGroup
    | EndAttempt
    | ForgetAttempt
    | DeletePod
    | DeleteJob
    | ReadJobFile
    | ReadNode
    | ReadEvents
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The status to write, the actions, the Events to emit, and the time of the next reconcile.

    `status` None keeps the stored status. `status.progress` belongs to another writer and always equals the observed
    value. `wake_at` is in seconds since 1970.
    """

    status: JobStatus | None = None
    # job.json, whose digest `status` has: it is kept in the cache with the status, and the job is planned again.
    job_text: str = ""
    actions: tuple[Action, ...] = ()
    event_records: tuple[EventRecord, ...] = ()
    wake_at: float | None = None
    # The cause of the restart that this plan begins, for the metrics.
    restart: str = ""
    # Seconds from the creation of the job until its first attempt runs, in the plan that records it, for the metrics.
    first_run: float | None = None
