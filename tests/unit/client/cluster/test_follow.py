"""Following a job with an API server that is slow, and what `mptj logs` says without a log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import NoLogs
from mptraining.cluster.follow import JobFollower, Line, Tick
from mptraining.cluster.job import Job
from mptraining.cluster.job_view import view
from mptraining.cluster.logs import WorkerPod, explain_no_logs
from mptraining_api.status import ATTEMPT, COMPLETION_INDEX, TRAINER_CONTAINER

TIME = "2026-01-01T00:00:00Z"
FINISHED = {"type": "Finished", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": TIME}


class Slow:
    """Has one job, which has ended, and its pod; returns the pod only when it may."""

    flags: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.may = threading.Event()

    def get(self, *_: object) -> dict[str, Any]:
        status = {"phase": "Succeeded", "currentAttempt": 1, "conditions": [FINISHED]}
        metadata = {"name": "flowers", "namespace": "team", "uid": "u", "creationTimestamp": TIME}
        return {"metadata": metadata, "spec": {"accelerator": {"type": "cpu"}}, "status": status}

    def items(self, *_: object, **__: object) -> list[dict[str, Any]]:
        assert self.may.wait(60)
        says = {ATTEMPT: "1", COMPLETION_INDEX: "0"}
        state = {"name": TRAINER_CONTAINER, "state": {"terminated": {"exitCode": 0}}}
        metadata = {"name": "flowers-1-0-x", "uid": "p", "labels": says}
        return [{"metadata": metadata, "status": {"phase": "Succeeded", "containerStatuses": [state]}}]

    def log(self, *_: object, **__: object) -> Iterator[str]:
        yield f"{TIME} the last words"


def test_the_logs_of_a_job_that_has_ended_are_waited_for_until_they_are_found() -> None:
    server, ticks, said = Slow(), 0, []
    with JobFollower(cast(ApiServer, server), "flowers", "u") as following:
        for update in following.updates(tick_seconds=0.01):
            ticks += isinstance(update, Tick)
            if ticks == 3:
                server.may.set()
            if isinstance(update, Line):
                said.append(update.text)
    assert said == ["the last words"]
    assert ticks >= 3


class Training(Slow):
    """A job of two workers that trains, and whose watch never ends by itself."""

    name, namespace = "test-cluster", "team"

    def in_namespace(self, _: str) -> Training:
        return self

    def get(self, *_: object) -> dict[str, Any]:
        status = {"phase": "Running", "currentAttempt": 1, "workers": 2}
        metadata = {"name": "flowers", "namespace": "team", "uid": "u", "creationTimestamp": TIME}
        metadata["resourceVersion"] = "1"
        return {"metadata": metadata, "spec": {"accelerator": {"type": "cpu"}}, "status": status}

    def watch(self, *_: object) -> Iterator[dict[str, Any]]:
        threading.Event().wait(60)
        yield from ()


def test_the_log_of_a_worker_that_the_job_does_not_have_is_not_waited_for() -> None:
    server = Training()
    server.may.set()
    job = Job(cast(ApiServer, server), server.get())
    with pytest.raises(NoLogs, match="the job has no worker 2; expected one of 0, 1"):
        list(job.log_lines(follow=True, worker=2))
    assert next(job.log_lines(follow=True, worker=0)) == "the last words"


WAITS = {"type": "Running", "status": "False", "reason": "Unschedulable", "message": "no machine fits"}
PODS = [
    WorkerPod(
        attempt, index, "2026-01-01T00:00:00Z", f"flowers-{attempt}-{index}", f"{attempt}-{index}", "Running", True
    )
    for attempt in (2, 3)
    for index in (0, 1)
]


def problem(found: list[WorkerPod], *, current: int | None, workers: int | None = None, **asked: Any) -> str:
    conditions = [{**WAITS, "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    status = {"currentAttempt": current, "workers": workers, "conditions": conditions}
    spec = {"output": asked.pop("output")} if "output" in asked else {}
    asked = {"attempt": None, "worker": None} | asked
    return str(explain_no_logs(found, view({"metadata": {"name": "flowers"}, "spec": spec, "status": status}), **asked))


@pytest.mark.parametrize(
    ("found", "current", "attempt", "worker", "text"),
    [
        (PODS, 3, 9, None, "attempt 9 has not been started: Unschedulable: no machine fits. See: mptj status flowers"),
        (PODS, 3, 1, None,
         "the pods of attempt 1 are deleted, and their logs with them; attempts with pods: 2, 3. See"),
        ([], 3, None, None, "the pods of attempt 3 are deleted, and their logs with them. See: mptj status"),
        (PODS, 3, None, 7, "attempt 3 has no worker 7; expected one of 0, 1"),
        (PODS, 3, None, None, "no worker of attempt 3 has started: Unschedulable"),
        (PODS, 3, None, 1, "worker 1 of attempt 3 has not started: Unschedulable"),
    ],
)  # fmt: skip
def test_a_log_that_is_not_there_is_explained(
    found: list[WorkerPod], current: int | None, attempt: int | None, worker: int | None, text: str
) -> None:
    assert problem(found, current=current, attempt=attempt, worker=worker).startswith(f"flowers: {text}")


@pytest.mark.parametrize("ended", [{}, {"outcome": "InvalidProgram"}])
def test_a_job_that_never_had_a_pod_says_why(ended: dict[str, str]) -> None:
    """The reader is not told of pods that were deleted: there were none."""
    status = {"currentAttempt": 1, "conditions": [{**WAITS, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    status["attempts"] = [{"number": 1, **ended}]
    seen = view({"metadata": {"name": "flowers"}, "spec": {}, "status": status})
    text = str(explain_no_logs([], seen, attempt=None, worker=None))
    assert text.startswith("flowers: no worker of attempt 1 has started: Unschedulable: no machine fits")
    reported = view(seen.document | {"status": {**status, "progress": {"attempt": 1, "step": 3}}})
    text = str(explain_no_logs([], reported, attempt=None, worker=None))
    assert text.startswith("flowers: the pods of attempt 1 are deleted, and their logs with them")


def test_with_a_run_folder_the_events_of_a_deleted_attempt_are_there() -> None:
    text = problem(PODS, current=3, attempt=1, output={"uri": "gs://runs/flowers"})
    assert text.endswith("The events of its workers are in the files 1-*.jsonl of gs://runs/flowers/events")


def test_of_a_failed_attempt_the_pods_that_still_ran_are_deleted() -> None:
    """The Job controller keeps the pod that failed and deletes its peers."""
    failed = [each for each in PODS if (each.attempt, each.index) == (3, 0)]
    text = problem(failed, current=3, worker=1, workers=2, output={"uri": "gs://runs/flowers/"})
    assert "the pod of worker 1 of attempt 3 is deleted, and its log with it" in text
    assert text.endswith("in the files 3-*.jsonl of gs://runs/flowers/events")
    assert "attempt 3 has no worker 2; expected one of 0" in problem(failed, current=3, worker=2, workers=2)
