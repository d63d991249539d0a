"""Elastic jobs over time: machines that come and go, and the size of each attempt, as a table.

The clock is simulated; scheduler, Job controller and kubelets are a few lines each. MPTRAINING_GOLDEN_UPDATE=1 writes
tests/golden/elastic.yaml.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import EventRecord, Phase, Progress, parse_time
from mptraining_operator.jobs.plan import conditions, elastic, waiting
from mptraining_operator.jobs.plan.actions import Action, EndAttempt, StartAttempt, StartProbe
from mptraining_operator.jobs.plan.snapshot import Limits, SeenBatchJob, SeenPod
from mptraining_operator.jobs.resources import names
from tests.fakes import with_image
from tests.jobs import two_workers
from tests.unit.operator.plan.simulated_job import BEGIN, SimulatedJob

FILE = Path(__file__).parents[3] / "golden" / "elastic.yaml"
# Seconds that workers need to start, and to save a checkpoint and exit.
STARTS, ENDS = 4.0, 6.0
RESIZE = 100
REPORTED = ("Resized", "Started", "Restarting", "Succeeded", "NamespaceFull")


@functools.cache
def job(least: int, most: int, batch: int, queue: bool = False, suspended: bool = False) -> MPTrainingJob:
    return two_workers(
        accelerator={"type": "l4"},
        workers=None,
        elastic={"min": least, "max": most},
        training={"epochs": 1, "batchSize": {"global": batch}},
        runPolicy={"resizeSeconds": RESIZE, "suspend": suspended},
        scheduling={"queueName": "gpus"} if queue else None,
    )


def limited(workers: int) -> Limits:
    return Limits(cluster=ClusterSettings(runtimes=with_image("trainer:test", limits={"workersPerNamespace": workers})))


@dataclass
class Machines(SimulatedJob):
    """A cluster of `free` machines for one elastic job."""

    # The smallest and the largest size, and the batch size.
    sizes: tuple[int, int, int] = (2, 8, 64)
    limits: Limits = field(default_factory=Limits)
    free: int = 0
    # What the queue admits; None without a queue.
    admits: int | None = None
    suspended: bool = False
    # Times at which the pods got their nodes and at which they are gone.
    since: dict[str, float] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)
    # Machines of the probe's pods.
    held: int = 0
    table: list[str] = field(default_factory=list)
    # At the end of the last reconcile.
    seen: object = None
    wake_at: float | None = None

    @property
    def job(self) -> MPTrainingJob:
        return job(*self.sizes, self.admits is not None, self.suspended)

    def run(self, seconds: float) -> None:
        """Let time pass. The operator acts when the cluster has changed, or when its plan wanted to be made again."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1
            self.schedule()
            if self.observed() != self.seen or (self.wake_at is not None and self.time >= self.wake_at):
                self.wake_at = self.settle()
                self.seen = self.observed()

    def run_until(self, words: str) -> None:
        while not any(words in line for line in self.table):
            self.run(1)

    def preempt(self) -> None:
        """Let the queue take the machines back, also those of the probe."""
        assert self.place is not None
        assert self.probe is not None
        self.say("preempted")
        self.admits = 0
        self.place = replace(self.place, suspended=True, parallelism=8)
        self.run(30)
        assert (self.jobs, self.probe, self.place.active) == ({}, None, 0)

    def end_in(self, seconds: int) -> None:
        """Let the job report that it ends in these seconds."""
        attempt = self.status.current_attempt
        progress = Progress(attempt=attempt, percent_complete=97, estimated_remaining_seconds=seconds)
        self.status = self.status.model_copy(update={"progress": progress})

    def observed(self) -> object:
        return dict(self.jobs), dict(self.pods), self.probe, self.place, self.free, self.other_workers, self.suspended

    def say(self, text: str) -> None:
        self.table.append(f"T+{self.now:.0f} {text}")

    def hear(self, record: EventRecord) -> None:
        if record.reason in REPORTED:
            self.say(f"{record.reason}: {record.message}")

    @property
    def used(self) -> int:
        return self.held + sum(bool(pod.node) for pod in self.pods.values() if not pod.terminated)

    def schedule(self) -> None:
        self.pods = {name: pod for name, pod in self.pods.items() if self.gone.get(name, self.now + 1) > self.now}
        for name, batch_job in list(self.jobs.items()):
            if batch_job.deleting and not self.pods_of(name):
                del self.jobs[name]
        if self.place is not None and self.place.suspended and self.admits:
            self.place = replace(self.place, suspended=False, parallelism=min(self.place.parallelism, self.admits))
        for name, pod in self.pods.items():
            if not pod.node and not pod.terminated:
                fits = self.used < self.free
                self.change_pod(name, node="node" if fits else "", unscheduled="" if fits else "no node fits")
                self.since[name] = self.now
        for name in self.jobs:
            placed = [pod.name for pod in self.pods_of(name) if pod.node]
            self.change_job(name, ready=sum(self.now >= self.since[pod] + STARTS for pod in placed))
        if self.probe is not None and self.probe.deleting:
            self.probe, self.held = None, 0
        elif self.probe is not None:
            held = max(0, min(self.probe.parallelism, self.held + self.free - self.used))
            if held != self.held:
                self.held = held
                self.probe = replace(self.probe, ready=held, changed=self.time)

    def pods_of(self, batch_job: str) -> list[SeenPod]:
        return [pod for pod in self.pods.values() if pod.owner_uid == batch_job]

    def act(self, action: Action) -> None:
        match action:
            case StartAttempt():
                super().act(action)
                size, name, number = action.attempt_job.workers, f"flowers-{action.number}", action.number
                queue = self.place.uid if self.place else ""
                made = SeenBatchJob(name, name, "uid", number, self.time, parallelism=size, queue_uid=queue)
                self.jobs[name] = made
                for index in range(size):
                    pod = f"{name}-{index}"
                    self.pods[pod] = SeenPod(pod, pod, "uid", name, number, index, "Pending")
            case StartProbe():
                self.say(f"probe for {action.pods}")
                attempt, pods = names.PROBE_ATTEMPT, action.pods
                self.probe = SeenBatchJob("probe", "probe", "uid", attempt, self.time, parallelism=pods)
                self.held = 0
            case EndAttempt("probe"):
                assert self.probe is not None
                self.say(f"probe deleted, it held {self.held}")
                self.probe = replace(self.probe, deleting=True)
            case EndAttempt(name):
                self.change_job(name, deleting=True)
                for pod in self.pods_of(name):
                    self.change_pod(pod.name, deletion=self.time + 60)
                    self.gone[pod.name] = self.now + (ENDS if pod.node else 0)
            case _:
                super().act(action)

    def lose(self, count: int) -> None:
        """Machines of running workers are gone: their attempt fails, the other pods end."""
        self.free -= count
        self.say(f"{count} of its machines are gone")
        name = f"flowers-{self.status.current_attempt}"
        for pod in self.pods.values():
            gone = {"disruption": "DeletionByPodGC", "disrupted_at": self.time}
            lost = pod.owner_uid == name and pod.index < count
            self.change_pod(pod.name, phase="Failed", **(gone if lost else {"exit_code": 76}))
        ended = {"ended": "Failed", "end_reason": "PodFailurePolicy"}
        self.change_job(name, **ended, ended_at=self.time, changed=self.time)


