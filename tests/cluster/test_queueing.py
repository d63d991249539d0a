"""Jobs in a queue: what Kueue does to their children is done by hand, on a real API server with the real scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api import events
from mptraining_api.events import Finished, Saved, Started
from mptraining_records.convert.convert import convert
from tests.testbed import Behaviour, ControlPlane, Exit, Run
from tests.testbed.kubernetes.queueing import QUEUE_NAME, Flavor, Queue
from tests.testbed.nodes.pod_process import PodProcess
from tests.testbed.nodes.pods import Pod

# Two kinds of machines, and nobody gets onto either without what the queue gives him.
LABEL, TAINT = "pool", "queue-only"
EAST, WEST = (
    Flavor({LABEL: each}, [{"key": TAINT, "operator": "Equal", "value": each, "effect": "NoSchedule"}])
    for each in ("east", "west")
)
QUEUED = {"queueName": "gpus"}


@pytest.fixture(scope="module")
def life(scheduled: ControlPlane, new_life: Any) -> Iterator[Any]:
    for each in ("east", "west"):
        taint = {"key": TAINT, "value": each, "effect": "NoSchedule"}
        scheduled.nodes.create(f"{each}-1", labels={LABEL: each}, taints=[taint])
    life = new_life(scheduled, "queueing").with_kubelet(bind=False)
    life.operator()
    yield life
    life.close()


@pytest.fixture(scope="module")
def queue(life: Any) -> Queue:
    return Queue(life.rest, life.namespace, "gpus")


def pods(life: Any, job: str) -> list[Pod]:
    """Those that are not about to leave."""
    found: list[Pod] = life.control_plane.pods.of_job(life.namespace, job)
    return [pod for pod in found if not pod.terminating]


def queues(life: Any, queue: Queue, job: str) -> dict[str, Any]:
    """The status of the job whose attempt `job` waits in the queue."""
    life.wait(queue.pending, lambda waiting: job in waiting)
    status: dict[str, Any] = life.phase(job.rpartition("-")[0], "Queued")
    return status


def told(pod: Pod) -> dict[str, Any]:
    """What the trainer is told: its environment, the same for all workers."""
    (container,) = pod.whole["spec"]["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_admitted_taken_back_and_admitted_elsewhere(life: Any, queue: Queue) -> None:
    """One attempt, whatever the queue does: nothing is charged, no clock runs, and the pods after it go on."""
    saves = lambda pod: Run(stop_after=0.3 + pod.index)  # noqa: E731
    policy = dict.fromkeys(("pendingTimeoutSeconds", "activeDeadlineSeconds", "progressDeadlineSeconds"), 15)
    life.create("moved", saves, scheduling=QUEUED, runPolicy=policy)
    status = queues(life, queue, "moved-1")
    assert "startTime" not in status
    assert pods(life, "moved-1") == []
    (made,) = life.batch_jobs("moved")
    assert (made["spec"]["suspend"], made["metadata"]["labels"][QUEUE_NAME]) == (True, "gpus")

    queue.admit("moved-1", EAST)
    life.running("moved")
    first = pods(life, "moved-1")
    assert {pod.node for pod in first} == {"east-1"}

    queue.take_back("moved-1")
    status = queues(life, queue, "moved-1")
    assert "startTime" not in status
    # At once, while a worker still saves: its place is taken only when it has left.
    queue.admit("moved-1", WEST)
    life.running("moved")
    second = pods(life, "moved-1")
    assert {pod.node for pod in second} == {"west-1"}
    assert sorted(pod.index for pod in second) == [0, 1]
    # Another incarnation of the same attempt: the same run folder, names and number, from its last checkpoint.
    assert not {pod.uid for pod in first} & {pod.uid for pod in second}
    assert told(first[0]) == told(second[0])
    assert told(second[0])["MPTRAINING_INCARNATION"] == {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}}

    queue.take_back("moved-1")
    queues(life, queue, "moved-1")
    # Longer than it may wait for machines, run, or go without a step.
    asked = time.monotonic()
    life.wait(lambda: life.status("moved"), lambda _: time.monotonic() > asked + 16)
    life.scripts["moved"] = lambda pod: Exit(0, after=0.2)
    queue.admit("moved-1", EAST)
    status = life.phase("moved", "Succeeded")
    assert [(each["number"], each["outcome"]) for each in status["attempts"]] == [(1, "Succeeded")]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)
    # The operator made the child and left it alone.
    (child,) = life.batch_jobs("moved")
    assert child["metadata"]["uid"] == made["metadata"]["uid"]
    assert operators(child) == operators(made)
    said = life.told("moved", "Queued: the machines were taken")
    assert len([each for each in said if each.startswith("Queued: the machines were taken")]) == 1


def operators(child: dict[str, Any]) -> list[tuple[str, str]]:
    """When and how the operator wrote the object."""
    writers = child["metadata"]["managedFields"]
    return [(each["operation"], each["time"]) for each in writers if each["manager"].startswith("mptraining")]


def test_each_attempt_queues_again_and_a_suspended_job_leaves_the_queue(life: Any, queue: Queue) -> None:
    def script(pod: Pod) -> Behaviour:
        return Exit(1, after=0.3) if pod.job == "again-1" else Run()

    policy = {"activeDeadlineSeconds": 30}
    life.create("again", script, scheduling=QUEUED, runPolicy=policy)
    queues(life, queue, "again-1")
    queue.admit("again-1", EAST)
    status = queues(life, queue, "again-2")
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (1, 0)
    assert "startTime" not in status, "the first attempt's clock must not run while the second queues"

    life.patch("again", {"spec": {"runPolicy": {"suspend": True}}})
    life.phase("again", "Suspended")
    life.wait(queue.pending, lambda waiting: "again-2" not in waiting)
    life.wait(lambda: life.child("batch/v1 jobs", "again-2"), lambda found: found is None)
    life.told("again", "Suspended: no worker runs")

    life.patch("again", {"spec": {"runPolicy": {"suspend": False}}})
    queues(life, queue, "again-3")
    life.scripts["again"] = lambda pod: Exit(0, after=0.2)
    queue.admit("again-3", WEST)
    status = life.phase("again", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Suspended", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (1, 0)


def test_a_job_that_queues_is_deleted_with_its_child(life: Any, queue: Queue) -> None:
    life.create("dropped", scheduling=QUEUED)
    queues(life, queue, "dropped-1")
    life.delete("dropped")
    # The garbage collector looks for new kinds of owners twice a minute.
    life.wait(lambda: life.child("batch/v1 jobs", "dropped-1"), lambda found: found is None)


def test_somebody_deletes_the_child_that_queues(life: Any, queue: Queue) -> None:
    """It is made again and takes its place at the end of the queue."""
    life.create("ousted", lambda pod: Exit(0, after=0.2), scheduling=QUEUED)
    queues(life, queue, "ousted-1")
    (before,) = life.batch_jobs("ousted")
    life.rest.delete(f"/apis/batch/v1/namespaces/{life.namespace}/jobs/ousted-1", {"propagationPolicy": "Background"})
    life.wait(lambda: life.batch_jobs("ousted"), lambda jobs: jobs and jobs[0]["metadata"]["uid"] != uid(before))
    queues(life, queue, "ousted-1")
    queue.admit("ousted-1", EAST)
    status = life.phase("ousted", "Succeeded")
    assert (status["currentAttempt"], status["infrastructureRestarts"]) == (1, 0)


def uid(child: dict[str, Any]) -> str:
    return str(child["metadata"]["uid"])


@pytest.fixture(scope="module")
def by_hand(scheduled: ControlPlane, new_life: Any, life: Any) -> Iterator[Any]:
    """A namespace whose pods are what the test makes of them."""
    found = new_life(scheduled, "trained")
    found.operator()
    yield found
    found.close()


def test_a_real_trainer_goes_on_where_its_queue_stopped_it(by_hand: Any, tmp_path: Path) -> None:
    """The pods' own command and environment, run here: the second goes on from the step that the first one saved."""
    numbers = np.random.default_rng(5)
    points, labels = numbers.normal(size=(64, 3)).astype(np.float32), numbers.integers(0, 3, 64)
    np.savez(tmp_path / "points.npz", point=points, label=labels)
    convert(str(tmp_path / "points.npz"), str(tmp_path), name="train")
    by_hand.create(
        "points",
        nodes=1,
        data={"train": [f"{tmp_path}/train-*.tfrecord"], "label": "label"},
        # It is told to leave while its first execution is traced, which takes a second.
        training={"totalSteps": 400, "stepsPerExecution": 1, "batchSize": {"global": 16}, "seed": 3},
        checkpoint={"everySteps": 1000},
        output={"uri": str(tmp_path / "run")},
        scheduling=QUEUED,
    )
    queue = Queue(by_hand.rest, by_hand.namespace, "gpus")
    queues(by_hand, queue, "points-1")
    queue.admit("points-1", EAST)
    with PodProcess(by_hand.rest, placed(by_hand, "points-1"), tmp_path / "east") as first:
        by_hand.running("points")
        first.wait_for('"kind":"Started"')
        queue.take_back("points-1")
        assert first.end(told=True) == 75
    (saved,) = said(first, Saved)
    assert 0 < saved.step < 400

    queues(by_hand, queue, "points-1")
    queue.admit("points-1", WEST)
    with PodProcess(by_hand.rest, placed(by_hand, "points-1"), tmp_path / "west") as second:
        assert second.end() == 0
    (started,), (finished,) = said(second, Started), said(second, Finished)
    assert (started.attempt, started.first_step) == (1, saved.step)
    assert (finished.reason, finished.step) == ("Succeeded", 400)
    assert (tmp_path / "run" / "model" / "model.keras").exists()
    status = by_hand.phase("points", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)


def placed(life: Any, job: str) -> Pod:
    """The only pod of the Job, once it has a node."""
    (pod,) = life.wait(lambda: pods(life, job), lambda found: [pod for pod in found if pod.node])
    assert isinstance(pod, Pod)
    return pod


def said(process: PodProcess, kind: type[Any]) -> list[Any]:
    read = [events.parse(line) for line in process.log.splitlines() if line.startswith("{")]
    return [each for each in read if isinstance(each, kind)]
