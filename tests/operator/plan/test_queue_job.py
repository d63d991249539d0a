"""A job's place in its queue: what the planner asks for, and what it reports to Kueue."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mptraining_api import outcomes
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.spec import MPTrainingJob
from mptraining_api.status import Attempt, JobStatus, Phase
from mptraining_operator.kueue.place_in_queue import status_changes
from mptraining_operator.plan import conditions
from mptraining_operator.plan.actions import (
    CreateWorkload,
    DeleteJob,
    EndAttempt,
    JoinQueue,
    LeaveQueue,
    ReportToQueue,
    StartAttempt,
)
from mptraining_operator.plan.plan import plan
from mptraining_operator.plan.snapshot import Key, Limits, Lookups, Refusal, SeenBatchJob, SeenPod, Snapshot
from mptraining_operator.resources.queue_job import Placement

NOW = 1_767_225_600.0
PLACE = SeenBatchJob("flowers-queue", "place", "uid", -1, NOW, Placement("{}"), parallelism=2, suspended=True)
ADMITTED = dataclasses.replace(PLACE, suspended=False)
FIRST = SeenBatchJob("flowers-1", "job-1", "uid", 1, NOW, queue_uid="place", parallelism=2, active=2, ready=2)
WORKER = SeenPod("flowers-1-0", "pod", "uid", "job-1", 1, 0, "Running")
RUNNING = conditions.with_running(
    JobStatus(current_attempt=1, attempts=[Attempt(number=1, start_time="2026-01-01T00:00:00Z")], workers=2), "", NOW, 1
)


def snapshot(*, spec: dict[str, Any] | None = None, **parts: Any) -> Snapshot:
    job = MPTrainingJob.parse(
        {
            "metadata": {"name": "flowers", "namespace": "team"},
            "spec": {
                "accelerator": {"type": "nvidia-tesla-t4"},
                "nodes": 2,
                "program": {"application": {"name": "cnn"}},
                "data": {"train": ["gs://bucket/*.tfrecord"]},
                "training": {"epochs": 1, "batchSize": {"global": 64}},
                "scheduling": {"queueName": "gpus"},
                **(spec or {}),
            },
        }
    )
    limits = Limits(cluster=ClusterSettings(default_image="trainer:test"))
    whole = {"status": JobStatus(), "limits": limits, "lookups": Lookups(peers_allowed=True), **parts}
    return Snapshot(key=Key("team", "flowers"), uid="uid", generation=1, created=NOW, job=job, **whole)


def test_a_job_queues_before_its_first_attempt() -> None:
    found = plan(snapshot(), NOW)
    assert [type(each) for each in found.actions] == [JoinQueue]
    assert found.status is not None
    assert (found.status.phase, found.status.current_attempt) == (Phase.QUEUED, None)
    assert found.status.workers == 2, "its nodes are reserved in its namespace"
    waits = plan(snapshot(status=found.status, queue_job=PLACE), NOW + 9000)
    assert (waits.status, waits.actions) == (None, ())


@pytest.mark.parametrize(("after", "expected"), [(1.9, []), (2.0, [JoinQueue])])
def test_a_queues_job_that_was_refused_is_created_again_later(after: float, expected: list[type]) -> None:
    refusal = Refusal("Job flowers-queue", "exceeded quota: count/jobs.batch", NOW)
    found = plan(snapshot(lookups=Lookups(refusal=refusal)), NOW + after)
    assert [type(each) for each in found.actions] == expected
    running = conditions.condition(found.status or JobStatus(), "Running")
    assert running is not None
    assert (running.reason, running.message) == ("ChildRefused", "Job flowers-queue: exceeded quota: count/jobs.batch")


def test_an_admitted_job_starts() -> None:
    assert [type(each) for each in plan(snapshot(queue_job=ADMITTED), NOW).actions] == [StartAttempt]


def test_without_managed_by_each_attempt_queues_by_itself() -> None:
    found = plan(snapshot(lookups=Lookups(attempts_queue=True)), NOW)
    assert [type(each) for each in found.actions] == [StartAttempt]


def test_kueue_learns_that_pods_are_active_and_ready() -> None:
    found = plan(snapshot(status=RUNNING, queue_job=ADMITTED, batch_jobs=(FIRST,), pods=(WORKER,)), NOW)
    (report,) = found.actions
    assert isinstance(report, ReportToQueue)
    assert (report.active, report.ready, report.started) == (2, 2, NOW)


def test_a_preemption_charges_nothing_and_gives_the_quota_back_after_the_last_worker() -> None:
    ran = dataclasses.replace(PLACE, active=2, ready=2)
    found = plan(snapshot(status=RUNNING, queue_job=ran, batch_jobs=(FIRST,), pods=(WORKER,)), NOW)
    assert EndAttempt("flowers-1", "job-1") in found.actions
    assert ReportToQueue("flowers-queue", 2, 0) in found.actions
    assert found.status is not None
    assert found.status.phase == Phase.QUEUED
    (attempt,) = found.status.attempts or ()
    assert attempt.outcome == outcomes.QUEUE_PREEMPTED.reason
    assert (found.status.application_failures or 0, found.status.infrastructure_restarts or 0) == (0, 0)

    left = plan(snapshot(status=found.status, queue_job=dataclasses.replace(ran, ready=0)), NOW + 5)
    assert ReportToQueue("flowers-queue", 0, 0) in left.actions


def test_quota_and_place_stay_between_two_attempts() -> None:
    failed = conditions.with_attempt_ended(RUNNING, outcomes.PROGRAM_FAILED, "", NOW)
    ended = dataclasses.replace(FIRST, ended="Failed", active=0, ready=0)
    place = dataclasses.replace(ADMITTED, active=2, ready=2, started=NOW)
    found = plan(snapshot(status=failed, queue_job=place, batch_jobs=(ended,)), NOW)
    assert found.actions == (ReportToQueue("flowers-queue", 2, 0, started=NOW),)


def test_a_suspended_job_leaves_the_queue_after_its_workers() -> None:
    suspended = {"runPolicy": {"suspend": True}}
    place = dataclasses.replace(ADMITTED, active=2, ready=2, started=NOW)
    parts = {"status": RUNNING, "queue_job": place}
    found = plan(snapshot(spec=suspended, batch_jobs=(FIRST,), pods=(WORKER,), **parts), NOW)
    assert LeaveQueue("flowers-queue", "place") not in found.actions
    found = plan(snapshot(spec=suspended, **{**parts, "status": found.status}), NOW)
    assert found.actions == (LeaveQueue("flowers-queue", "place"),)


def test_the_end_of_the_job_ends_its_workload() -> None:
    done = conditions.with_finished(RUNNING, outcomes.SUCCEEDED, "", NOW, 1)
    ended = dataclasses.replace(FIRST, ended="Complete", active=0, ready=0, succeeded=2)
    (report,) = plan(snapshot(status=done, queue_job=ADMITTED, batch_jobs=(ended,)), NOW).actions
    assert isinstance(report, ReportToQueue)
    changes = status_changes(report, NOW)
    assert [each["type"] for each in changes["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert (changes["succeeded"], changes["completedIndexes"]) == (2, "0-1")


@pytest.mark.parametrize(
    ("by", "queue", "lookups", "expected"),
    [
        ("mptraining.dev/operator", {}, Lookups(), [StartAttempt]),
        ("example.com/farm", {"queueName": "gpus"}, Lookups(), []),
        ("kueue.x-k8s.io/multikueue", {}, Lookups(), []),
        ("kueue.x-k8s.io/multikueue", {"queueName": "gpus"}, Lookups(), [CreateWorkload]),
        ("kueue.x-k8s.io/multikueue", {"queueName": "gpus"}, Lookups(workload_exists=True), []),
    ],
)
def test_a_job_of_another_controller_is_left_alone(
    by: str, queue: dict[str, str], lookups: Lookups, expected: list[type]
) -> None:
    found = plan(snapshot(spec={"managedBy": by, "scheduling": queue}, lookups=lookups), NOW)
    assert found.status is None
    assert [type(each) for each in found.actions] == expected


def test_a_finished_job_of_another_controller_has_its_ttl() -> None:
    done = conditions.with_finished(RUNNING, outcomes.SUCCEEDED, "", NOW, 1)
    spec = {"managedBy": "kueue.x-k8s.io/multikueue", "runPolicy": {"ttlSecondsAfterFinished": 60}}
    assert plan(snapshot(spec=spec, status=done), NOW + 59).actions == ()
    assert plan(snapshot(spec=spec, status=done), NOW + 61).actions == (DeleteJob("uid"),)
