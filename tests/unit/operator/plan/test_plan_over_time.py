"""One job in a simulated Kubernetes in which anything may happen at any time, and the operator may be killed anywhere.

The rules hold for any order: never two gangs alive, no attempt number used for two Jobs, budgets kept, and once the
faults have stopped the job ends.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

from hypothesis import example, given
from hypothesis import strategies as st

from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import JobStatus
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.actions import (
    Action,
    DeletePod,
    EndAttempt,
    ForgetAttempt,
    LeaveQueue,
    ReportToQueue,
    StartAttempt,
)
from mptraining_operator.jobs.plan.snapshot import Lookups, SeenBatchJob, SeenPod
from tests.fakes import with_image
from tests.jobs import two_workers
from tests.unit.operator.plan.simulated_job import LIMITS, SimulatedJob

WORKERS = 2
GRACE = 60
EVENTS = (
    "run", "run", "succeed", "bug", "preempt", "lose node", "delete node", "lose peer", "delete job", "suspend",
    "resume", "suspend for a moment", "empty status", "suspend and empty status", "job vanishes", "make again",
    "restart operator", "crash after status", "crash midway", "crash before Job", "wait", "long wait",
)  # fmt: skip


# Further states of a queued job.
QUEUE = ("admit", "admit", "take back", "take back and admit")


@functools.cache
def job(suspend: bool, queued: bool) -> MPTrainingJob:
    return two_workers(
        training={"epochs": 1, "batchSize": {"global": 64}},
        runPolicy={"suspend": suspend, "backoffLimit": 2, "infrastructureRetries": 5},
        scheduling={"queueName": "gpus"} if queued else None,
    )


@dataclass
class ClusterSimulation(SimulatedJob):
    """Simulates API server, Job controller, kubelets and user, and applies the operator's actions."""

    queued: bool = False
    suspend: bool = False
    made: list[str] = field(default_factory=list)
    # Whether the operator is killed between the ConfigMap and the Indexed Job.
    killed: bool = False
    # The indexes of a Job that have no pod yet.
    owed: dict[str, set[int]] = field(default_factory=dict)

    @property
    def job(self) -> MPTrainingJob:
        return job(self.suspend, self.queued)

    def act(self, action: Action) -> None:
        match action:
            case StartAttempt(number):
                super().act(action)
                if not self.killed:
                    self.start(f"flowers-{number}", number)
            case LeaveQueue():
                assert not self.alive(), "the machines were given back before the workers ended"
                super().act(action)
            case ReportToQueue(_, active):
                assert self.place is not None
                assert active or not (self.place.suspended and self.alive())
                super().act(action)
            case EndAttempt(name, uid) | ForgetAttempt(name, uid):
                if name in self.jobs and self.jobs[name].uid == uid:
                    self.change_job(name, deleting=True)
                    self.delete_pods(name)
            case DeletePod(name):
                if name in self.pods:
                    self.change_pod(name, deletion=self.time + GRACE)
            case _:
                super().act(action)

    def start(self, name: str, number: int) -> None:
        if name in self.jobs:
            return
        assert not self.alive(), f"{name} started beside {self.alive()}"
        self.made.append(name)
        uid = f"{name}/{len(self.made)}"
        self.jobs[name] = SeenBatchJob(name, uid, self.uid, number, self.time, parallelism=WORKERS, started=self.time)
        if self.queued:
            assert self.place is not None
            assert not self.place.suspended, "started before its admission"
            self.change_job(name, queue_uid=self.place.uid)
        self.owed[name] = set(range(WORKERS))
        self.make_pods(name)

    def make_pods(self, name: str) -> None:
        """Create a pod for each index that has none left: `podReplacementPolicy: Failed`."""
        uid, attempt = self.jobs[name].uid, self.jobs[name].attempt
        for index in self.owed[name] - {pod.index for pod in self.pods_of(name)}:
            pod = f"{uid}-{index}-{next(self.numbers)}"
            self.pods[pod] = SeenPod(pod, pod, self.uid, uid, attempt, index, "Pending", node=f"node-{index}")
            self.owed[name].discard(index)

    def pods_of(self, name: str) -> list[SeenPod]:
        return [pod for pod in self.pods.values() if pod.owner_uid == self.jobs[name].uid]

    def holds_place(self, *, suspended: bool) -> bool:
        """Return whether the job waits in its queue, or is admitted."""
        return self.place is not None and self.place.suspended is suspended and not self.place.ended

    def alive(self) -> list[str]:
        """Return the pods in which a process may still train."""
        return [pod.name for pod in self.pods.values() if not pod.terminated]

    def delete_pods(self, job_name: str) -> None:
        for pod in self.pods_of(job_name):
            if not pod.terminated and pod.deletion is None:
                self.change_pod(pod.name, deletion=self.time + GRACE)

    def collect(self, job_name: str) -> None:
        """Delete the Job in the background: at once, and its pods after it."""
        self.delete_pods(job_name)
        del self.jobs[job_name]

    def controllers(self) -> None:
        """Run the kubelets, which end pods that were deleted unless their node is lost, and the Job controller."""
        for pod in list(self.pods.values()):
            # Saving a checkpoint takes some of the grace period.
            left = pod.deletion is not None and self.time >= pod.deletion - GRACE + 10
            if pod.deletion is not None and (pod.terminated or (left and pod.node not in self.lost_nodes)):
                del self.pods[pod.name]
        for name, batch_job in list(self.jobs.items()):
            if batch_job.deleting:
                if all(pod.terminated for pod in self.pods_of(name)):
                    for pod in self.pods_of(name):
                        del self.pods[pod.name]
                    del self.jobs[name]
            elif not batch_job.ended:
                self.count(name)

    def count(self, name: str) -> None:
        """Create missing pods of the Job, and write its status."""
        self.make_pods(name)
        mine = self.pods_of(name)
        failed = [pod for pod in mine if pod.phase == "Failed"]
        done = [pod for pod in mine if pod.phase == "Succeeded"]
        live = [pod for pod in mine if not pod.terminated]
        over = {"active": 0, "ready": 0, "ended_at": self.time}
        if len(done) == WORKERS:
            self.change_job(name, ended="Complete", succeeded=WORKERS, **over)
            return
        if failed or len(mine) + len(self.owed[name]) < WORKERS:
            self.delete_pods(name)
            if not live:
                reason = "PodFailurePolicy" if any(pod.disruption for pod in failed) else "FailedIndexes"
                self.change_job(name, ended="Failed", end_reason=reason, **over)
                return
        ready = sum(pod.phase == "Running" for pod in live)
        self.change_job(name, active=len(live), ready=ready, succeeded=len(done))

    def happen(self, what: str) -> None:
        live = [pod for pod in self.pods.values() if not pod.terminated and pod.deletion is None]
        victim = live[0].name if live else None
        match what:
            case "run":
                for pod in live:
                    self.change_pod(pod.name, phase="Running")
            case "succeed":
                for pod in live:
                    if pod.phase == "Running":
                        self.change_pod(pod.name, phase="Succeeded", finished=self.time)
            case "bug" | "lose peer" if victim:
                code = 1 if what == "bug" else 76
                self.change_pod(victim, phase="Failed", exit_code=code, exit_reason="Error", finished=self.time)
            case "preempt" if victim:
                gone = {"disruption": "EvictionByEvictionAPI", "disrupted_at": self.time}
                self.change_pod(victim, phase="Failed", exit_code=75, finished=self.time, **gone)
            case "lose node":
                self.lost_nodes = {"node-0"}
                for pod in live:
                    if pod.node in self.lost_nodes:
                        self.change_pod(pod.name, deletion=self.time + GRACE, disruption="DeletionByTaintManager")
            case "delete node":
                # Or the taint out-of-service: the pod garbage collector ends the pods.
                for pod in live + [pod for pod in self.pods.values() if pod.deletion is not None]:
                    if pod.node in self.lost_nodes and not pod.terminated:
                        gone = {"disruption": "DeletionByPodGC", "disrupted_at": self.time, "deletion": self.time}
                        self.change_pod(pod.name, phase="Failed", **gone)
                self.lost_nodes = set()
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
                self.status, self.file, self.lookups = JobStatus(), "", Lookups()
            case "admit" | "take back" | "take back and admit":
                if self.place and not self.place.ended:
                    taken = what != "admit" and not self.place.suspended
                    # Kueue gives a quota again only when the Job that had it is not active.
                    admitted = what != "take back" and not self.place.active
                    suspended = (self.place.suspended or taken) and not admitted
                    self.place = replace(self.place, suspended=suspended, started=None)
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
            case "crash before Job":
                self.killed = True
                self.reconcile()
                self.killed, self.lookups = False, Lookups()
            case "upgrade operator":
                image = f"trainer:{next(self.numbers)}"
                self.limits = replace(LIMITS, cluster=replace(LIMITS.cluster, runtimes=with_image(image)))
                self.lookups = Lookups()
            case "days pass" if not self.alive() and not self.holds_place(suspended=False):
                self.now += 200_000
            case "wait":
                self.now += 5
            case "long wait":
                self.now += 50

    def check(self) -> None:
        live = [pod for pod in self.pods.values() if not pod.terminated]
        assert len({pod.attempt for pod in live}) <= 1, "pods of several attempts live side by side"
        assert len({pod.owner_uid for pod in live}) <= 1
        assert len({pod.index for pod in live}) == len(live), "two workers with one index"
        assert (self.status.application_failures or 0) <= 3
        assert (self.status.infrastructure_restarts or 0) <= 6

    def turn(self, event: str) -> None:
        """Apply one random event, then let every controller run."""
        self.happen(event)
        self.controllers()
        self.reconcile()
        self.controllers()