# By pattern: the job's smallest and largest size, its batch size, what else holds at the start, and the steps: seconds
# that pass, fields of the simulation that change, or what happens.
PATTERNS: dict[str, tuple[tuple[int, int, int], dict[str, Any], tuple[Any, ...]]] = {
    # 2, 3, 4 and 1 workers, one after the other.
    "every_size": ((1, 4, 24), {"free": 2}, (60, {"free": 3}, 150, {"free": 4}, 150, "lose 3", 60)),
    "all_at_once": ((2, 8, 64), {"free": 8}, (400,)),
    # Less than the minimum is waited for; what comes later is taken once `elastic_wait` is over.
    "too_few_then_enough": ((2, 8, 64), {"free": 1}, (100, {"free": 5}, 20)),
    # Three machines are of no use to 64 examples: the third is released again, and asked for once in an interval.
    "sizes_that_do_not_divide": ((2, 8, 64), {"free": 2}, (50, {"free": 3}, 400, {"free": 4}, 150)),
    "one_machine_lost": ((2, 4, 24), {"free": 4}, (300, "lose 1", 60, {"free": 4}, 150)),
    "machine_replaced_at_once": ((2, 4, 24), {"free": 5}, (50, "lose 1", 60)),
    "machines_taken_during_the_resize": (
        (2, 4, 24), {"free": 2}, (60, {"free": 4}, "Resized: 2 more", {"free": 3}, 60),
    ),
    # It has its part of the quota, and no probe asks for machines of other jobs.
    "queue_admits_a_part": ((2, 8, 64), {"free": 8, "admits": 5}, (300,)),
    "machines_of_the_quota_come_later": ((2, 8, 64), {"free": 2, "admits": 4}, (60, {"free": 8}, 300)),
    # Also those of the probe; the next admission decides the number of workers again.
    "queue_takes_the_machines_back": (
        (2, 8, 64), {"free": 3, "admits": 4}, (150, "preempt", {"admits": 8, "free": 8}, 30),
    ),
    "limit_of_the_namespace": (
        (2, 8, 64),
        {"free": 8, "limits": limited(6)},
        (300, {"other_workers": 2}, 300),
    ),
    # It does not grow for its last two minutes.
    "about_to_end": ((2, 4, 24), {"free": 2}, (60, "nearly done", {"free": 4}, 300)),
}  # fmt: skip


