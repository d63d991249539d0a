"""Jobs in a queue: the test applies Kueue's changes to their children by hand, on a real API server with the real
scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.testbed import Behaviour, ControlPlane, Exit, Run
from tests.testbed.kubernetes.queueing import QUEUE_NAME, Flavor, Queue
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
    """Each admission is an attempt; no budget is charged, and the next pods resume."""
    ns.create("moved", lambda pod: Run(stop_after=0.3 + pod.index), scheduling=QUEUED)
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


def test_somebody_deletes_the_place(ns: Any, queue: Queue) -> None:
    """The operator creates it again, last in its queue; the attempt ends, since its quota is gone."""
    name = "ousted"
    ns.create(name, scheduling=QUEUED)
    queues(ns, queue, name)
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
    assert (status["currentAttempt"], status["infrastructureRestarts"]) == (2, 0)


def uid(child: dict[str, Any]) -> str:
    return str(child["metadata"]["uid"])
