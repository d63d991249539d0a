"""What is known of one job at one moment, as frozen values: all that `plan` decides from.

Trimmed from what the API server sends (`trim`), kept in the `cache`, put together by it. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from mptraining_api.admin_limits import JobLimits
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import JobStatus


@dataclass(frozen=True, slots=True)
class Key:
    """Which job: what the queue, the cache and the logs call it."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class SeenPod:
    """One worker's pod. `exit_code` and what follows are of its first container that failed, if one did."""

    name: str
    uid: str
    job_uid: str
    # The Indexed Job that controls it; empty for an orphan.
    owner_uid: str
    attempt: int
    index: int
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    node: str = ""
    ready: bool = False
    # When its grace period ends; None while nobody deletes it.
    deletion: float | None = None
    # The reason and time of the condition DisruptionTarget; empty without.
    disruption: str = ""
    disrupted_at: float | None = None
    # status.reason and status.message: Evicted, NodeLost, …
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    # Error, OOMKilled, …
    exit_reason: str = ""
    # The last Event, from the termination log.
    last_words: str = ""
    finished: float | None = None
    # Why a container does not start: ImagePullBackOff, … and the kubelet's words.
    waiting: str = ""
    waiting_message: str = ""
    # The scheduler's words; empty when it is scheduled.
    unscheduled: str = ""

    @property
    def over(self) -> bool:
        """Whether its containers are known to have ended."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class SeenBatchJob:
    """The Indexed Job of one attempt."""

    name: str
    uid: str
    owner_uid: str
    attempt: int
    created: float
    parallelism: int = 1
    # None until it is let go on for the first time; while it is suspended again, what it was.
    started: float | None = None
    # By its queue, as Kueue does, at first or again: its pods leave, and it is neither failed nor over.
    suspended: bool = False
    deleting: bool = False
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    # Its terminal condition with reason and message.
    ended: Literal["", "Complete", "Failed"] = ""
    end_reason: str = ""
    end_message: str = ""
    ended_at: float | None = None
    # When its status was last written.
    changed: float | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A child, or the pods of a child, that the API server did not take: its words, and since when."""

    child: str
    message: str
    at: float
    # NameTaken: somebody else's object has the name. Refused: quota, policy. Invalid: it can never be taken.
    kind: Literal["NameTaken", "Refused", "Invalid"] = "Refused"


@dataclass(frozen=True, slots=True)
class Lookups:
    """What had to be asked for or was learnt by trying: in memory only, found again after a restart."""

    # The frozen job of attempt 1; None when it was not read yet.
    job_file: ResolvedJob | None = None
    # It was looked for and is not there.
    job_file_missing: bool = False
    refusal: Refusal | None = None
    # Nodes that were asked for: whether they are gone or not ready.
    lost_nodes: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Limits:
    """Those settings that a plan depends on, times in seconds; see `settings`."""

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    program_backoff: float = 10.0
    infrastructure_backoff: float = 2.0
    longest_backoff: float = 360.0
    settle: float = 5.0
    stuck_pod: float = 30.0
    jobs: JobLimits = field(default_factory=JobLimits)
    # The operator's own, refused to jobs; empty outside a cluster.
    operator_namespace: str = ""
    operator_account: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job with its children, as seen."""

    key: Key
    uid: str
    generation: int
    created: float
    # None when the spec cannot be read; `problem` says why.
    job: MPTrainingJob | None
    # None when the status cannot be read; nothing is done then.
    status: JobStatus | None
    problem: str = ""
    deleting: bool = False
    batch_jobs: tuple[SeenBatchJob, ...] = ()
    pods: tuple[SeenPod, ...] = ()
    # Pods of an earlier job of this name that are not over: they may still write to the same output.
    predecessors: tuple[SeenPod, ...] = ()
    # Why the controller manager could not create pods of an Indexed Job, by the Job's uid.
    pod_refusals: Mapping[str, Refusal] = field(default_factory=lambda: MappingProxyType({}))
    findings: Lookups = field(default_factory=Lookups)
    limits: Limits = field(default_factory=Limits)
    # Since when reports of progress are sure to be heard: an outage before is no worker's silence. None: not at all.
    reports_since: float | None = None
    # Of the other jobs of this namespace; counted only where nodesPerNamespace is set.
    nodes_beside: int = 0

    @property
    def suspend(self) -> bool:
        """Whether the user wants it suspended."""
        policy = self.job.spec.run_policy if self.job else None
        return bool(policy and policy.suspend)

    def batch_job(self, attempt: int) -> SeenBatchJob | None:
        """The Indexed Job of that attempt."""
        return next((each for each in self.batch_jobs if each.attempt == attempt), None)

    def pods_of(self, attempt: int) -> tuple[SeenPod, ...]:
        """The pods of that attempt, in the order of their index."""
        return tuple(sorted((pod for pod in self.pods if pod.attempt == attempt), key=lambda pod: (pod.index, pod.uid)))