def simulated(sizes: tuple[int, int, int], start: dict[str, Any], steps: tuple[Any, ...]) -> Machines:
    sim = Machines(sizes=sizes, **start)
    for step in steps:
        match step:
            case int():
                sim.run(step)
            case dict():
                for name, value in step.items():
                    setattr(sim, name, value)
            case "preempt":
                sim.preempt()
            case "nearly done":
                sim.end_in(100)
            case str() if step.startswith("lose "):
                sim.lose(int(step.removeprefix("lose ")))
            case str():
                sim.run_until(step)
    return sim


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_attempts_of(pattern: str) -> None:
    sim = simulated(*PATTERNS[pattern])
    golden = yaml.safe_load(FILE.read_text()) if FILE.exists() else {}
    if os.environ.get("MPTRAINING_GOLDEN_UPDATE"):
        golden[pattern] = sim.table
        FILE.write_text(yaml.safe_dump(golden, sort_keys=False, width=150))
    assert sim.table == golden[pattern]
    assert (sim.status.infrastructure_restarts or 0) == sum("gone" in line for line in sim.table)
    for grown in sim.status.attempts or ():
        if "more machine" in (grown.message or ""):
            assert grown.start_time
            assert grown.completion_time
            seconds = parse_time(grown.completion_time) - parse_time(grown.start_time)
            assert seconds >= RESIZE, "never more often than resizeSeconds"


def test_a_job_that_was_resumed_and_waits_for_workers_starts_with_the_most_that_there_are_then() -> None:
    """It was suspended between the end of an attempt and the next one: its workers are no longer its own."""
    sim = Machines(sizes=(2, 8, 64), free=8, limits=limited(8))
    sim.other_workers = 4
    sim.run(60)
    sim.other_workers = 0
    sim.run_until("Resized: 4 more")
    sim.suspended = True
    sim.run(30)
    sim.other_workers, sim.suspended = 7, False
    sim.run(30)
    running = conditions.condition(sim.status, "Running")
    assert running is not None
    assert running.reason == "NamespaceFull"
    sim.other_workers = 0
    sim.run(30)
    assert [attempt.workers for attempt in sim.status.attempts or ()] == [4, 8]


def test_a_job_that_waits_for_workers_of_its_namespace_keeps_no_probe() -> None:
    """Its pods would occupy machines while the limit allows the job none."""
    sim = Machines(sizes=(2, 4, 24), free=2)
    sim.run(60)
    sim.free = 4
    sim.run_until("Resized: 2 more")
    ended = sim.status
    assert elastic.keeps_probe(ended), "its machines are for the next attempt"
    full = conditions.with_waiting(ended, Phase.RESTARTING, waiting.NAMESPACE_FULL, "", BEGIN, 1)
    assert not elastic.keeps_probe(full)
