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

from mptraining_api.admin_limits import JobLimits
from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import JobStatus, Phase, Progress, parse_time
from mptraining_operator.plan import conditions, waiting
from mptraining_operator.plan.actions import (
    Action,
    EndAttempt,
    JoinQueue,
    ReadEvents,
    ReportToQueue,
    StartAttempt,
    StartProbe,
)
from mptraining_operator.plan.capacity import nodes
from mptraining_operator.plan.plan import plan
from mptraining_operator.plan.snapshot import Key, Limits, Lookups, SeenBatchJob, SeenPod, SeenWarning, Snapshot
from mptraining_operator.resources import names
from mptraining_operator.resources.queue_job import Placement

FILE = Path(__file__).parents[3] / "golden" / "elastic.yaml"
BEGIN = 1_767_225_600.0
# Seconds that workers need to start, and to save a checkpoint and exit.
STARTS, ENDS = 4.0, 6.0
RESIZE = 100


@functools.cache
def job(least: int, most: int, batch: int, queue: bool = False, suspended: bool = False) -> MPTrainingJob:
    return MPTrainingJob.parse(
        {
            "metadata": {"name": "flowers", "namespace": "team"},
            "spec": {
                "accelerator": {"type": "nvidia-l4"},
                "elastic": {"min": least, "max": most},
                "program": {"application": {"name": "cnn"}},
                "data": {"train": ["gs://bucket/*.tfrecord"]},
                "training": {"epochs": 1, "batchSize": {"global": batch}},
                "runPolicy": {"resizeSeconds": RESIZE, "suspend": suspended},
                **({"scheduling": {"queueName": "gpus"}} if queue else {}),
            },
        }
    )


