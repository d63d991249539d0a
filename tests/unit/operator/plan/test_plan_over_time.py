"""One job in a simulated Kubernetes in which anything may happen at any time, and the operator may be killed anywhere.

The rules hold for any order: never two gangs alive, no attempt number used for two Jobs, budgets kept, and once the
faults have stopped the job ends.
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
    AllowPeers,
    DeletePod,
    EndAttempt,
    ForgetAttempt,
    JoinQueue,
    LeaveQueue,
    Plan,
    ReadEvents,
    ReadJobFile,
    ReadNode,
    ReportToQueue,
    StartAttempt,
)
from mptraining_operator.plan.plan import plan
from mptraining_operator.plan.snapshot import Key, Limits, Lookups, SeenBatchJob, SeenPod, SeenWarning, Snapshot
from mptraining_operator.resources.queue_job import Placement

WORKERS = 2
GRACE = 60
LIMITS = Limits(cluster=ClusterSettings(default_image="trainer:test"))
EVENTS = (
    "run", "run", "succeed", "bug", "preempt", "lose node", "delete node", "lose peer", "delete job", "suspend",
    "resume", "suspend for a moment", "empty status", "suspend and empty status", "job vanishes", "make again",
    "restart operator", "crash after status", "crash midway", "wait", "long wait",
)  # fmt: skip


# Further states of a queued job.
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
    """Simulates API server, Job controller, kubelets and user, and applies the operator's actions."""

    now: float = 1_767_225_600.0
    # The MPTrainingJob may be deleted and created again.
    uid: str = "uid"
    queued: bool = False
    # The Job that holds the job's place in its queue over all attempts.
    place: SeenBatchJob | None = None
    suspend: bool = False
    status: JobStatus = field(default_factory=JobStatus)
    jobs: dict[str, SeenBatchJob] = field(default_factory=dict)
    pods: dict[str, SeenPod] = field(default_factory=dict)
    file: ResolvedJob | None = None
    lookups: Lookups = field(default_factory=Lookups)
    lost: set[str] = field(default_factory=set)
    made: list[str] = field(default_factory=list)
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
            predecessors=tuple(pod for pod in self.pods.values() if pod.job_uid != self.uid and not pod.terminated),
            lookups=self.lookups,
            limits=LIMITS,
            queue_job=self.place,
        )

    def reconcile(self, *, stop_after: int | None = None) -> Plan:
        """Apply one plan; after `stop_after` actions the operator is killed."""
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
            case JoinQueue():
                assert self.place is None
                uid = f"place-{next(self.numbers)}"
                self.place = SeenBatchJob("flowers-queue", uid, self.uid, -1, self.now, Placement("{}"), suspended=True)
            case LeaveQueue(_, uid):
                assert self.place is not None
                assert self.place.uid == uid
                assert not self.alive(), "the machines were given back before the workers ended"
                self.place = None
            case ReportToQueue(_, active, ready, ended):
                assert self.place is not None
                assert active or not (self.place.suspended and self.alive())
                self.place = dataclasses.replace(self.place, active=active, ready=ready, ended=ended)
            case EndAttempt(name, uid) | ForgetAttempt(name, uid):
                if name in self.jobs and self.jobs[name].uid == uid:
                    self.change_job(name, deleting=True)
                    self.delete_pods(name)
            case DeletePod(name):
                if name in self.pods:
                    self.change_pod(name, deletion=self.now + GRACE)
            case ReadJobFile():
                text = self.file.to_json() if self.file else ""
                self.lookups = dataclasses.replace(self.lookups, job_text=text, job_file_missing=not text)
            case AllowPeers():
                self.lookups = dataclasses.replace(self.lookups, peers_allowed=True)
            case ReadNode(node):
                self.lookups = dataclasses.replace(self.lookups, unready_nodes={node: node in self.lost})
            case ReadEvents(about):
                self.lookups = dataclasses.replace(self.lookups, warnings={about: SeenWarning("", "", self.now)})
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
            assert self.place is not None
            assert not self.place.suspended, "started before its admission"
            self.change_job(name, queue_uid=self.place.uid)
        self.resume(name)

    def resume(self, name: str) -> None:
        there = {pod.index for pod in self.pods.values() if self.owns(name, pod)}
        self.change_job(name, suspended=False, started=self.now)
        self.owed[name] = set(range(WORKERS)) - there
        self.make_pods(name)

    def make_pods(self, name: str) -> None:
        """Create a pod for each index that has none left: `podReplacementPolicy: Failed`."""
        each = self.jobs[name]
        for index in self.owed[name] - {pod.index for pod in self.pods.values() if pod.owner_uid == each.uid}:
            pod = f"{each.uid}-{index}-{next(self.numbers)}"
            self.pods[pod] = SeenPod(pod, pod, self.uid, each.uid, each.attempt, index, "Pending", node=f"node-{index}")
            self.owed[name].discard(index)

    def owns(self, name: str, pod: SeenPod) -> bool:
        return pod.owner_uid == self.jobs[name].uid

    def held(self, suspended: bool) -> list[str]:
        """Return the Jobs that their queue holds, or has released."""
        jobs = [self.place] if self.place else []
        return [each.name for each in jobs if each.suspended is suspended and not each.deleting and not each.ended]

    def alive(self) -> list[str]:
        """Return the pods in which a process may still train."""
        return [pod.name for pod in self.pods.values() if not pod.terminated]

    def change_job(self, name: str, **changes: object) -> None:
        self.jobs[name] = dataclasses.replace(self.jobs[name], **changes)  # type: ignore[arg-type]

    def change_pod(self, name: str, **changes: object) -> None:
        self.pods[name] = dataclasses.replace(self.pods[name], **changes)  # type: ignore[arg-type]

    def delete_pods(self, job_name: str) -> None:
        for pod in list(self.pods.values()):
            if pod.owner_uid == self.jobs[job_name].uid and not pod.terminated and pod.deletion is None:
                self.change_pod(pod.name, deletion=self.now + GRACE)

    def collect(self, job_name: str) -> None:
        """Delete the Job in the background: at once, and its pods after it."""
        self.delete_pods(job_name)
        del self.jobs[job_name]

    def controllers(self) -> None:
        """Run the kubelets, which end pods that were deleted unless their node is lost, and the Job controller."""
        for pod in list(self.pods.values()):
            # Saving a checkpoint takes some of the grace period.
            left = pod.deletion is not None and self.now >= pod.deletion - GRACE + 10
            if pod.deletion is not None and (pod.terminated or (left and pod.node not in self.lost)):
                del self.pods[pod.name]
        for name, each in list(self.jobs.items()):
            mine = [pod for pod in self.pods.values() if pod.owner_uid == each.uid]
            if each.deleting:
                if not any(not pod.terminated for pod in mine):
                    del self.jobs[name]
                    self.pods = {key: pod for key, pod in self.pods.items() if pod.owner_uid != each.uid}
                continue
            if each.ended or each.suspended:
                continue
            self.make_pods(name)
            mine = [pod for pod in self.pods.values() if self.owns(name, pod)]
            failed = [pod for pod in mine if pod.phase == "Failed"]
            done = [pod for pod in mine if pod.phase == "Succeeded"]
            live = [pod for pod in self.pods.values() if pod.owner_uid == each.uid and not pod.terminated]
            if failed or len(mine) + len(self.owed[name]) < WORKERS:
                self.delete_pods(name)
                if not live:
                    reason = "PodFailurePolicy" if any(pod.disruption for pod in failed) else "FailedIndexes"
                    self.change_job(name, ended="Failed", end_reason=reason, active=0, ready=0, ended_at=self.now)
                    continue
            elif len(done) == WORKERS:
                self.change_job(name, ended="Complete", succeeded=WORKERS, active=0, ready=0, ended_at=self.now)
                continue
            live = [pod for pod in mine if not pod.terminated]
            ready = len([pod for pod in live if pod.phase == "Running"])
            self.change_job(name, active=len(live), ready=ready, succeeded=len(done))

    def happen(self, what: str) -> None:
        live = [pod for pod in self.pods.values() if not pod.terminated and pod.deletion is None]
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
            case "delete node":
                # Or the taint out-of-service: the pod garbage collector ends the pods.
                for pod in live + [pod for pod in self.pods.values() if pod.deletion is not None]:
                    if pod.node in self.lost and not pod.terminated:
                        gone = {"disruption": "DeletionByPodGC", "disrupted_at": self.now, "deletion": self.now}
                        self.change_pod(pod.name, phase="Failed", **gone)
                self.lost = set()
            case "delete job" if self.jobs:
                name = next(iter(self.jobs))
                self.change_job(name, deleting=True)
                self.delete_pods(name)
            case "job vanishes" if self.jobs:
                self.collect(next(iter(self.jobs)))
            case "queued job vanishes" if self.place and self.place.suspended:
                self.place = None
            case "make again":
                # `kubectl delete` and `apply`: the job's objects are garbage-collected, its pods have their grace
                # period.
                for name in list(self.jobs):
                    self.collect(name)
                self.uid += "'"
                self.place = None
                self.status, self.file, self.lookups = JobStatus(), None, Lookups()
            case "admit" | "take back" | "take back and admit":
                if self.place and not self.place.ended:
                    taken = what != "admit" and not self.place.suspended
                    # Kueue gives a quota again only when the Job that had it is not active.
                    admitted = what != "take back" and not self.place.active
                    suspended = (self.place.suspended or taken) and not admitted
                    self.place = dataclasses.replace(self.place, suspended=suspended, started=None)
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
                # Between two reconciliations.
                self.suspend, self.status = True, JobStatus()
            case "restart operator":
                self.lookups = Lookups()
            case "crash after status":
                self.reconcile(stop_after=0)
                self.lookups = Lookups()
            case "crash midway":
                self.reconcile(stop_after=1)
                self.lookups = Lookups()
            case "days pass" if not self.alive() and not self.held(suspended=False):
                self.now += 200_000
            case "wait":
                self.now += 5
            case "long wait":
                self.now += 50

    def check(self) -> None:
        attempts = {pod.attempt for pod in self.pods.values() if not pod.terminated}
        owners = {pod.owner_uid for pod in self.pods.values() if not pod.terminated}
        assert len(attempts) <= 1, f"pods of attempts {attempts} live side by side"
        assert len(owners) <= 1
        indexes = sorted(pod.index for pod in self.pods.values() if not pod.terminated)
        assert indexes == sorted(set(indexes)), "two workers with one index"
        assert (self.status.application_failures or 0) <= 3
        assert (self.status.infrastructure_restarts or 0) <= 6


