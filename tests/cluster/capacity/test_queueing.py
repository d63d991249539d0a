"""Jobs in a queue: the test applies Kueue's changes to their children by hand, on a real API server with the real
scheduler.
"""

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
    """Wait until attempt `job` waits in the queue; return the status of its MPTrainingJob."""
    ns.wait(queue.pending, lambda waiting: job in waiting)
    status: dict[str, Any] = ns.phase(job.rpartition("-")[0], "Queued")
    return status


def environment_of(pod: Pod) -> dict[str, Any]:
    """Return the container's environment as the trainer sees it: the same for all workers."""
    (container,) = pod.whole["spec"]["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_admitted_preempted_and_admitted_elsewhere(ns: Any, queue: Queue) -> None:
    """The queue's changes are one attempt: no budget is charged, no deadline runs, and the next pods resume it."""
    saves = lambda pod: Run(stop_after=0.3 + pod.index)  # noqa: E731
    policy = dict.fromkeys(("pendingTimeoutSeconds", "activeDeadlineSeconds", "progressDeadlineSeconds"), 15)
    ns.create("moved", saves, scheduling=QUEUED, runPolicy=policy)
    status = queues(ns, queue, "moved-1")
    assert "startTime" not in status
    assert pods(ns, "moved-1") == []
    (made,) = ns.batch_jobs("moved")
    assert (made["spec"]["suspend"], made["metadata"]["labels"][QUEUE_NAME]) == (True, "gpus")

    queue.admit("moved-1", EAST)
    ns.running("moved")
    first = pods(ns, "moved-1")
    assert {pod.node for pod in first} == {"east-1"}

    queue.preempt("moved-1")
    status = queues(ns, queue, "moved-1")
    assert "startTime" not in status
    # At once, while a worker still saves: the new pod replaces it only after it has exited.
    queue.admit("moved-1", WEST)
    ns.running("moved")
    second = pods(ns, "moved-1")
    assert {pod.node for pod in second} == {"west-1"}
    assert sorted(pod.index for pod in second) == [0, 1]
    # The pods continue the same attempt, with its run folder, names and number, from its last checkpoint.
    assert not {pod.uid for pod in first} & {pod.uid for pod in second}
    assert environment_of(first[0]) == environment_of(second[0])
    assert environment_of(second[0])["MPTRAINING_INCARNATION"] == {
        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.uid"}
    }

    queue.preempt("moved-1")
    queues(ns, queue, "moved-1")
    # Longer than it may wait for nodes, run, or go without a step.
    asked = time.monotonic()
    ns.wait(lambda: ns.status("moved"), lambda _: time.monotonic() > asked + 16)
    ns.scripts["moved"] = lambda pod: Exit(0, after=0.2)
    queue.admit("moved-1", EAST)
    status = ns.phase("moved", "Succeeded")
    assert [(each["number"], each["outcome"]) for each in status["attempts"]] == [(1, "Succeeded")]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)
    # The operator has written the child once, at its creation.
    (child,) = ns.batch_jobs("moved")
    assert child["metadata"]["uid"] == made["metadata"]["uid"]
    assert operators(child) == operators(made)
    said = ns.wait_for_event("moved", "Queued: the machines were preempted")
    assert len([each for each in said if each.startswith("Queued: the machines were preempted")]) == 1


def operators(child: dict[str, Any]) -> list[tuple[str, str]]:
    """Return when and how the operator wrote the object."""
    writers = child["metadata"]["managedFields"]
    return [(each["operation"], each["time"]) for each in writers if each["manager"].startswith("mptraining")]


def test_each_attempt_queues_again_and_a_suspended_job_leaves_the_queue(ns: Any, queue: Queue) -> None:
    def script(pod: Pod) -> Behaviour:
        return Exit(1, after=0.3) if pod.job == "again-1" else Run()

    policy = {"activeDeadlineSeconds": 30}
    ns.create("again", script, scheduling=QUEUED, runPolicy=policy)
    queues(ns, queue, "again-1")
    queue.admit("again-1", EAST)
    status = queues(ns, queue, "again-2")
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (1, 0)
    assert "startTime" not in status, "the first attempt's clock must not run while the second queues"

    ns.patch("again", {"spec": {"runPolicy": {"suspend": True}}})
    ns.phase("again", "Suspended")
    ns.wait(queue.pending, lambda waiting: "again-2" not in waiting)
    ns.wait(lambda: ns.child("batch/v1 jobs", "again-2"), lambda found: found is None)
    ns.wait_for_event("again", "Suspended: no worker runs")

    ns.patch("again", {"spec": {"runPolicy": {"suspend": False}}})
    queues(ns, queue, "again-3")
    ns.scripts["again"] = lambda pod: Exit(0, after=0.2)
    queue.admit("again-3", WEST)
    status = ns.phase("again", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Suspended", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (1, 0)


def test_a_job_that_queues_is_deleted_with_its_child(ns: Any, queue: Queue) -> None:
    ns.create("dropped", scheduling=QUEUED)
    queues(ns, queue, "dropped-1")
    ns.delete("dropped")
    # The garbage collector discovers new kinds of owners twice a minute.
    ns.wait(lambda: ns.child("batch/v1 jobs", "dropped-1"), lambda found: found is None)


def test_somebody_deletes_the_child_that_queues(ns: Any, queue: Queue) -> None:
    """The operator creates it again, and it is the last in its queue."""
    ns.create("ousted", lambda pod: Exit(0, after=0.2), scheduling=QUEUED)
    queues(ns, queue, "ousted-1")
    (before,) = ns.batch_jobs("ousted")
    ns.rest.delete(f"/apis/batch/v1/namespaces/{ns.namespace}/jobs/ousted-1", {"propagationPolicy": "Background"})
    ns.wait(lambda: ns.batch_jobs("ousted"), lambda jobs: jobs and jobs[0]["metadata"]["uid"] != uid(before))
    queues(ns, queue, "ousted-1")
    queue.admit("ousted-1", EAST)
    status = ns.phase("ousted", "Succeeded")
    assert (status["currentAttempt"], status["infrastructureRestarts"]) == (1, 0)


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
        # SIGTERM arrives while its first execution is traced, which takes a second.
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
        queue.preempt("points-1")
        assert first.end(terminate=True) == 75
    (saved,) = events_in(first, Saved)
    assert 0 < saved.step < 400

    queues(by_hand, queue, "points-1")
    queue.admit("points-1", WEST)
    with PodProcess(by_hand.rest, placed(by_hand, "points-1"), tmp_path / "west") as second:
        assert second.end() == 0
    (started,), (finished,) = events_in(second, Started), events_in(second, Finished)
    assert (started.attempt, started.first_step) == (1, saved.step)
    assert (finished.reason, finished.step) == ("Succeeded", 400)
    assert (tmp_path / "run" / "model" / "model.keras").exists()
    status = by_hand.phase("points", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)


def placed(ns: Any, job: str) -> Pod:
    """Wait until the only pod of the Job has a node; return the pod."""
    (pod,) = ns.wait(lambda: pods(ns, job), lambda found: [pod for pod in found if pod.node])
    assert isinstance(pod, Pod)
    return pod


def events_in(process: PodProcess, kind: type[Any]) -> list[Any]:
    read = [events.parse(line) for line in process.log.splitlines() if line.startswith("{")]
    return [each for each in read if isinstance(each, kind)]
