"""Jobs in a queue: the test applies Kueue's changes to their children by hand, on a real API server with the real
scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api import events
from mptraining_api.events import Finished, Saved, Started
from mptraining_records.convert.convert import convert
from tests.testbed import Behaviour, ControlPlane, Exit, Refused, Run
from tests.testbed.kubernetes.queueing import QUEUE_NAME, Flavor, Queue
from tests.testbed.nodes.pod_process import PodProcess
from tests.testbed.nodes.pods import Pod

# Two kinds of nodes; pods get onto either only with the settings that the queue adds.
LABEL, TAINT = "pool", "queue-only"
EAST, WEST = (
    Flavor({LABEL: each}, [{"key": TAINT, "operator": "Equal", "value": each, "effect": "NoSchedule"}])
    for each in ("east", "west")
)
QUEUED = {"queueName": "gpus"}


@pytest.fixture(scope="module")
def ns(scheduled: ControlPlane, new_namespace: Any) -> Iterator[Any]:
    for each in ("east", "west"):
        taint = {"key": TAINT, "value": each, "effect": "NoSchedule"}
        scheduled.nodes.create(f"{each}-1", labels={LABEL: each}, taints=[taint])
    ns = new_namespace(scheduled, "queueing").with_kubelet(bind=False)
    ns.operator()
    yield ns
    ns.close()


@pytest.fixture(scope="module")
def queue(ns: Any) -> Queue:
    return Queue(ns.rest, ns.namespace, "gpus")


def pods(ns: Any, job: str) -> list[Pod]:
    """Return the pods that are not being deleted."""
    found: list[Pod] = ns.control_plane.pods.of_job(ns.namespace, job)
    return [pod for pod in found if not pod.terminating]


def queues(ns: Any, queue: Queue, job: str) -> dict[str, Any]:
    """Wait until the job waits in the queue; return its status."""
    ns.wait(queue.pending, lambda waiting: place(job) in waiting)
    status: dict[str, Any] = ns.phase(job, "Queued")
    return status


def place(job: str) -> str:
    """Return the Job that holds the place of that job in the queue, over all attempts."""
    return f"{job}-queue"


def admit(queue: Queue, job: str, flavor: Flavor) -> None:
    queue.admit(place(job), flavor)


def test_admitted_preempted_and_admitted_elsewhere(ns: Any, queue: Queue) -> None:
    """Each admission is an attempt; no budget is charged, no deadline runs, and the next pods resume."""
    saves = lambda pod: Run(stop_after=0.3 + pod.index)  # noqa: E731
    policy = dict.fromkeys(("pendingTimeoutSeconds", "activeDeadlineSeconds", "progressDeadlineSeconds"), 15)
    ns.create("moved", saves, scheduling=QUEUED, runPolicy=policy)
    status = queues(ns, queue, "moved")
    assert "startTime" not in status
    assert ns.batch_jobs("moved") == []
    made = ns.child("batch/v1 jobs", place("moved"))
    assert (made["spec"]["suspend"], made["spec"]["parallelism"]) == (True, 2)
    assert made["metadata"]["labels"][QUEUE_NAME] == "gpus"

    admit(queue, "moved", EAST)
    ns.running("moved")
    first = pods(ns, "moved-1")
    assert {pod.node for pod in first} == {"east-1"}
    # Kueue keeps the quota of a Job that is stopped for as long as the Job has active pods.
    ns.wait(lambda: ns.child("batch/v1 jobs", place("moved"))["status"], lambda now: now.get("active") == 2)

    queue.preempt(place("moved"))
    queues(ns, queue, "moved")
    assert [pod for pod in pods(ns, "moved-1") if not pod.ended] == [], "the place is given back with the machines"
    admit(queue, "moved", WEST)
    ns.running("moved", attempt=2)
    second = pods(ns, "moved-2")
    assert {pod.node for pod in second} == {"west-1"}
    assert sorted(pod.index for pod in second) == [0, 1]

    queue.preempt(place("moved"))
    status = queues(ns, queue, "moved")
    assert "startTime" not in status
    # Longer than it may wait for nodes, run, or go without a step.
    asked = time.monotonic()
    ns.wait(lambda: ns.status("moved"), lambda _: time.monotonic() > asked + 16)
    ns.scripts["moved"] = lambda pod: Exit(0, after=0.2)
    admit(queue, "moved", EAST)
    status = ns.phase("moved", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["QueuePreempted", "QueuePreempted", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)
    ended = ns.wait(lambda: ns.child("batch/v1 jobs", place("moved")), lambda job: "completionTime" in job["status"])
    assert ended["metadata"]["uid"] == made["metadata"]["uid"]
    ns.wait_for_event("moved", "Queued: the machines were preempted")


def test_a_restart_keeps_the_place_and_a_suspended_job_leaves_the_queue(ns: Any, queue: Queue) -> None:
    def script(pod: Pod) -> Behaviour:
        return Exit(1, after=0.3) if pod.job == "again-1" else Run()

    policy = {"activeDeadlineSeconds": 30}
    ns.create("again", script, scheduling=QUEUED, runPolicy=policy)
    queues(ns, queue, "again")
    admit(queue, "again", EAST)
    status = ns.running("again", attempt=2)
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (1, 0)
    assert {pod.node for pod in pods(ns, "again-2")} == {"east-1"}

    ns.patch("again", {"spec": {"runPolicy": {"suspend": True}}})
    ns.phase("again", "Suspended")
    ns.wait(lambda: ns.child("batch/v1 jobs", place("again")), lambda found: found is None)

    ns.patch("again", {"spec": {"runPolicy": {"suspend": False}}})
    queues(ns, queue, "again")
    ns.scripts["again"] = lambda pod: Exit(0, after=0.2)
    admit(queue, "again", WEST)
    status = ns.phase("again", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Suspended", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (1, 0)


def test_a_job_that_fails_gives_its_place_back(ns: Any, queue: Queue) -> None:
    ns.create("fails", lambda pod: Exit(2, after=0.2), scheduling=QUEUED)
    queues(ns, queue, "fails")
    admit(queue, "fails", EAST)
    ns.phase("fails", "Failed")
    ns.wait(
        lambda: ns.child("batch/v1 jobs", place("fails"))["status"].get("conditions", ()),
        lambda found: [each["type"] for each in found] == ["FailureTarget", "Failed"],
    )


def test_a_job_that_queues_is_deleted_with_its_place(ns: Any, queue: Queue) -> None:
    ns.create("dropped", scheduling=QUEUED)
    queues(ns, queue, "dropped")
    ns.delete("dropped")
    # The garbage collector discovers new kinds of owners twice a minute.
    ns.wait(lambda: ns.child("batch/v1 jobs", place("dropped")), lambda found: found is None)


@pytest.mark.parametrize("runs", [False, True])
def test_somebody_deletes_the_place(ns: Any, queue: Queue, runs: bool) -> None:
    """The operator creates it again, last in its queue; an attempt that ran ends, since its quota is gone."""
    name = f"ousted-{str(runs).lower()}"
    ns.create(name, scheduling=QUEUED)
    queues(ns, queue, name)
    if runs:
        admit(queue, name, EAST)
        ns.running(name)
    path = f"/apis/batch/v1/namespaces/{ns.namespace}/jobs/{place(name)}"
    before = ns.rest.get(path)
    ns.rest.delete(path, {"propagationPolicy": "Background"})
    ns.wait(lambda: ns.child("batch/v1 jobs", place(name)), lambda job: job and job["metadata"]["uid"] != uid(before))
    queues(ns, queue, name)
    ns.scripts[name] = lambda pod: Exit(0, after=0.2)
    admit(queue, name, EAST)
    status = ns.phase(name, "Succeeded")
    assert (status["currentAttempt"], status["infrastructureRestarts"]) == (2 if runs else 1, 0)


def test_a_job_of_another_controller_is_left_alone(ns: Any, queue: Queue) -> None:
    ns.create("theirs", scheduling=QUEUED, managedBy="example.com/farm")
    ns.create("ours", scheduling=QUEUED, managedBy="mptraining.dev/operator")
    ns.phase("ours", "Queued")
    assert ns.get("theirs")["status"] == {"observedGeneration": -1}, "the CRD's default alone"
    assert ns.batch_jobs("theirs") == []
    assert place("theirs") not in queue.pending()
    with pytest.raises(Refused, match=r"spec\.managedBy: expected no change"):
        ns.patch("theirs", {"spec": {"managedBy": None}})


def uid(child: dict[str, Any]) -> str:
    return str(child["metadata"]["uid"])


@pytest.fixture(scope="module")
def by_hand(scheduled: ControlPlane, new_namespace: Any, ns: Any) -> Iterator[Any]:
    """A namespace whose pods the test itself controls."""
    found = new_namespace(scheduled, "trained")
    found.operator()
    yield found
    found.close()


def test_a_real_trainer_resumes_where_its_queue_stopped_it(by_hand: Any, tmp_path: Path) -> None:
    """The pods' own command and environment run on this machine: the second pod resumes from the step that the first
    one saved.
    """
    numbers = np.random.default_rng(5)
    points, labels = numbers.normal(size=(64, 3)).astype(np.float32), numbers.integers(0, 3, 64)
    np.savez(tmp_path / "points.npz", point=points, label=labels)
    convert(str(tmp_path / "points.npz"), str(tmp_path), name="train", keep_order=True)
    by_hand.create(
        "points",
        nodes=1,
        data={"train": [f"{tmp_path}/train-*.tfrecord"], "label": "label"},
        # SIGTERM arrives after the first step, some seconds before the last one.
        training={"totalSteps": 4000, "stepsPerExecution": 1, "batchSize": {"global": 16}, "seed": 3},
        checkpoint={"everySteps": 10000},
        output={"uri": str(tmp_path / "run")},
        scheduling=QUEUED,
    )
    queue = Queue(by_hand.rest, by_hand.namespace, "gpus")
    queues(by_hand, queue, "points")
    admit(queue, "points", EAST)
    with PodProcess(by_hand.rest, placed(by_hand, "points-1"), tmp_path / "east") as first:
        by_hand.running("points")
        first.wait_for('"kind":"Progress"')
        with ThreadPoolExecutor() as kueue:
            # Since Kubernetes 1.36 it ends only when the worker has left.
            preempted = kueue.submit(queue.preempt, place("points"))
            assert first.end(terminate=True) == 75
            preempted.result()
    (saved,) = events_in(first, Saved)
    assert 0 < saved.step < 4000

    queues(by_hand, queue, "points")
    admit(queue, "points", WEST)
    with PodProcess(by_hand.rest, placed(by_hand, "points-2"), tmp_path / "west") as second:
        assert second.end() == 0
    (started,), (finished,) = events_in(second, Started), events_in(second, Finished)
    assert (started.attempt, started.first_step) == (2, saved.step)
    assert (finished.reason, finished.step) == ("Succeeded", 4000)
    assert (tmp_path / "run" / "model" / "model.keras").exists()
    status = by_hand.phase("points", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["QueuePreempted", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)


def placed(ns: Any, job: str) -> Pod:
    """Wait until the only pod of the Job has a node; return the pod."""
    (pod,) = ns.wait(lambda: pods(ns, job), lambda found: [pod for pod in found if pod.node])
    assert isinstance(pod, Pod)
    return pod


def events_in(process: PodProcess, kind: type[Any]) -> list[Any]:
    read = [events.parse(line) for line in process.log.splitlines() if line.startswith("{")]
    return [each for each in read if isinstance(each, kind)]
