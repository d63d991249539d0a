"""A job in a simulated cluster: what the operator observes of it, and what the operator's actions change."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import EventRecord, JobStatus
from mptraining_operator.jobs.plan.actions import (
    Action,
    JoinQueue,
    LeaveQueue,
    Plan,
    ReadEvents,
    ReadJobFile,
    ReadNode,
    ReportToQueue,
    StartAttempt,
)
from mptraining_operator.jobs.plan.plan import plan
from mptraining_operator.jobs.plan.snapshot import Limits, Lookups, SeenBatchJob, SeenPod, SeenWarning, Snapshot
from mptraining_operator.jobs.resources.job_objects import job_digest
from mptraining_operator.runtime.values import Key
from tests.fakes import with_image

BEGIN = 1_767_225_600.0
LIMITS = Limits(cluster=ClusterSettings(runtimes=with_image("trainer:test")))


@dataclass
class SimulatedJob:
    """`now` is in seconds since the creation of the job; subclasses give the job, its pods, and machines."""

    now: float = 0.0
    # The MPTrainingJob may be deleted and created again.
    uid: str = "uid"
    limits: Limits = LIMITS
    other_workers: int = 0
    status: JobStatus = field(default_factory=JobStatus)
    lookups: Lookups = field(default_factory=Lookups)
    # The text in the ConfigMap of the resolved job.
    file: str = ""
    jobs: dict[str, SeenBatchJob] = field(default_factory=dict)
    pods: dict[str, SeenPod] = field(default_factory=dict)
    # The Job that holds the job's place in its queue over all attempts.
    place: SeenBatchJob | None = None
    probe: SeenBatchJob | None = None
    lost_nodes: set[str] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def time(self) -> float:
        return BEGIN + self.now

    @property
    def job(self) -> MPTrainingJob:
        raise NotImplementedError

    def snapshot(self) -> Snapshot:
        pods = tuple(self.pods.values())
        return Snapshot(
            key=Key("team", "flowers"),
            uid=self.uid,
            generation=1,
            created=BEGIN,
            job=self.job,
            status=self.status,
            batch_jobs=tuple(self.jobs.values()),
            pods=tuple(pod for pod in pods if pod.job_uid == self.uid),
            predecessors=tuple(pod for pod in pods if pod.job_uid != self.uid and not pod.terminated),
            probe=self.probe,
            queue_job=self.place,
            lookups=self.lookups,
            limits=self.limits,
            other_workers=self.other_workers,
        )

    def reconcile(self, *, stop_after: int | None = None) -> Plan:
        """Apply one plan, after an intent also the next one; after `stop_after` actions the operator is killed."""
        found = plan(self.snapshot(), self.time)
        for record in found.event_records:
            self.hear(record)
        if found.status is not None:
            self.status = JobStatus.read(found.status.to_json())
        if found.job_text:
            assert job_digest(found.job_text) == self.status.job_digest
            assert not any(isinstance(action, StartAttempt) for action in found.actions), "created with its intent"
            self.learn(job_text=found.job_text, refusal=None)
        for action in found.actions[:stop_after]:
            self.act(action)
        return self.reconcile(stop_after=stop_after) if found.job_text and stop_after != 0 else found

    def settle(self) -> float | None:
        """Apply plans until nothing is left to do; return when to plan again."""
        for _ in range(20):
            found = self.reconcile()
            if found.status is None and not found.actions:
                return found.wake_at
        raise AssertionError("the plan does not come to rest")

    def hear(self, record: EventRecord) -> None:
        """Take an Event of the job."""

    def act(self, action: Action) -> None:
        match action:
            case StartAttempt(number):
                text = self.lookups.job_text or ""
                assert number == self.status.current_attempt, "created before its intent"
                assert job_digest(text) == self.status.job_digest
                assert self.file in ("", text), "another job than that of the ConfigMap"
                self.file = text
            case JoinQueue(start):
                assert self.place is None
                uid, size = f"place-{next(self.numbers)}", start.attempt_job.workers
                place = SeenBatchJob("flowers-queue", uid, self.uid, -1, self.time, "{}", suspended=True)
                self.place = replace(place, machine=start.machine, parallelism=size)
            case LeaveQueue(_, uid):
                assert self.place is not None
                assert self.place.uid == uid
                self.place = None
            case ReportToQueue(_, active, ready, ended):
                assert self.place is not None
                self.place = replace(self.place, active=active, ready=ready, ended=ended)
            case ReadJobFile():
                self.learn(job_text=self.file)
            case ReadNode(node):
                self.learn(unready_nodes={node: node in self.lost_nodes})
            case ReadEvents(about):
                self.learn(warnings={about: SeenWarning("", "", self.time)})
            case _:
                raise AssertionError(action)

    def learn(self, **lookups: Any) -> None:
        self.lookups = replace(self.lookups, **lookups)

    def change_job(self, name: str, **changes: Any) -> None:
        self.jobs[name] = replace(self.jobs[name], **changes)

    def change_pod(self, name: str, **changes: Any) -> None:
        self.pods[name] = replace(self.pods[name], **changes)
