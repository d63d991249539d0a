"""Following a job, with an API server that is slow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from mptraining.cluster.api import ApiServer
from mptraining.cluster.errors import NoLogs
from mptraining.cluster.follow import JobFollower, Line, Tick
from mptraining.cluster.job import Job
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
