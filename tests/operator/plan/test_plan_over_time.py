"""One job through a small Kubernetes in which anything may happen at any time, and the operator may die anywhere.

The rules hold whatever the order: never two gangs alive, no attempt number used twice for two Jobs, budgets kept, and
once the world is calm again the job comes to its end.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import JobStatus
from mptraining_operator.plan import conditions
from mptraining_operator.plan.actions import (
    Action,
    DeletePod,
    EndAttempt,
    FailPod,
    ForgetAttempt,
    Plan,
    ReadJobFile,
    ReadNode,
    StartAttempt,
)
from mptraining_operator.plan.plan import plan
from mptraining_operator.plan.snapshot import Key, Limits, Lookups, SeenBatchJob, SeenPod, Snapshot

WORKERS = 2
GRACE = 60
LIMITS = Limits(cluster=ClusterSettings(default_image="trainer:test"))
HAPPENINGS = (
    "run", "run", "succeed", "bug", "preempt", "lose node", "lose peer", "delete job", "suspend", "resume",
    "suspend for a moment", "empty status", "suspend and empty status", "job vanishes", "make again",
    "restart operator", "crash after status", "crash midway", "wait", "long wait",
)  # fmt: skip


# Beside them, of a job that queues.
QUEUE = ("admit", "admit", "take back", "take back and admit")


@functools.cache
def job(suspend: bool, queued: bool = False) -> MPTrainingJob:
    return MPTrainingJob.parse(
        {
            "metadata": {"name": "flowers", "namespace": "team"},
            "spec": {
                "accelerator": {"type": "nvidia-tesla-t4"},
                "nodes": WORKERS,
                "program": {"application": {"name": "cnn"}},
                "data": {"train": ["gs://bucket/*.tfrecord"]},
                "training": {"epochs": 1, "batchSize": {"global": 64}},
                "runPolicy": {"suspend": suspend, "backoffLimit": 2, "infrastructureRetries": 5},
                **({"scheduling": {"queueName": "gpus"}} if queued else {}),
            },
        }
    )


@dataclass
class ClusterSimulation:
    """What the API server, the Job controller, the kubelets and a user make of the operator's actions."""

    now: float = 1_767_225_600.0
    # Of the MPTrainingJob, which may be deleted and made again.
    uid: str = "uid"
    queued: bool = False
    suspend: bool = False
    status: JobStatus = field(default_factory=JobStatus)
    jobs: dict[str, SeenBatchJob] = field(default_factory=dict)
    pods: dict[str, SeenPod] = field(default_factory=dict)
    file: ResolvedJob | None = None
    findings: Lookups = field(default_factory=Lookups)
    lost: set[str] = field(default_factory=set)
    made: list[str] = field(default_factory=list)
    disowned: set[str] = field(default_factory=set)
    owed: dict[str, set[int]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            key=Key("team", "flowers"),
            uid=self.uid,
            generation=1,
            created=1_767_225_600.0,
            job=job(self.suspend, self.queued),
            status=self.status,
            batch_jobs=tuple(self.jobs.values()),
            pods=tuple(pod for pod in self.pods.values() if pod.job_uid == self.uid),
            predecessors=tuple(pod for pod in self.pods.values() if pod.job_uid != self.uid and not pod.over),
            findings=self.findings,
            limits=LIMITS,
        )

    def reconcile(self, *, stop_after: int | None = None) -> Plan:
        """One plan carried out; `stop_after` actions the operator is killed."""
        found = plan(self.snapshot(), self.now)
        if found.status is not None:
            self.status = JobStatus.read(found.status.to_json())
        for action in found.actions[:stop_after]:
            self.act(action)
        return found

    def act(self, action: Action) -> None:
        match action:
            case StartAttempt(number, resolved):
                self.file = self.file or resolved
                self.start(f"flowers-{number}", number)
            case EndAttempt(name, uid) | ForgetAttempt(name, uid):
                if name in self.jobs and self.jobs[name].uid == uid:
                    self.change_job(name, deleting=True)
                    self.delete_pods(name)
            case DeletePod(name):
                if name in self.pods:
                    self.change_pod(name, deletion=self.now + GRACE)
            case FailPod(name, _, _):
                if name in self.pods:
                    self.change_pod(name, phase="Failed", disruption="NodeLost", disrupted_at=self.now)
            case ReadJobFile():
                self.findings = dataclasses.replace(
                    self.findings, job_file=self.file, job_file_missing=self.file is None
                )
            case ReadNode(node):
                self.findings = dataclasses.replace(self.findings, lost_nodes={node: node in self.lost})
            case _:
                raise AssertionError(action)

    def start(self, name: str, number: int) -> None:
        if name in self.jobs:
            return
        assert not self.alive(), f"{name} started beside {self.alive()}"
        self.made.append(name)
        uid = f"{name}/{len(self.made)}"
        self.jobs[name] = SeenBatchJob(name, uid, self.uid, number, self.now, parallelism=WORKERS)
        if self.queued:
            self.change_job(name, suspended=True)
        else:
            self.let_go_on(name)

    def let_go_on(self, name: str) -> None:
        there = {pod.index for pod in self.pods.values() if self.owns(name, pod)}
        self.change_job(name, suspended=False, started=self.now)
        self.owed[name] = set(range(WORKERS)) - there
        self.make_pods(name)

    def make_pods(self, name: str) -> None:
        """A pod for each index that is owed one and of which none is left: `podReplacementPolicy: Failed`."""
        each = self.jobs[name]
        for index in self.owed[name] - {pod.index for pod in self.pods.values() if pod.owner_uid == each.uid}:
            pod = f"{each.uid}-{index}-{next(self.numbers)}"
            self.pods[pod] = SeenPod(pod, pod, self.uid, each.uid, each.attempt, index, "Pending", node=f"node-{index}")
            self.owed[name].discard(index)

    def take_back(self, name: str) -> None:
        """As Kueue does, seen before it takes the startTime away; the Job controller answers for those pods no more,
        however they end.
        """
        self.disowned |= {pod.name for pod in self.pods.values() if self.owns(name, pod) and not pod.over}
        self.owed[name] = set()
        self.change_job(name, suspended=True, active=0, ready=0)
        self.delete_pods(name)

    def owns(self, name: str, pod: SeenPod) -> bool:
        return pod.owner_uid == self.jobs[name].uid and pod.name not in self.disowned

    def held(self, suspended: bool) -> list[str]:
        """Jobs that their queue holds, or those that it let go on."""
        jobs = self.jobs.values()
        return [each.name for each in jobs if each.suspended is suspended and not each.deleting and not each.ended]

    def alive(self) -> list[str]:
        """Pods in which a process may still train."""
        return [pod.name for pod in self.pods.values() if not pod.over]

    def change_job(self, name: str, **changes: object) -> None:
        self.jobs[name] = dataclasses.replace(self.jobs[name], **changes)  # type: ignore[arg-type]

    def change_pod(self, name: str, **changes: object) -> None:
        self.pods[name] = dataclasses.replace(self.pods[name], **changes)  # type: ignore[arg-type]

    def delete_pods(self, job_name: str) -> None:
        for pod in list(self.pods.values()):
            if pod.owner_uid == self.jobs[job_name].uid and not pod.over and pod.deletion is None:
                self.change_pod(pod.name, deletion=self.now + GRACE)

    def collect(self, job_name: str) -> None:
        """The Job goes in the background: at once, and its pods after it."""
        self.delete_pods(job_name)
        del self.jobs[job_name]

    def controllers(self) -> None:
        """Kubelets end pods that were deleted, unless their node is lost; the Job controller draws its conclusions."""
        for pod in list(self.pods.values()):
            # Saving a checkpoint takes some of the grace period.
            left = pod.deletion is not None and self.now >= pod.deletion - GRACE + 10
            if pod.deletion is not None and (pod.over or (left and pod.node not in self.lost)):
                del self.pods[pod.name]
        for name, each in list(self.jobs.items()):
            mine = [pod for pod in self.pods.values() if pod.owner_uid == each.uid]
            if each.deleting:
                if not any(not pod.over for pod in mine):
                    del self.jobs[name]
                    self.pods = {key: pod for key, pod in self.pods.items() if pod.owner_uid != each.uid}
                continue
            if each.ended or each.suspended:
                continue
            self.make_pods(name)
            mine = [pod for pod in self.pods.values() if self.owns(name, pod)]
            failed = [pod for pod in mine if pod.phase == "Failed"]
            done = [pod for pod in mine if pod.phase == "Succeeded"]
            live = [pod for pod in self.pods.values() if pod.owner_uid == each.uid and not pod.over]
            if failed or len(mine) + len(self.owed[name]) < WORKERS:
                self.delete_pods(name)
                if not live:
                    reason = "PodFailurePolicy" if any(pod.disruption for pod in failed) else "FailedIndexes"
                    self.change_job(name, ended="Failed", end_reason=reason, active=0, ready=0, ended_at=self.now)
                    continue
            elif len(done) == WORKERS:
                self.change_job(name, ended="Complete", succeeded=WORKERS, active=0, ready=0, ended_at=self.now)
                continue
            live = [pod for pod in mine if not pod.over]
            ready = len([pod for pod in live if pod.phase == "Running"])
            self.change_job(name, active=len(live), ready=ready, succeeded=len(done))

    def happen(self, what: str) -> None:
        live = [pod for pod in self.pods.values() if not pod.over and pod.deletion is None]
        victim = live[0].name if live else None
        match what:
            case "run":
                for pod in live:
                    self.change_pod(pod.name, phase="Running", ready=True)
            case "succeed":
                for pod in live:
                    if pod.phase == "Running":
                        self.change_pod(pod.name, phase="Succeeded", finished=self.now)
            case "bug" | "lose peer" if victim:
                code = 1 if what == "bug" else 76
                self.change_pod(victim, phase="Failed", exit_code=code, exit_reason="Error", finished=self.now)
            case "preempt" if victim:
                gone = {"disruption": "EvictionByEvictionAPI", "disrupted_at": self.now}
                self.change_pod(victim, phase="Failed", exit_code=75, finished=self.now, **gone)
            case "lose node":
                self.lost = {"node-0"}
                for pod in live:
                    if pod.node in self.lost:
                        self.change_pod(pod.name, deletion=self.now + GRACE, disruption="DeletionByTaintManager")
            case "delete job" if self.jobs:
                name = next(iter(self.jobs))
                self.change_job(name, deleting=True)
                self.delete_pods(name)
            case "job vanishes" if self.jobs:
                self.collect(next(iter(self.jobs)))
            case "queued job vanishes" if self.held(suspended=True):
                self.collect(self.held(suspended=True)[0])
            case "make again":
                # `kubectl delete` and `apply`: what belongs to the job is collected, its pods have their grace period.
                for name in list(self.jobs):
                    self.collect(name)
                self.uid += "'"
                self.status, self.file, self.findings = JobStatus(), None, Lookups()
            case "admit" | "take back" | "take back and admit":
                for name in self.held(suspended=False) if what != "admit" else ():
                    self.take_back(name)
                for name in self.held(suspended=True) if what != "take back" else ():
                    self.let_go_on(name)
            case "suspend" | "resume":
                self.suspend = what == "suspend"
            case "suspend for a moment":
                self.suspend = True
                self.reconcile()
                self.suspend = False
                self.reconcile()
            case "empty status":
                self.status = JobStatus()
            case "suspend and empty status":
                # Between two looks.
                self.suspend, self.status = True, JobStatus()
            case "restart operator":
                self.findings = Lookups()
            case "crash after status":
                self.reconcile(stop_after=0)
                self.findings = Lookups()
            case "crash midway":
                self.reconcile(stop_after=1)
                self.findings = Lookups()
            case "days pass" if not self.alive() and not self.held(suspended=False):
                self.now += 200_000
            case "wait":
                self.now += 5
            case "long wait":
                self.now += 50

    def check(self) -> None:
        attempts = {pod.attempt for pod in self.pods.values() if not pod.over}
        owners = {pod.owner_uid for pod in self.pods.values() if not pod.over}
        assert len(attempts) <= 1, f"pods of attempts {attempts} live side by side"
        assert len(owners) <= 1
        indexes = sorted(pod.index for pod in self.pods.values() if not pod.over)
        assert indexes == sorted(set(indexes)), "two workers with one index"
        assert (self.status.application_failures or 0) <= 3
        assert (self.status.infrastructure_restarts or 0) <= 6


