"""A real trainer in a queue: preempted after its first step, it resumes on another machine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mptraining_api import events
from mptraining_api.events import Finished, Saved, Started
from mptraining_records.convert.convert import convert
from tests.testbed import ControlPlane
from tests.testbed.kubernetes.queueing import Flavor, Queue
from tests.testbed.nodes.pod_process import PodProcess
from tests.testbed.nodes.pods import Pod

EAST, WEST = (Flavor({"pool": name}, []) for name in ("east", "west"))
PLACE = "points-queue"


@pytest.fixture
def by_hand(scheduled: ControlPlane, new_namespace: Any) -> Iterator[Any]:
    """A namespace whose pods the test itself controls."""
    for name in ("east", "west"):
        scheduled.nodes.create(f"{name}-1", labels={"pool": name})
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
        workers=1,
        data={"train": [f"{tmp_path}/train-*.tfrecord"], "label": "label"},
        # SIGTERM arrives after the first step, some seconds before the last one.
        training={"totalSteps": 4000, "stepsPerExecution": 1, "batchSize": {"global": 16}, "seed": 3},
        checkpoint={"everySteps": 10000},
        output={"uri": str(tmp_path / "run")},
        scheduling={"queueName": "gpus"},
    )
    queue = Queue(by_hand.rest, by_hand.namespace, "gpus")
    queues(by_hand, queue)
    queue.admit(PLACE, EAST)
    with PodProcess(by_hand.rest, placed(by_hand, "points-1"), tmp_path / "east") as first:
        by_hand.running("points")
        first.wait_for('"kind":"Progress"')
        with ThreadPoolExecutor() as kueue:
            # Since Kubernetes 1.36 it ends only when the worker has left.
            preempted = kueue.submit(queue.preempt, PLACE)
            assert first.end(terminate=True) == 75
            preempted.result()
    (saved,) = events_in(first, Saved)
    assert 0 < saved.step < 4000

    queues(by_hand, queue)
    queue.admit(PLACE, WEST)
    with PodProcess(by_hand.rest, placed(by_hand, "points-2"), tmp_path / "west") as second:
        assert second.end(seconds=600) == 0
    (started,), (finished,) = events_in(second, Started), events_in(second, Finished)
    assert (started.attempt, started.first_step) == (2, saved.step)
    assert (finished.reason, finished.step) == ("Succeeded", 4000)
    assert (tmp_path / "run" / "model" / "model.keras").exists()
    status = by_hand.phase("points", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["QueuePreempted", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)


def queues(ns: Any, queue: Queue) -> None:
    ns.wait(queue.pending, lambda waiting: PLACE in waiting)
    ns.phase("points", "Queued")


def placed(ns: Any, job: str) -> Pod:
    """Wait until the only pod of the Job has a node; return the pod."""
    look = lambda: [pod for pod in ns.control_plane.pods.of_job(ns.namespace, job) if not pod.terminating]  # noqa: E731
    (pod,) = ns.wait(look, lambda found: [pod for pod in found if pod.node])
    assert isinstance(pod, Pod)
    return pod


def events_in(process: PodProcess, kind: type[Any]) -> list[Any]:
    read = [events.parse(line) for line in process.log.splitlines() if line.startswith("{")]
    return [each for each in read if isinstance(each, kind)]
