"""Snapshot of one job and its children as frozen values: the only input of `plan` besides the time.

`watch.parse` builds the parts from API objects; `watch.cache` stores and combines them. Times are in seconds since
1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from mptraining_api.admin_limits import JobLimits
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolve.runtime_settings import DEFAULT, Runtime
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import JobStatus, format_time
from mptraining_operator.jobs.resources import names
from mptraining_operator.jobs.resources.job_objects import Owner
from mptraining_operator.runtime.values import Key


@dataclass(frozen=True, slots=True)
class SeenPod:
    """One worker's pod.

    `exit_code`, `exit_reason`, `termination_message` and `finished` are those of the trainer, or of an init container
    that failed before it. Containers that a webhook of the cluster adds to the pod decide nothing.
    """

    name: str
    uid: str
    job_uid: str
    # The uid of the Indexed Job that controls it; empty for an orphan.
    owner_uid: str
    attempt: int
    index: int
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    node: str = ""
    # When its grace period ends; None if it is not being deleted.
    deletion: float | None = None
    # The reason and time of the condition DisruptionTarget.
    disruption: str = ""
    disrupted_at: float | None = None
    # status.reason and status.message: Evicted, NodeLost, …
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    # Error, OOMKilled, …
    exit_reason: str = ""
    # The last Event, from the termination log.
    termination_message: str = ""
    finished: float | None = None
    # Whether the model that worker 0 kept without output.uri was fetched; empty if it kept none or still keeps it.
    hand_over: Literal["", "Fetched", "NotFetched"] = ""
    # Why the trainer, or a container that it waits for, does not start: ImagePullBackOff, …, and the kubelet's message.
    waiting: str = ""
    waiting_message: str = ""
    # The container that waits, or the init container that runs, if it is not the job's.
    waits_for: str = ""
    # The trainer's image with its digest, if it was pulled from a registry.
    image: str = ""
    # Whether the trainer's container runs.
    runs: bool = False
    # The state of a container that is not the trainer, waits for nothing of it, and does not run or end with it.
    other: str = ""
    # The scheduler's message; empty when the pod is scheduled.
    unscheduled: str = ""
    # When it got its node.
    scheduled: float | None = None

    @property
    def starts_as_usual(self) -> bool:
        """Whether nothing about the pod needs a decision: it waits, starts or runs."""
        problems = (self.disruption, self.reason, self.waiting, self.unscheduled, self.exit_reason, self.other)
        return not (any(problems) or self.terminated or self.deletion is not None or self.exit_code is not None)

    @property
    def terminated(self) -> bool:
        """Whether all containers have terminated, by the pod's phase."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def failed(self) -> bool:
        """Whether the trainer failed, or something ended the pod before the trainer's end."""
        return bool(self.exit_code) or (self.phase == "Failed" and self.exit_code is None)


