"""One job in an API server in memory and in the cache, and the result of applying a plan."""

from __future__ import annotations

from typing import Any

from mptraining_api.kubernetes_api import JOBS, ApiProblem
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import JobStatus, Phase
from mptraining_operator.apply import Applier
from mptraining_operator.namespace_objects import NamespaceObjects
from mptraining_operator.plan.actions import Plan, StartAttempt
from mptraining_operator.plan.snapshot import Key, Limits, Lookups, Snapshot
from mptraining_operator.resources import job_objects
from mptraining_operator.resources.environment import PodSettings
from mptraining_operator.watch import parse
from mptraining_operator.watch.cache import Cache, VersionedSnapshot
from tests.fakes import Clock, with_image

KEY = Key("team", "flowers")


QUOTA = ApiProblem(403, "Forbidden", "exceeded quota: jobs")


class Bench:
    """One job in the API server and in the cache, and the result of applying a plan."""

    def __init__(self, api: Any, clock: Clock, raw: dict[str, Any]) -> None:
        self.api = api
        self.clock = clock
        self.cache = Cache(clock)
        self.said: list[str] = []
        self.counted: list[Plan] = []
        self.started: list[tuple[str, int]] = []
        self.cache.put_job(parse.job(api.put(JOBS, raw)))
        self.applier = Applier(
            api,
            self.cache,
            pod_settings=lambda owner, job: PodSettings(),
            record_event=lambda snapshot, announcement: self.said.append(announcement.reason),
            written=self.counted.append,
            clock=clock,
            namespace_objects=NamespaceObjects(api, clock),
            started=lambda snapshot, batch_job: self.started.append((snapshot.uid, batch_job.attempt)),
        )

    @property
    def seen(self) -> VersionedSnapshot:
        found = self.cache.versioned_snapshot(KEY, Limits())
        assert found is not None
        return found

    @property
    def snapshot(self) -> Snapshot:
        return self.seen.snapshot

    @property
    def lookups(self) -> Lookups:
        return self.snapshot.lookups

    @property
    def refused(self) -> tuple[str, str, str]:
        """Kind, child and message of the refusal; empty without one."""
        refusal = self.lookups.refusal
        return (refusal.kind, refusal.child, refusal.message) if refusal else ("", "", "")

    @property
    def job(self) -> ResolvedJob:
        job = self.snapshot.job
        assert job is not None
        return resolve(job, ClusterSettings(runtimes=with_image("trainer:1")))

    @property
    def text(self) -> str:
        return self.job.to_json()

    @property
    def owner(self) -> job_objects.Owner:
        return job_objects.Owner("team", "flowers", "job-1", "2026-11-23T10:00:00Z")

    def apply(self, **plan: Any) -> bool:
        return self.applier.apply(Plan(**plan), self.seen)

    def start(self, number: int = 1) -> bool:
        return self.apply(actions=(StartAttempt(number, self.job),))


STARTED = JobStatus(phase=Phase.PENDING, current_attempt=1)


SHARED = [("create", "services", "mptraining-workers"), ("create", "networkpolicies", "mptraining-workers")]