@given(happenings=st.lists(st.sampled_from(HAPPENINGS + QUEUE), max_size=40), queued=st.booleans())
def test_one_gang_at_a_time_and_an_end_in_the_end(happenings: list[str], queued: bool) -> None:
    world = ClusterSimulation(queued=queued)
    for what in happenings:
        live(world, what)
        world.check()
    calm(world)
    assert conditions.holds(world.status, "Finished"), world
    writes = world.reconcile()
    assert writes.status is None
    assert writes.actions == ()


def live(world: ClusterSimulation, what: str) -> None:
    """Something happens, and everybody has a look."""
    world.happen(what)
    world.controllers()
    world.reconcile()
    world.controllers()


def calm(world: ClusterSimulation) -> None:
    """The operator runs, nodes are back, nobody suspends, the queue has room; pods run and succeed."""
    world.suspend, world.lost = False, set()
    for _ in range(12):
        for what in ("long wait", "admit", "run", "succeed"):
            live(world, what)
            world.reconcile()
            world.check()


@given(happenings=st.lists(st.sampled_from(HAPPENINGS + QUEUE), max_size=40), queued=st.booleans())
def test_a_suspended_job_gives_its_machines_back(happenings: list[str], queued: bool) -> None:
    world = ClusterSimulation(queued=queued)
    for what in [*happenings, "suspend", "long wait", "long wait", "long wait", "long wait"]:
        live(world, what)
    world.lost = set()
    for _ in range(4):
        world.happen("long wait")
        world.controllers()
        world.reconcile()
    assert world.alive() == []
    assert world.held(suspended=True) == []