@given(events=st.lists(st.sampled_from(EVENTS + QUEUE), max_size=40), queued=st.booleans())
def test_one_gang_at_a_time_and_every_job_ends(events: list[str], queued: bool) -> None:
    world = ClusterSimulation(queued=queued)
    for what in events:
        apply_event(world, what)
        world.check()
    stop_faults(world)
    assert conditions.is_true(world.status, "Finished"), world
    writes = world.reconcile()
    assert writes.status is None
    assert writes.actions == ()


def apply_event(world: ClusterSimulation, what: str) -> None:
    """Apply one random event, then let every controller run."""
    world.happen(what)
    world.controllers()
    world.reconcile()
    world.controllers()


def stop_faults(world: ClusterSimulation) -> None:
    """Stop all faults: the operator runs, nodes are back, no suspension, the queue has room; pods run and succeed."""
    world.suspend, world.lost = False, set()
    for _ in range(12):
        for what in ("long wait", "admit", "run", "succeed"):
            apply_event(world, what)
            world.reconcile()
            world.check()


@given(events=st.lists(st.sampled_from(EVENTS + QUEUE), max_size=40), queued=st.booleans())
def test_a_suspended_job_gives_its_machines_back(events: list[str], queued: bool) -> None:
    world = ClusterSimulation(queued=queued)
    for what in [*events, "suspend", "long wait", "long wait", "long wait", "long wait"]:
        apply_event(world, what)
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


@given(events=st.lists(st.sampled_from(NOTHING_FAILS), max_size=30))
@example(events=["admit", "run", "take back", "crash after status", "days pass"])
def test_what_its_queue_does_is_charged_to_no_budget(events: list[str]) -> None:
    """However long it queues, and however often it is preempted, suspended and resumed."""
    world = ClusterSimulation(queued=True)
    for what in events:
        apply_event(world, what)
        world.check()
        assert not conditions.is_true(world.status, "Failed"), world.status
    stop_faults(world)
    assert conditions.is_true(world.status, "Succeeded"), world
    assert (world.status.application_failures, world.status.infrastructure_restarts) == (0, 0)


@given(events=st.lists(st.sampled_from(("bug", "preempt", "lose peer")), min_size=1, max_size=8))
def test_failures_are_charged_to_their_own_budget(events: list[str]) -> None:
    """A program may fail twice and five nodes may be lost; one more of either ends the job."""
    world = ClusterSimulation()
    bugs = losses = 0
    for what in events:
        for _ in range(4):
            world.happen("long wait")
            world.controllers()
            world.reconcile()
        if conditions.is_true(world.status, "Finished"):
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
    assert conditions.is_true(world.status, "Failed") == (bugs > 2 or losses > 5)