@dataclass
class Machines:
    """A cluster of `free` machines for one elastic job; `now` in seconds since its creation."""

    elastic: dict[str, int]
    batch: int
    free: int = 0
    # What the queue admits; None without a queue.
    admits: int | None = None
    limits: Limits = field(default_factory=Limits)
    other_nodes: int = 0
    suspended: bool = False
    now: float = 0.0
    status: JobStatus = field(default_factory=JobStatus)
    lookups: Lookups = field(default_factory=lambda: Lookups(peers_allowed=True))
    place: SeenBatchJob | None = None
    jobs: dict[int, SeenBatchJob] = field(default_factory=dict)
    pods: list[SeenPod] = field(default_factory=list)
    # Times at which the pods got their nodes and at which they are gone, by uid.
    since: dict[str, float] = field(default_factory=dict)
    gone: dict[str, float] = field(default_factory=dict)
    probe: SeenBatchJob | None = None
    # Of the probe's pods.
    held: int = 0
    table: list[str] = field(default_factory=list)
    # At the end of the last reconcile.
    seen: object = None
    wake_at: float | None = None

    def snapshot(self) -> Snapshot:
        return Snapshot(
            key=Key("team", "flowers"),
            uid="uid",
            generation=1,
            created=BEGIN,
            job=job(self.elastic["min"], self.elastic["max"], self.batch, self.admits is not None, self.suspended),
            status=self.status,
            batch_jobs=tuple(self.jobs.values()),
            pods=tuple(self.pods),
            probe=self.probe,
            queue_job=self.place,
            lookups=self.lookups,
            limits=self.limits,
            other_nodes=self.other_nodes,
        )

    def run(self, seconds: float) -> None:
        """Let time pass. The operator acts when the cluster has changed, or when its plan wanted to be made again."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1
            self.schedule()
            seen = self.observed()
            if seen == self.seen and (self.wake_at is None or BEGIN + self.now < self.wake_at):
                continue
            for _ in range(20):
                found = plan(self.snapshot(), BEGIN + self.now)
                self.wake_at = found.wake_at
                for record in found.event_records:
                    if record.reason in ("Resized", "Started", "Restarting", "Succeeded", "NamespaceFull"):
                        self.say(f"{record.reason}: {record.message}")
                if found.status is not None:
                    self.status = JobStatus.read(found.status.to_json())
                for action in found.actions:
                    self.act(action)
                if not found.actions and found.status is None:
                    break
            else:
                raise AssertionError("the plan does not come to rest")
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
        progress = Progress(
            attempt=self.status.current_attempt, percent_complete=97, estimated_remaining_seconds=seconds
        )
        self.status = self.status.model_copy(update={"progress": progress})

    def observed(self) -> object:
        return dict(self.jobs), list(self.pods), self.probe, self.place, self.free, self.other_nodes, self.suspended

    def say(self, text: str) -> None:
        self.table.append(f"T+{self.now:.0f} {text}")

    @property
    def used(self) -> int:
        return self.held + sum(bool(pod.node) for pod in self.pods if not pod.terminated)

    def schedule(self) -> None:
        self.pods = [pod for pod in self.pods if self.gone.get(pod.uid, self.now + 1) > self.now]
        for number, found in list(self.jobs.items()):
            of_job = [pod for pod in self.pods if pod.attempt == number]
            if found.deleting and not of_job:
                del self.jobs[number]
        if self.place is not None and self.place.suspended and self.admits:
            self.place = replace(self.place, suspended=False, parallelism=min(self.place.parallelism, self.admits))
        for place, pod in enumerate(self.pods):
            if not pod.node and not pod.terminated:
                fits = self.used < self.free
                self.pods[place] = replace(pod, node="node" if fits else "", unscheduled="" if fits else "no node fits")
                self.since[pod.uid] = self.now
        for number, found in self.jobs.items():
            ready = sum(
                bool(pod.node) and self.now >= self.since[pod.uid] + STARTS
                for pod in self.pods
                if pod.attempt == number
            )
            self.jobs[number] = replace(found, ready=ready)
        if self.probe is not None and self.probe.deleting:
            self.probe, self.held = None, 0
        elif self.probe is not None:
            held = max(0, min(self.probe.parallelism, self.held + self.free - self.used))
            if held != self.held:
                self.held = held
                self.probe = replace(self.probe, ready=held, changed=BEGIN + self.now)

    def make_pods(self, made: SeenBatchJob) -> None:
        for index in range(made.parallelism):
            uid = f"{made.name}-{index}"
            self.pods.append(SeenPod(uid, uid, "uid", made.uid, made.attempt, index, "Pending"))

    def act(self, action: Action) -> None:
        match action:
            case StartAttempt():
                self.frozen(action.job)
                size, name = action.attempt_job.processes, f"flowers-{action.number}"
                now = BEGIN + self.now
                queue = self.place.uid if self.place else ""
                made = SeenBatchJob(name, name, "uid", action.number, now, parallelism=size, queue_uid=queue)
                self.jobs[action.number] = made
                self.make_pods(made)
            case JoinQueue():
                size = for_attempt(action.job, nodes=action.nodes).processes
                self.place = SeenBatchJob(
                    "queue", "queue", "uid", -1, BEGIN + self.now, Placement("{}"), parallelism=size, suspended=True
                )
            case ReportToQueue(_, active, ready):
                assert self.place is not None
                self.place = replace(self.place, active=active, ready=ready)
            case StartProbe():
                self.say(f"probe for {action.pods}")
                self.probe = SeenBatchJob(
                    "probe", "probe", "uid", names.PROBE_ATTEMPT, BEGIN + self.now, parallelism=action.pods
                )
                self.held = 0
            case EndAttempt("probe"):
                assert self.probe is not None
                self.say(f"probe deleted, it held {self.held}")
                self.probe = replace(self.probe, deleting=True)
            case EndAttempt(name):
                number = int(name.rpartition("-")[2])
                self.jobs[number] = replace(self.jobs[number], deleting=True)
                for place, pod in enumerate(self.pods):
                    if pod.attempt == number:
                        self.pods[place] = replace(pod, deletion=BEGIN + self.now + 60)
                        self.gone[pod.uid] = self.now + (ENDS if pod.node else 0)
            case ReadEvents(about):
                self.lookups = replace(self.lookups, warnings={about: SeenWarning("", "", BEGIN + self.now)})
            case _:
                raise AssertionError(action)

    def frozen(self, resolved: ResolvedJob) -> None:
        self.lookups = replace(self.lookups, job_text=resolved.to_json())

    def lose(self, count: int) -> None:
        """Machines of running workers are gone: their attempt fails, the other pods end."""
        self.free -= count
        number = self.status.current_attempt or 0
        self.say(f"{count} of its machines are gone")
        kept = []
        for pod in self.pods:
            lost = pod.attempt == number and pod.index < count
            kept.append(
                replace(pod, phase="Failed", exit_code=76)
                if not lost
                else replace(pod, phase="Failed", disruption="DeletionByPodGC", disrupted_at=BEGIN + self.now)
            )
        self.pods = kept
        now = BEGIN + self.now
        self.jobs[number] = replace(
            self.jobs[number], ended="Failed", end_reason="PodFailurePolicy", ended_at=now, changed=now
        )


# By pattern: the job's smallest and largest size, its batch size, what else holds at the start, and the steps: seconds
# that pass, fields of the simulation that change, or what happens.
PATTERNS: dict[str, tuple[tuple[int, int, int], dict[str, Any], tuple[Any, ...]]] = {
    # 2, 3, 4 and 1 workers, one after the other.
    "every_size": ((1, 4, 24), {"free": 2}, (60, {"free": 3}, 150, {"free": 4}, 150, "lose 3", 60)),
    "all_at_once": ((2, 8, 64), {"free": 8}, (400,)),
    # Less than the minimum is waited for; what comes later is taken once elasticWaitSeconds are over.
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
        {"free": 8, "limits": Limits(jobs=JobLimits(nodes_per_namespace=6))},
        (300, {"other_nodes": 2}, 300),
    ),
    # It does not grow for its last two minutes.
    "about_to_end": ((2, 4, 24), {"free": 2}, (60, "nearly done", {"free": 4}, 300)),
}  # fmt: skip


def simulated(sizes: tuple[int, int, int], start: dict[str, Any], steps: tuple[Any, ...]) -> Machines:
    sim = Machines({"min": sizes[0], "max": sizes[1]}, sizes[2], **start)
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


def test_a_job_that_was_resumed_and_waits_for_nodes_starts_with_the_most_that_there_are_then() -> None:
    """It was suspended between the end of an attempt and the next one: its nodes are no longer its own."""
    sim = Machines({"min": 2, "max": 8}, 64, free=8, limits=Limits(jobs=JobLimits(nodes_per_namespace=8)))
    sim.other_nodes = 4
    sim.run(60)
    sim.other_nodes = 0
    sim.run_until("Resized: 4 more")
    sim.suspended = True
    sim.run(30)
    sim.other_nodes, sim.suspended = 7, False
    sim.run(30)
    running = conditions.condition(sim.status, "Running")
    assert running is not None
    assert running.reason == "NamespaceFull"
    sim.other_nodes = 0
    sim.run(30)
    assert [each.workers for each in sim.status.attempts or ()] == [4, 8]


def test_a_job_that_waits_for_nodes_of_its_namespace_keeps_no_probe() -> None:
    """Its pods would occupy machines while the limit allows the job none."""
    sim = Machines({"min": 2, "max": 4}, 24, free=2)
    sim.run(60)
    sim.free = 4
    sim.run_until("Resized: 2 more")
    ended = sim.status
    assert nodes.keeps_probe(ended), "its machines are for the next attempt"
    full = conditions.with_waiting(ended, Phase.RESTARTING, waiting.NAMESPACE_FULL, "", BEGIN, 1)
    assert not nodes.keeps_probe(full)
