"""A job with three alternatives while machines come and go: where it runs, how long it waits.

The table of the twelve patterns is tests/golden/alternatives.yaml; `MPTRAINING_GOLDEN_UPDATE=1` writes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import Attempt, EventRecord, JobStatus, Phase, format_time, parse_time
from mptraining_operator.jobs.plan.actions import Action, EndAttempt, ForgetAttempt, JoinQueue, StartAttempt
from mptraining_operator.jobs.plan.capacity import machines
from mptraining_operator.jobs.plan.snapshot import SeenBatchJob, SeenPod
from tests.jobs import two_workers
from tests.unit.operator.plan.simulated_job import BEGIN, SimulatedJob

TABLE = Path(__file__).parents[3] / "golden" / "alternatives.yaml"
A100, L4, T4, CPU = "a100", "l4", "t4", "cpu"
# Seconds of training that the job needs, of a pod's start and of its end.
WORK, START, END = 3000, 20, 5

ACCELERATOR: dict[str, Any] = {
    "type": A100,
    "countPerWorker": 8,
    "provisioning": "Spot",
    "tryForSeconds": 300,
    "alternatives": [
        {"type": L4, "countPerWorker": 8, "provisioning": "Spot"},
        {"type": T4, "countPerWorker": 4},
        {"type": CPU, "countPerWorker": 4},
    ],
}
# By pattern: the machines of each type, as the times at which they come and go.
PATTERNS: dict[str, dict[str, tuple[int, ...]]] = {
    "the first choice is there": {A100: (0,), CPU: (0,)},
    "the first choice comes in its time": {A100: (200,), CPU: (0,)},
    "only the first alternative is there": {L4: (0,)},
    "only the last alternative is there": {CPU: (0,)},
    "no machine ever comes": {},
    "the first choice comes while the last alternative is tried": {A100: (1000,)},
    "an alternative comes after all were tried once": {T4: (2100,)},
    "the first choice is taken away and back at once": {A100: (0, 1000, 1030)},
    "the first choice is taken away for ever": {A100: (0, 1000), CPU: (0,)},
    "the first choice is taken away in moments, again and again": {A100: (0, 60, 61, 400, 401), T4: (0,)},
    "an alternative is taken away and the first choice is still absent": {CPU: (0, 2500, 2530)},
    "every machine comes and goes": {A100: (0, 500), L4: (600, 1500), T4: (1700, 2300), CPU: (0, 100, 2400)},
}


def described(run_policy: Mapping[str, Any] | None = None, **spec: Any) -> MPTrainingJob:
    training = {"epochs": 1, "batchSize": {"global": 64}}
    policy = {"pendingTimeoutSeconds": 3600, "infrastructureRetries": 5, **(run_policy or {})}
    return two_workers(
        **{"accelerator": ACCELERATOR, "workers": None, "training": training, "runPolicy": policy, **spec}
    )


@dataclass
class ClusterSimulation(SimulatedJob):
    """A cluster whose machines come and go by a pattern.

    A job's pod runs `START` seconds after its machine came and until the machine goes; training continues where it was.
    """

    asked: MPTrainingJob = field(default_factory=described)
    machines: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    type: str = ""
    placed: float | None = None
    ended: float | None = None
    work: float = WORK
    records: list[str] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)

    @property
    def job(self) -> MPTrainingJob:
        return self.asked

    def types(self) -> list[str]:
        """Return the accelerator of each attempt."""
        tried = machines.tried(self.job, JobStatus())
        return [tried[attempt.machine or 0].type for attempt in self.status.attempts or ()]

    def run(self, until: float = 20_000) -> None:
        while self.now < until and self.status.completion_time is None:
            wake = self.settle()
            times = (*(() if wake is None else (wake - BEGIN,)), *self._times())
            later = [time for time in times if time > self.now]
            if not later:
                return
            self._advance(min(*later, until))

    def hear(self, record: EventRecord) -> None:
        self.records.append(f"{self.now:g} {record.reason}: {record.message}")

    def act(self, action: Action) -> None:
        match action:
            case StartAttempt(number):
                super().act(action)
                assert all(pod.terminated for pod in self.pods.values())
                assert action.job.to_json() == self.file
                self.type = action.attempt_job.accelerator.type
                name, uid, pod = f"flowers-{number}", f"job-{number}", f"pod-{number}"
                created = SeenBatchJob(name, uid, "uid", number, self.time, started=self.time, machine=action.machine)
                self.jobs = {name: created}
                self.pods = {pod: SeenPod(pod, pod, "uid", uid, number, 0, "Pending", unscheduled="0/9 nodes")}
                self.placed = self.ended = None
            case EndAttempt(name):
                self.change_job(name, deleting=True)
                self.ended = self.now
            case JoinQueue(start):
                super().act(action)
                self.type = start.attempt_job.accelerator.type
                self.queued.append(f"{self.now:g}: {self.type}")
            case ForgetAttempt():
                pass
            case _:
                super().act(action)

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
                self.jobs, self.pods, self.ended = {}, {}, None
            return
        if not self.pods or all(pod.terminated for pod in self.pods.values()):
            return
        if self.placed is None:
            if self._there():
                self.placed = self.now
                self.change(pod={"node": "node", "unscheduled": ""})
            return
        if next(iter(self.jobs.values())).ready:
            self.work -= passed
            self.placed += passed
        elif self.now >= self.placed + START:
            self.change(job={"ready": 1}, pod={"phase": "Running"})
        if not self._there():
            self.end("Failed", end_reason="PodFailurePolicy", disruption="EvictionByEvictionAPI")
        elif self.work <= 0:
            self.end("Complete")

    def change(self, *, job: Mapping[str, Any] | None = None, pod: Mapping[str, Any] | None = None) -> None:
        """Change the job of the attempt, and its pod."""
        for name in self.jobs:
            self.change_job(name, **(job or {}))
        for name in self.pods:
            self.change_pod(name, **(pod or {}))

    def end(self, how: str, *, end_reason: str = "", disruption: str = "", exit_code: int | None = None) -> None:
        at = self.time
        count = {"succeeded": 1} if how == "Complete" else {"failed": 1}
        disrupted = {"disruption": disruption, "disrupted_at": at} if disruption else {}
        phase = "Succeeded" if how == "Complete" else "Failed"
        self.change(
            job={"ended": how, "ended_at": at, "end_reason": end_reason, "ready": 0, **count},
            pod={"phase": phase, "exit_code": exit_code, "finished": at, **disrupted},
        )


def simulated(
    pattern: Mapping[str, tuple[int, ...]], run_policy: Any = None, *, until: float = 20_000, **spec: Any
) -> ClusterSimulation:
    cluster = ClusterSimulation(asked=described(run_policy, **spec), machines=pattern)
    cluster.run(until)
    return cluster


def rows(cluster: ClusterSimulation) -> list[str]:
    """Return one line for each attempt: its machine, times and outcome."""
    found = []
    for attempt, type in zip(cluster.status.attempts or (), cluster.types(), strict=True):
        assert attempt.start_time is not None
        began = parse_time(attempt.start_time) - BEGIN
        over = parse_time(attempt.completion_time) - BEGIN if attempt.completion_time else cluster.now
        machine = f"{type} (machine {attempt.machine or 0})"
        found.append(f"{began:g} to {over:g}: {machine}: {attempt.outcome}")
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
    if os.environ.get("MPTRAINING_GOLDEN_UPDATE"):
        TABLE.write_text(yaml.dump(table, sort_keys=False, width=110), encoding="utf-8")
    assert table == yaml.load(TABLE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


@pytest.mark.parametrize(("seconds", "types"), [(800, (A100, L4, T4)), (None, (A100, L4, T4)), (1700, (L4, T4))])
def test_the_last_machine_is_tried_however_long_the_others_are(seconds: int | None, types: tuple[str, ...]) -> None:
    # The times of a job that the rules accept, in the default of pendingTimeoutSeconds.
    first, *others = ({"type": type, "countPerWorker": 4} for type in types)
    tried = {} if seconds is None else {"tryForSeconds": seconds}
    accelerator = first | tried | {"alternatives": others}
    cluster = simulated({T4: (0,)}, {"pendingTimeoutSeconds": 1800}, accelerator=accelerator)
    assert (cluster.types()[-1], cluster.status.phase) == (T4, Phase.SUCCEEDED)


def test_events_say_which_machine_is_tried_for_how_long_and_what_follows() -> None:
    records = simulated(PATTERNS["only the first alternative is there"]).records
    assert [record for record in records if "NoCapacity" in record or "Started" in record] == [
        "0 Started: attempt 1: 1 worker for a100, Mirrored over 8 replicas, mixed_float16; "
        "tries a100 x 8 (Spot) for 300 s, then l4 x 8 (Spot)",
        "300 NoCapacity: a100 x 8 (Spot) did not come within 300 s (spec.accelerator.tryForSeconds): "
        "Unschedulable: 1 of 1 workers: 0/9 nodes. Next: l4 x 8 (Spot) for 300 s",
        "305 Started: attempt 2: 1 worker for l4, Mirrored over 8 replicas, mixed_float16; "
        "tries l4 x 8 (Spot) for 300 s, then t4 x 4 (OnDemand)",
    ]


def test_without_a_time_each_machine_is_tried_for_its_share_of_the_pending_timeout() -> None:
    accelerator = {name: value for name, value in ACCELERATOR.items() if name != "tryForSeconds"}
    records = "".join(simulated({}, {"pendingTimeoutSeconds": 8000}, accelerator=accelerator).records)
    for machine in ("a100 x 8 (Spot)", "t4 x 4 (OnDemand)"):
        assert f"{machine} did not come within 2000 s (spec.accelerator.tryForSeconds)" in records


def test_machines_that_came_are_kept_however_long_their_containers_take_to_start() -> None:
    cluster = simulated({A100: (0,)}, until=1)
    cluster.change(pod={"node": "node", "unscheduled": "", "waiting": "ContainerCreating"})
    cluster.now = 1000
    cluster.settle()
    assert [attempt.outcome for attempt in cluster.status.attempts or ()] == [None]


def test_a_program_that_fails_is_tried_again_on_the_same_machine() -> None:
    cluster = simulated({L4: (0,)}, until=500)
    cluster.end("Failed", exit_code=1)
    cluster.run(until=520)
    outcomes = [attempt.outcome for attempt in cluster.status.attempts or ()]
    assert (cluster.types()[1:], outcomes[1:]) == ([L4, L4], ["ProgramFailed", None])


def history(*attempts: tuple[int, str, int, int]) -> JobStatus:
    """Return a status of ended attempts, each as (machine, outcome, start, end)."""
    found = []
    for number, (machine, outcome, start, end) in enumerate(attempts, 1):
        times = {"start_time": format_time(BEGIN + start), "completion_time": format_time(BEGIN + end)}
        found.append(Attempt(number=number, machine=machine or None, outcome=outcome, **times))
    return JobStatus(attempts=found)


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
    now = BEGIN + attempts[-1][3]
    assert machines.next_machine(ClusterSimulation().snapshot(), history(*attempts), now) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(None, [f"0: {A100}"]), (1100, [f"0: {A100}", f"1100: {L4}", f"2200: {T4}"])],
)
def test_a_job_queues_for_its_machine_without_limit_unless_that_has_a_time(
    seconds: int | None, expected: list[str]
) -> None:
    accelerator = {**ACCELERATOR, "tryForSeconds": seconds}
    cluster = simulated({}, until=3000, accelerator=accelerator, scheduling={"queueName": "gpus"})
    assert (cluster.queued, cluster.jobs, cluster.status.phase) == (expected, {}, Phase.QUEUED)
    assert {attempt.outcome for attempt in cluster.status.attempts or ()} <= {"NoCapacity"}
    assert cluster.types() == [kind.split(" ")[1] for kind in expected[:-1]]


def test_a_cluster_without_accelerators_looks_for_no_other_machine() -> None:
    resolved = [{"decision": "machine", "value": "cpu x 1", "reason": "cpuFallback"}]
    fell_back = JobStatus.parse({"resolved": resolved, "attempts": [{"number": 1}]})
    on_alternative = JobStatus.parse({"resolved": resolved, "attempts": [{"number": 1, "machine": 3}]})
    assert len(machines.tried(described(), JobStatus())) == 4
    assert machines.tried(described(), fell_back) == ()
    assert len(machines.tried(described(), on_alternative)) == 4, "the third alternative is a CPU"
    assert machines.absent_accelerator(described(), on_alternative) == ""
    assert machines.absent_accelerator(two_workers(), fell_back) == "t4"
