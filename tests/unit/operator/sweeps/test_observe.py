"""The jobs of trials as the plan of a sweep sees them, and where their metrics come from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mptraining_api.kubernetes_api import JOBS, PODS
from mptraining_operator.jobs.watch import parse
from mptraining_operator.sweeps.observe import ObservedJobs, final_metrics, trial_job
from tests.unit.operator.api_objects import raw_job, raw_pod


def ended(phase: str, reason: str) -> dict[str, Any]:
    time = "1970-01-01T00:01:00Z"
    condition = {"type": phase, "status": "True", "reason": reason, "message": "words", "lastTransitionTime": time}
    return {"phase": phase, "currentAttempt": 1, "conditions": [condition], "completionTime": time}


@pytest.mark.parametrize(
    ("status", "state", "infrastructure"),
    [
        ({}, "Pending", False),
        ({"phase": "Queued"}, "Pending", False),
        ({"phase": "Running"}, "Running", False),
        ({"phase": "Restarting"}, "Running", False),
        (ended("Succeeded", "Succeeded"), "Succeeded", False),
        (ended("Failed", "ProgramFailed"), "Failed", False),
        (ended("Failed", "OOMKilled"), "Failed", False),
        (ended("Failed", "OutsideLimits"), "Failed", False),
        (ended("Failed", "Preempted"), "Failed", True),
        (ended("Failed", "NodeLost"), "Failed", True),
        (ended("Failed", "PendingTimeout"), "Failed", True),
    ],
)
def test_the_state_of_a_job(status: dict[str, Any], state: str, infrastructure: bool) -> None:
    seen = trial_job(parse.job(raw_job(status=status)))
    assert (seen.state, seen.infrastructure) == (state, infrastructure)


def finished(**metrics: float) -> str:
    about = {"mptraining": 1, "kind": "Finished", "time": 0, "attempt": 1, "incarnation": "a", "worker": 0}
    return json.dumps({**about, "reason": "Succeeded", "exitCode": 0, "message": "", "metrics": metrics})


PROGRESS = {"metrics": [{"name": "loss", "value": "0.123457"}]}


@pytest.mark.parametrize(
    ("message", "progress", "metrics"),
    [
        (finished(loss=0.1234567), None, {"loss": 0.123457}),
        ("not an event", PROGRESS, {"loss": 0.123457}),
        (None, PROGRESS, {"loss": 0.123457}),
        (None, {"metrics": "by hand"}, {}),
        (None, None, {}),
    ],
)
def test_the_final_metrics_are_the_same_from_a_pod_and_from_the_progress(
    api: Any, message: str | None, progress: Any, metrics: dict[str, float]
) -> None:
    status = ended("Succeeded", "Succeeded") | ({"progress": progress} if progress else {})
    job = parse.job(api.put(JOBS, raw_job(status=status)))
    if message is not None:
        state = {"terminated": {"exitCode": 0, "message": message}}
        api.put(PODS, raw_pod(phase="Succeeded", containers=(state,)))
    assert final_metrics(api, job) == metrics


def test_metrics_are_read_once_and_for_undecided_trials_alone(api: Any) -> None:
    raws = [raw_job(name, uid=name, status=ended("Succeeded", "Succeeded")) for name in ("a", "b")]
    jobs = [parse.job(api.put(JOBS, raw)) for raw in raws]
    observed = ObservedJobs()
    for _ in range(3):
        assert set(observed.observe(jobs, {"a"}, api)) == {"a", "b"}
    assert api.calls == [("list", "pods", "")]
    observed.observe(jobs, (), api)
    observed.observe(jobs, {"b"}, api)
    assert len(api.calls) == 2


def test_a_job_that_is_being_deleted_is_no_job(api: Any) -> None:
    raw = raw_job(status={"phase": "Running"})
    raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert ObservedJobs().observe([parse.job(raw)], {"flowers"}, api) == {}