@given(events=st.lists(st.sampled_from(EVENTS + QUEUE), max_size=40), queued=st.booleans())
def test_one_gang_at_a_time_and_every_job_ends(events: list[str], queued: bool) -> None:
    world = ClusterSimulation(queued=queued)
    for what in events:
        world.turn(what)
        world.check()
    stop_faults(world)
    assert conditions.is_true(world.status, "Finished"), world
    writes = world.reconcile()
    assert writes.status is None
    assert writes.actions == ()


def stop_faults(world: ClusterSimulation) -> None:
    """Stop all faults: the operator runs, nodes are back, no suspension, the queue has room; pods run and succeed."""
    world.suspend, world.lost_nodes = False, set()
    for _ in range(12):
        for what in ("long wait", "admit", "run", "succeed"):
            world.turn(what)
            world.reconcile()
            world.check()


@given(events=st.lists(st.sampled_from(EVENTS + QUEUE), max_size=40), queued=st.booleans())
def test_a_suspended_job_gives_its_machines_back(events: list[str], queued: bool) -> None:
    world = ClusterSimulation(queued=queued)
    for what in [*events, "suspend", "long wait", "long wait", "long wait", "long wait"]:
        world.turn(what)
    world.lost_nodes = set()
    for _ in range(4):
        world.happen("long wait")
        world.controllers()
        world.reconcile()
    assert world.alive() == []
    assert not world.holds_place(suspended=True)


NOTHING_FAILS = (
    *QUEUE, "run", "queued job vanishes", "suspend", "resume", "suspend for a moment",
    "restart operator", "crash after status", "crash midway", "crash before Job", "upgrade operator", "wait",
    "long wait", "days pass",
)  # fmt: skip


@given(events=st.lists(st.sampled_from(NOTHING_FAILS), max_size=30))
@example(events=["admit", "run", "take back", "crash after status", "days pass"])
def test_what_its_queue_does_is_charged_to_no_budget(events: list[str]) -> None:
    """However long it queues, and however often it is preempted, suspended and resumed."""
    world = ClusterSimulation(queued=True)
    for what in events:
        world.turn(what)
        world.check()
        assert not conditions.is_true(world.status, "Failed"), world.status
    stop_faults(world)
    assert conditions.is_true(world.status, "Complete"), world
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
