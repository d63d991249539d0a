"""A job with three alternatives while machines come and go: where it runs, how long it waits.

The table of the twelve patterns is tests/golden/alternatives.yaml; `MPTRAINING_GOLDEN_UPDATE=1` writes it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from mptraining_api.resolve.attempt import for_attempt
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import Attempt, JobStatus, Phase, format_time, parse_time
from mptraining_operator.plan import conditions
from mptraining_operator.plan.actions import (
    EndAttempt,
    ForgetAttempt,
    JoinQueue,
    LeaveQueue,
    Plan,
    ReadEvents,
    StartAttempt,
)
from mptraining_operator.plan.capacity import machines
from mptraining_operator.plan.plan import plan
from mptraining_operator.plan.snapshot import Key, Limits, Lookups, SeenBatchJob, SeenPod, SeenWarning, Snapshot
from mptraining_operator.resources.queue_job import Placement
from tests.unit.operator.plan.machine_patterns import A100, ACCELERATOR, END, L4, PATTERNS, START, T4, TABLE, WORK

UPDATE = bool(os.environ.get("MPTRAINING_GOLDEN_UPDATE"))
BASE = parse_time("2026-01-01T00:00:00Z")
LIMITS = Limits(cluster=ClusterSettings(default_image="trainer:test"))


def job(run_policy: Mapping[str, Any] | None = None, **spec: Any) -> MPTrainingJob:
    return MPTrainingJob.parse(
        {
            "metadata": {"name": "flowers", "namespace": "team"},
            "spec": {
                "accelerator": ACCELERATOR,
                "program": {"application": {"name": "cnn"}},
                "data": {"train": ["gs://bucket/*.tfrecord"]},
                "training": {"epochs": 1, "batchSize": {"global": 64}},
                "runPolicy": {"pendingTimeoutSeconds": 3600, "infrastructureRetries": 5, **(run_policy or {})},
                **spec,
            },
        }
    )


@dataclass
class ClusterSimulation:
    """A cluster whose machines come and go by a pattern, with the operator's plan. Times are seconds after the start.

    A job's pod runs `START` seconds after its machine came and until the machine goes; training continues where it was.
    """

    job: MPTrainingJob
    machines: Mapping[str, tuple[int, ...]]
    limits: Limits = LIMITS
    now: float = 0
    status: JobStatus = field(default_factory=JobStatus)
    frozen: ResolvedJob | None = None
    batch_job: SeenBatchJob | None = None
    pod: SeenPod | None = None
    type: str = ""
    placed: float | None = None
    ended: float | None = None
    work: float = WORK
    records: list[str] = field(default_factory=list)
    lookups: Lookups = field(default_factory=Lookups)
    place: SeenBatchJob | None = None
    queued: list[str] = field(default_factory=list)

    def run(self, until: float = 20_000) -> None:
        while self.now < until and self.status.completion_time is None:
            wake = self._reconcile()
            later = [time for time in (wake, *self._times()) if time is not None and time > self.now]
            if not later:
                return
            self._advance(min(*later, until))

    def _reconcile(self) -> float | None:
        for _ in range(20):
            found = plan(self._snapshot(), BASE + self.now)
            self._apply(found)
            if found.status is None and not found.actions:
                return None if found.wake_at is None else found.wake_at - BASE
        raise AssertionError("the plan does not settle")

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            key=Key("team", "flowers"),
            uid="uid",
            generation=1,
            created=BASE,
            job=self.job,
            status=self.status,
            batch_jobs=(self.batch_job,) if self.batch_job else (),
            pods=(self.pod,) if self.pod else (),
            lookups=self.lookups,
            limits=self.limits,
            queue_job=self.place,
        )

    def _apply(self, found: Plan) -> None:
        if found.status is not None:
            self.status = found.status
        self.records += [f"{self.now:g} {each.reason}: {each.message}" for each in found.event_records]
        for action in found.actions:
            match action:
                case StartAttempt(number, frozen, machine):
                    assert self.pod is None or self.pod.terminated
                    self.frozen = self.frozen or frozen
                    assert frozen == self.frozen
                    self.lookups = Lookups(job_text=frozen.to_json())
                    self.type = action.attempt_job.accelerator.type
                    uid, created = f"job-{number}", BASE + self.now
                    self.batch_job = SeenBatchJob(
                        f"flowers-{number}", uid, "uid", number, created, started=created, machine=machine
                    )
                    self.pod = SeenPod(
                        f"pod-{number}", f"pod-{number}", "uid", uid, number, 0, "Pending", unscheduled="0/9 nodes"
                    )
                    self.placed = self.ended = None
                case EndAttempt():
                    assert self.batch_job is not None
                    self.batch_job = dataclasses.replace(self.batch_job, deleting=True)
                    self.ended = self.now
                case ReadEvents(about):
                    warnings = {about: SeenWarning("", "", BASE + self.now)}
                    self.lookups = dataclasses.replace(self.lookups, warnings=warnings)
                case JoinQueue():
                    self.lookups = Lookups(job_file_missing=True)
                    self.type = for_attempt(action.job, machine=action.machine).accelerator.type
                    self.queued.append(f"{self.now:g}: {self.type}")
                    self.place = SeenBatchJob(
                        "queue",
                        "queue",
                        "uid",
                        -1,
                        BASE + self.now,
                        Placement("{}"),
                        machine=action.machine,
                        suspended=True,
                    )
                case LeaveQueue():
                    self.place = None
                case ForgetAttempt():
                    pass
                case _:
                    raise AssertionError(action)

    def _there(self) -> bool:
        changes = [time for time in self.machines.get(self.type, ()) if time <= self.now]
        return len(changes) % 2 == 1

    def _times(self) -> Iterator[float]:
        yield from (time for times in self.machines.values() for time in times)
        if self.placed is not None:
            yield self.placed + START
            yield self.placed + START + self.work
        if self.ended is not None:
            yield self.ended + END

    def _advance(self, time: float) -> None:
        passed, self.now = time - self.now, time
        if self.ended is not None:
            if self.now >= self.ended + END:
                self.batch_job = self.pod = self.ended = None
            return
        if self.batch_job is None or self.pod is None or self.pod.terminated:
            return
        if self.placed is None:
            if self._there():
                self.placed = self.now
                self.pod = dataclasses.replace(self.pod, node="node", unscheduled="")
            return
        if self.batch_job.ready:
            self.work -= passed
            self.placed += passed
        elif self.now >= self.placed + START:
            self.batch_job = dataclasses.replace(self.batch_job, ready=1)
            self.pod = dataclasses.replace(self.pod, phase="Running", ready=True)
        at = BASE + self.now
        if not self._there():
            self.pod = dataclasses.replace(
                self.pod, phase="Failed", ready=False, disruption="EvictionByEvictionAPI", disrupted_at=at, finished=at
            )
            self.batch_job = dataclasses.replace(
                self.batch_job, ended="Failed", ended_at=at, end_reason="PodFailurePolicy", ready=0, failed=1
            )
        elif self.work <= 0:
            self.pod = dataclasses.replace(self.pod, phase="Succeeded", ready=False, finished=at)
            self.batch_job = dataclasses.replace(self.batch_job, ended="Complete", ended_at=at, ready=0, succeeded=1)


def simulated(pattern: Mapping[str, tuple[int, ...]], **run_policy: Any) -> ClusterSimulation:
    cluster = ClusterSimulation(job(run_policy), pattern)
    cluster.run()
    return cluster


def rows(cluster: ClusterSimulation) -> list[str]:
    """Return one line for each attempt: its machine, policy, times and outcome."""
    found = []
    for each in cluster.status.attempts or ():
        assert each.start_time is not None
        began = parse_time(each.start_time) - BASE
        over = parse_time(each.completion_time) - BASE if each.completion_time else cluster.now
        found.append(
            f"{began:g} to {over:g}: {each.accelerator} (machine {each.machine or 0}), {each.precision}: {each.outcome}"
        )
    return found


def summary(cluster: ClusterSimulation) -> dict[str, Any]:
    status = cluster.status
    return {
        "attempts": rows(cluster),
        "phase": str(status.phase),
        "seconds without training": round(cluster.now - (WORK - cluster.work)),
        "infrastructureRestarts": status.infrastructure_restarts,
        "applicationFailures": status.application_failures,
    }


def test_twelve_patterns_of_machines_give_the_table() -> None:
    table = {name: summary(simulated(pattern)) for name, pattern in PATTERNS.items()}
    if UPDATE:
        TABLE.write_text(yaml.dump(table, sort_keys=False, width=110), encoding="utf-8")
    assert table == yaml.load(TABLE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


@pytest.mark.parametrize(("seconds", "types"), [(800, (A100, L4, T4)), (None, (A100, L4, T4)), (1700, (L4, T4))])
def test_the_last_machine_is_tried_however_long_the_others_are(seconds: int | None, types: tuple[str, ...]) -> None:
    # The times of a job that the rules accept, in the default of pendingTimeoutSeconds.
    first, *others = ({"type": type, "countPerNode": 4} for type in types)
    tried = {} if seconds is None else {"tryForSeconds": seconds}
    found = job({"pendingTimeoutSeconds": 1800}, accelerator=first | tried | {"alternatives": others})
    cluster = ClusterSimulation(found, {T4: (0,)})
    cluster.run()
    assert [each.accelerator for each in cluster.status.attempts or ()][-1] == T4
    assert cluster.status.phase == Phase.SUCCEEDED


def test_events_say_which_machine_is_tried_for_how_long_and_what_follows() -> None:
    cluster = simulated(PATTERNS["only the first alternative is there"])
    assert [each for each in cluster.records if "NoCapacity" in each or "Started" in each] == [
        "3 Started: attempt 1: 1 worker for nvidia-tesla-a100, Mirrored over 8 replicas, mixed_float16; "
        "tries nvidia-tesla-a100 x 8 (Spot) for 300 s, then nvidia-l4 x 8 (Spot)",
        "300 NoCapacity: nvidia-tesla-a100 x 8 (Spot) did not come within 300 s (spec.accelerator.tryForSeconds): "
        "Unschedulable: 1 of 1 workers: 0/9 nodes. Next: nvidia-l4 x 8 (Spot) for 300 s",
        "305 Started: attempt 2: 1 worker for nvidia-l4, Mirrored over 8 replicas, mixed_float16; "
        "tries nvidia-l4 x 8 (Spot) for 300 s, then nvidia-tesla-t4 x 4 (OnDemand)",
    ]


def test_without_a_time_each_machine_is_tried_for_its_share_of_the_pending_timeout() -> None:
    accelerator = {name: value for name, value in ACCELERATOR.items() if name != "tryForSeconds"}
    cluster = ClusterSimulation(job({"pendingTimeoutSeconds": 8000}, accelerator=accelerator), {})
    cluster.run()
    for machine in ("nvidia-tesla-a100 x 8 (Spot)", "nvidia-tesla-t4 x 4 (OnDemand)"):
        assert f"{machine} did not come within 2000 s (spec.accelerator.tryForSeconds)" in "".join(cluster.records)


def test_machines_that_came_are_kept_however_long_their_containers_take_to_start() -> None:
    cluster = ClusterSimulation(job(), {A100: (0,)})
    cluster.run(until=1)
    assert cluster.pod is not None
    cluster.pod = dataclasses.replace(cluster.pod, node="node", unscheduled="", waiting="ContainerCreating")
    cluster.now = 1000
    cluster._reconcile()
    assert [each.outcome for each in cluster.status.attempts or ()] == [None]


def test_a_program_that_fails_is_tried_again_on_the_same_machine() -> None:
    cluster = ClusterSimulation(job(), {L4: (0,)})
    cluster.run(until=500)
    assert cluster.batch_job is not None
    assert cluster.pod is not None
    at = BASE + cluster.now
    cluster.pod = dataclasses.replace(cluster.pod, phase="Failed", ready=False, exit_code=1, finished=at)
    cluster.batch_job = dataclasses.replace(cluster.batch_job, ended="Failed", ended_at=at, ready=0, failed=1)
    cluster.run(until=520)
    attempts = cluster.status.attempts or []
    assert [(each.accelerator, each.outcome) for each in attempts[1:]] == [(L4, "ProgramFailed"), (L4, None)]


def history(*attempts: tuple[int, str, int, int]) -> JobStatus:
    """Return a status of ended attempts, each as (machine, outcome, start, end)."""
    return JobStatus(
        attempts=[
            Attempt(
                number=number, machine=machine or None, outcome=outcome,
                start_time=format_time(BASE + start), completion_time=format_time(BASE + end),
            )
            for number, (machine, outcome, start, end) in enumerate(attempts, 1)
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        # Of the machines that were taken away in moments the one that rests for the shortest time is next.
        ([(0, "Preempted", 0, 10), (1, "NodeLost", 10, 15), (2, "Preempted", 20, 30), (3, "NoCapacity", 30, 630)], 0),
        (
            [(1, "NodeLost", 0, 5), (0, "Preempted", 10, 290), (2, "Preempted", 300, 310), (3, "NoCapacity", 310, 910)],
            1,
        ),
        # A machine that did not come has its turn again; one that was taken away in moments is left out.
        ([(0, "GangReleased", 0, 250)], 1),
        ([(0, "GangReleased", 0, 250), (3, "GangReleased", 250, 500)], 0),
        ([(0, "NoCapacity", 0, 300), (1, "NoCapacity", 300, 600), (3, "NoCapacity", 600, 1200)], 0),
        ([(0, "Preempted", 0, 10), (3, "NoCapacity", 10, 610)], 1),
        # After a loss: the first that neither was absent nor was taken away a moment ago.
        ([(0, "NoCapacity", 0, 300), (1, "Preempted", 300, 700)], 1),
        ([(0, "NoCapacity", 0, 300), (1, "Preempted", 300, 1300)], 0),
        ([(2, "ProgramFailed", 0, 10)], 2),
        ([(2, "Suspended", 0, 10)], 0),
    ],
)
def test_the_machine_after_these_attempts(attempts: list[tuple[int, str, int, int]], expected: int) -> None:
    cluster = ClusterSimulation(job(), {})
    assert machines.next_machine(cluster._snapshot(), history(*attempts), BASE + attempts[-1][3]) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, [f"0: {A100}"]), (1100, [f"0: {A100}", f"1100: {L4}", f"2200: {T4}"])],
)
def test_a_job_queues_for_its_machine_without_limit_unless_that_has_a_time(
    seconds: int | None, expected: list[str]
) -> None:
    accelerator = {**ACCELERATOR, "tryForSeconds": seconds}
    accelerator = {name: value for name, value in accelerator.items() if value is not None}
    cluster = ClusterSimulation(job(accelerator=accelerator, scheduling={"queueName": "gpus"}), {})
    check_queueing(cluster, expected)


def check_queueing(cluster: ClusterSimulation, expected: list[str]) -> None:
    cluster.run(until=3000)
    assert cluster.queued == expected
    assert cluster.batch_job is None
    ended = [(each.outcome, each.accelerator) for each in cluster.status.attempts or ()]
    assert ended == [("NoCapacity", kind.split(" ")[1]) for kind in expected[:-1]]
    assert cluster.status.phase == Phase.QUEUED


def test_a_cluster_without_accelerators_looks_for_no_other_machine() -> None:
    status = JobStatus(conditions=[])
    there = conditions.with_condition(status, "FellBackToCPU", True, "FellBackToCPU", "absent", BASE, 1)
    assert len(machines.tried(job(), status)) == 4
    assert machines.tried(job(), there) == ()