@dataclass(frozen=True, slots=True)
class SeenBatchJob:
    """The Indexed Job of one attempt."""

    name: str
    uid: str
    owner_uid: str
    attempt: int
    created: float
    # Of the Job that holds the job's place in its queue: see `resources.queue_job.queue_placement`; else None.
    placement: str | None = None
    # The uid of that Job, which controls the Jobs of the attempts; empty without one.
    queue_uid: str = ""
    # Of that Job: the digest of what the queue admits; empty if unknown.
    queue_digest: str = ""
    # Its metadata.resourceVersion; 0 if unknown.
    version: int = 0
    # The machine of the attempt, as for `resolve.attempt.for_attempt`.
    machine: int = 0
    parallelism: int = 1
    # status.startTime: of the Job that holds the place, None before the first admission.
    started: float | None = None
    # By Kueue, of the Job that holds the place; by another client, of an attempt's: its pods terminate.
    suspended: bool = False
    deleting: bool = False
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    # The terminal condition with its reason and message.
    ended: Literal["", "Complete", "Failed"] = ""
    end_reason: str = ""
    end_message: str = ""
    ended_at: float | None = None
    # When the status was last written.
    changed: float | None = None
    # The API that places all of its pods or none, see `resources.pod_groups`; empty for none.
    gang: str = ""

    @property
    def inactive(self) -> bool:
        """Whether it starts no more pods: it has ended, is suspended, or is being deleted."""
        return bool(self.suspended or self.ended or self.deleting)

    @property
    def is_probe(self) -> bool:
        """Whether it looks for machines for an elastic job and is no attempt."""
        return self.attempt == names.PROBE_ATTEMPT

    @property
    def state(self) -> SeenBatchJob:
        """The Job without counts of pods that have no effect on a plan."""
        all_ready = int(self.ready + self.succeeded >= self.parallelism)
        ready = self.ready if self.is_probe else all_ready
        return replace(self, active=0, ready=ready, started=None, changed=None, version=0)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A child, or the pods of a child, that the API server rejected: its message, and the time of the rejection."""

    child: str
    message: str
    at: float
    # NameTaken: another owner's object has the name. Refused: quota or policy. Invalid: no retry can succeed.
    # NoGang: the API server does not serve the job's gang scheduling. NoQueue: it has not the job's queue.
    kind: Literal["NameTaken", "Refused", "Invalid", "NoGang", "NoQueue"] = "Refused"


@dataclass(frozen=True, slots=True)
class SeenWarning:
    """The newest Warning event about an object when its events were read; an empty reason: there was none."""

    reason: str
    message: str
    read_at: float


@dataclass(frozen=True, slots=True)
class Lookups:
    """Results of API reads and of rejected creations; kept in memory only, looked up again after a restart."""

    # job.json, the resolved job of all attempts. None: it was not read yet. Empty: there is no ConfigMap.
    job_text: str | None = None
    refusal: Refusal | None = None
    # The uid of the Indexed Job whose PodGroup exists.
    pod_group_of: str = ""
    # By node that was read: whether only its kubelet, which does not report, can end its pods; see `parse.unready`.
    unready_nodes: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))
    # By the uid of an Indexed Job whose pods are missing, or of a pod whose containers do not start.
    warnings: Mapping[str, SeenWarning] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Limits:
    """The settings and constants that a plan depends on, times in seconds."""

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    # The first and the longest wait after failures of the program are those of a batch/v1 Job.
    program_backoff: float = 10.0
    infrastructure_backoff: float = 2.0
    longest_backoff: float = 360.0
    # For which a pod may be unscheduled before the status reports it: most pods are placed earlier.
    settle: float = 5.0
    # For which an elastic job waits for all its machines before it starts with those it got.
    elastic_wait: float = 30.0
    # After its grace period, until a pod is reported whose node is not ready.
    stuck_pod: float = 30.0
    # 0: half-placed gangs are never released.
    gang_release: float = 180.0
    # The operator's namespace and service account, which jobs may not use; empty outside a cluster.
    operator_namespace: str = ""
    operator_account: str = ""

    @property
    def jobs(self) -> JobLimits:
        """The limits on all jobs."""
        return (self.cluster.runtimes or {}).get(DEFAULT, Runtime()).limits


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job with its children, as observed."""

    key: Key
    uid: str
    generation: int
    created: float
    # None when the spec cannot be read; `problem` says why.
    job: MPTrainingJob | None
    # None when the status cannot be read; the plan then has no actions.
    status: JobStatus | None
    problem: str = ""
    deleting: bool = False
    batch_jobs: tuple[SeenBatchJob, ...] = ()
    pods: tuple[SeenPod, ...] = ()
    # The probe of an elastic job, which is no attempt; its pods are not observed.
    probe: SeenBatchJob | None = None
    # Pods of an earlier job of this name that are not over: they may still write to the same output.
    predecessors: tuple[SeenPod, ...] = ()
    lookups: Lookups = field(default_factory=Lookups)
    limits: Limits = field(default_factory=Limits)
    # Since when progress reports are received without interruption: earlier silence may be an outage of the operator.
    # None: progress reports are disabled.
    reports_since: float | None = None
    # Workers of the other jobs in this namespace.
    other_workers: int = 0
    # The Job that holds the job's place in its queue.
    queue_job: SeenBatchJob | None = None
    # The job's resourceVersion, the precondition of a status write.
    version: int = 0

    @property
    def owner(self) -> Owner:
        """The job as the owner of its children."""
        return Owner(self.key.namespace, self.key.name, self.uid, format_time(self.created))

    @property
    def queue_name(self) -> str | None:
        scheduling = self.job.spec.scheduling if self.job else None
        return scheduling.queue_name if scheduling else None

    @property
    def suspend(self) -> bool:
        policy = self.job.spec.run_policy if self.job else None
        return bool(policy and policy.suspend)

    def batch_job(self, attempt: int) -> SeenBatchJob | None:
        return next((batch_job for batch_job in self.batch_jobs if batch_job.attempt == attempt), None)

    def pods_of(self, attempt: int) -> tuple[SeenPod, ...]:
        """Return the pods of that attempt, ordered by index."""
        return tuple(sorted((pod for pod in self.pods if pod.attempt == attempt), key=lambda pod: (pod.index, pod.uid)))