NOTHING_FAILS = (
    *QUEUE, "run", "queued job vanishes", "suspend", "resume", "suspend for a moment",
    "restart operator", "crash after status", "crash midway", "wait", "long wait", "days pass",
)  # fmt: skip


@given(happenings=st.lists(st.sampled_from(NOTHING_FAILS), max_size=30))
@example(["crash after status", "days pass"])
@example(["admit", "run", "take back", "crash after status", "days pass"])
def test_what_its_queue_does_is_charged_to_no_budget(happenings: list[str]) -> None:
    """However long it queues, and however often it is taken back, suspended and let go on."""
    world = ClusterSimulation(queued=True)
    for what in happenings:
        live(world, what)
        world.check()
        assert not conditions.holds(world.status, "Failed"), world.status
    calm(world)
    assert conditions.holds(world.status, "Succeeded"), world
    assert (world.status.application_failures, world.status.infrastructure_restarts) == (0, 0)


@given(happenings=st.lists(st.sampled_from(("bug", "preempt", "lose peer")), min_size=1, max_size=8))
def test_failures_are_charged_to_their_own_budget(happenings: list[str]) -> None:
    """A program may fail twice and a machine may be lost five times; the one more of either ends the job."""
    world = ClusterSimulation()
    bugs = losses = 0
    for what in happenings:
        for _ in range(4):
            world.happen("long wait")
            world.controllers()
            world.reconcile()
        if conditions.holds(world.status, "Finished"):
            break
        world.happen("run")
        world.controllers()
        world.reconcile()
        world.happen(what)
        bugs, losses = bugs + (what == "bug"), losses + (what != "bug")
    for _ in range(3):
        world.controllers()
        world.reconcile()
        world.happen("long wait")
    assert (world.status.application_failures, world.status.infrastructure_restarts) == (bugs, losses)
    assert conditions.holds(world.status, "Failed") == (bugs > 2 or losses > 5)
