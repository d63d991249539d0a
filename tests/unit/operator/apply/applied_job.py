"""One job in an API server in memory and in the cache, and the result of applying a plan."""

from __future__ import annotations

from typing import Any

from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, ApiProblem
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.status import JobStatus, Phase
from mptraining_operator.jobs.apply import Applier
from mptraining_operator.jobs.namespace_objects import NamespaceObjects
from mptraining_operator.jobs.plan.actions import Plan, StartAttempt
from mptraining_operator.jobs.plan.plan import plan
from mptraining_operator.jobs.plan.snapshot import Limits, Lookups, Snapshot
from mptraining_operator.jobs.reconciler import PLANS_AT_ONCE
from mptraining_operator.jobs.resources import job_objects
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.watch import parse
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.runtime.values import Key
from tests.fakes import Clock, with_image
from tests.unit.operator.api_objects import seen_batch_job, version_of

KEY = Key("team", "flowers")
CLUSTER = ClusterSettings(runtimes=with_image("trainer:1"))


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
    def snapshot(self) -> Snapshot:
        found = self.cache.snapshot(KEY, Limits())
        assert found is not None
        return found

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
        return resolve(job, CLUSTER)

    @property
    def text(self) -> str:
        return self.job.to_json()

    @property
    def owner(self) -> job_objects.Owner:
        return job_objects.Owner("team", "flowers", "job-1", "2026-11-23T10:00:00Z")

    def apply(self, **plan: Any) -> bool:
        return self.applier.apply(Plan(**plan), self.snapshot)

    def start(self, number: int = 1, job: ResolvedJob | None = None, **attempt: Any) -> bool:
        """Create the children of an attempt, whose intent was written."""
        job = job or self.job
        self.cache.update_lookups(KEY, self.snapshot.uid, job_text=job.to_json())
        return self.apply(actions=(StartAttempt(number, job, **attempt),))

    def reconcile(self) -> None:
        """Apply plans until the cache has what they change, as a worker does."""
        for _ in range(PLANS_AT_ONCE):
            seen = self.cache.snapshot(KEY, Limits(cluster=CLUSTER))
            assert seen is not None
            if not self.applier.apply(plan(seen, self.clock.now), seen):
                return
        raise AssertionError("the plans do not come to rest")

    def restarted(self) -> Bench:
        """Return the job after a restart of the operator."""
        again = Bench(self.api, self.clock, self.api.get(JOBS, "team", "flowers"))
        for batch_job in self.snapshot.batch_jobs:
            stored = self.api.get(BATCH_JOBS, "team", batch_job.name)
            again.cache.put_batch_job(KEY, version_of(stored), seen_batch_job(stored))
        return again


STARTED = JobStatus(phase=Phase.PENDING, current_attempt=1)


SHARED = [("create", "services", "mptraining-workers"), ("create", "networkpolicies", "mptraining-workers")]
