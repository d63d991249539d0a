"""A job's place in its queue: what the planner asks for, and what it reports to Kueue."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mptraining_api import outcomes
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.status import Attempt, Decision, JobStatus, Phase
from mptraining_operator.jobs.place_in_queue import status_changes
from mptraining_operator.jobs.plan import conditions
from mptraining_operator.jobs.plan.actions import (
    DeleteJob,
    EndAttempt,
    JoinQueue,
    LeaveQueue,
    Plan,
    ReportToQueue,
    StartAttempt,
)
from mptraining_operator.jobs.plan.plan import plan
from mptraining_operator.jobs.plan.snapshot import Limits, Lookups, Refusal, SeenBatchJob, SeenPod, Snapshot
from mptraining_operator.runtime.values import Key
from tests.fakes import with_image
from tests.jobs import two_workers

NOW = 1_767_225_600.0
PLACE = SeenBatchJob("flowers-queue", "place", "uid", -1, NOW, "{}", parallelism=2, suspended=True)
ADMITTED = dataclasses.replace(PLACE, suspended=False)
FIRST = SeenBatchJob("flowers-1", "job-1", "uid", 1, NOW, queue_uid="place", parallelism=2, active=2, ready=2)
WORKER = SeenPod("flowers-1-0", "pod", "uid", "job-1", 1, 0, "Running")
RESOLVED = [Decision(decision="image", value="trainer:test", reason="from the runtime default")]
STARTED = JobStatus(
    current_attempt=1,
    attempts=[Attempt(number=1, start_time="2026-01-01T00:00:00Z")],
    workers=2,
    resolved=RESOLVED,
)
RUNNING = conditions.with_running(STARTED, "", NOW, 1)


def snapshot(*, spec: dict[str, Any] | None = None, **parts: Any) -> Snapshot:
    training = {"epochs": 1, "batchSize": {"global": 64}}
    job = two_workers(**{"training": training, "scheduling": {"queueName": "gpus"}, **(spec or {})})
    limits = Limits(cluster=ClusterSettings(runtimes=with_image("trainer:test")))
    whole = {"status": JobStatus(), "limits": limits, **parts}
    return Snapshot(key=Key("team", "flowers"), uid="uid", generation=1, created=NOW, job=job, **whole)


def plan_of_children(seen: Snapshot, now: float) -> Plan:
    """Return the plan that follows that of the intent."""
    intent = plan(seen, now)
    assert intent.job_text
    lookups = dataclasses.replace(seen.lookups, job_text=intent.job_text)
    return plan(dataclasses.replace(seen, status=intent.status, lookups=lookups), now)


def test_a_job_queues_before_its_first_attempt() -> None:
    found = plan(snapshot(), NOW)
    assert [type(action) for action in found.actions] == [JoinQueue]
    assert found.status is not None
    assert (found.status.phase, found.status.current_attempt) == (Phase.QUEUED, None)
    assert found.status.workers == 2, "its workers are reserved in its namespace"
    waits = plan(snapshot(status=found.status, queue_job=PLACE), NOW + 9000)
    assert (waits.status, waits.actions) == (None, ())


@pytest.mark.parametrize(("after", "expected"), [(1.9, []), (2.0, [JoinQueue])])
def test_a_queues_job_that_was_refused_is_created_again_later(after: float, expected: list[type]) -> None:
    refusal = Refusal("Job flowers-queue", "exceeded quota: count/jobs.batch", NOW)
    found = plan(snapshot(lookups=Lookups(refusal=refusal)), NOW + after)
    assert [type(action) for action in found.actions] == expected
    running = conditions.condition(found.status or JobStatus(), "Running")
    assert running is not None
    assert (found.status and found.status.phase, running.reason) == (Phase.QUEUED, "ChildRefused")
    assert running.message.startswith("Job flowers-queue: exceeded quota: count/jobs.batch. It starts when others")
    assert [record.reason for record in found.event_records] == ["ChildRefused"]
    waits = plan(snapshot(status=found.status, lookups=Lookups(refusal=refusal)), NOW + after)
    assert waits.event_records == (), "once per reason"


def test_an_admitted_job_starts_and_reports_to_the_place_that_was_observed() -> None:
    report, start = plan_of_children(snapshot(queue_job=dataclasses.replace(ADMITTED, version=7)), NOW).actions
    assert isinstance(report, ReportToQueue)
    assert isinstance(start, StartAttempt)
    assert (report.active, report.uid, report.version) == (2, "place", 7)


def test_kueue_learns_that_pods_are_active_and_ready() -> None:
    found = plan(snapshot(status=RUNNING, queue_job=ADMITTED, batch_jobs=(FIRST,), pods=(WORKER,)), NOW)
    (report,) = found.actions
    assert isinstance(report, ReportToQueue)
    assert (report.active, report.ready, report.started) == (2, 2, NOW)


def test_a_preemption_charges_nothing_and_gives_the_quota_back_after_the_last_worker() -> None:
    ran = dataclasses.replace(PLACE, active=2, ready=2)
    found = plan(snapshot(status=RUNNING, queue_job=ran, batch_jobs=(FIRST,), pods=(WORKER,)), NOW)
    assert EndAttempt("flowers-1", "job-1") in found.actions
    assert ReportToQueue("flowers-queue", 2, 0, uid="place") in found.actions
    assert found.status is not None
    assert found.status.phase == Phase.QUEUED
    (attempt,) = found.status.attempts or ()
    assert attempt.outcome == outcomes.QUEUE_PREEMPTED.reason
    assert (found.status.application_failures or 0, found.status.infrastructure_restarts or 0) == (0, 0)

    left = plan(snapshot(status=found.status, queue_job=dataclasses.replace(ran, ready=0)), NOW + 5)
    assert ReportToQueue("flowers-queue", 0, 0, uid="place") in left.actions


def test_quota_and_place_stay_between_two_attempts() -> None:
    failed = conditions.with_attempt_ended(RUNNING, outcomes.PROGRAM_FAILED, "", NOW)
    ended = dataclasses.replace(FIRST, ended="Failed", active=0, ready=0)
    place = dataclasses.replace(ADMITTED, active=2, ready=2, started=NOW)
    found = plan(snapshot(status=failed, queue_job=place, batch_jobs=(ended,)), NOW)
    assert found.actions == (ReportToQueue("flowers-queue", 2, 0, started=NOW, uid="place"),)


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
    assert [change["type"] for change in changes["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert (changes["succeeded"], changes["completedIndexes"]) == (2, "0-1")


@pytest.mark.parametrize(
    ("by", "queue", "starts"),
    [("mptraining.dev/operator", {}, True), ("example.com/farm", {"queueName": "gpus"}, False)],
)
def test_a_job_of_another_controller_is_left_alone(by: str, queue: dict[str, str], starts: bool) -> None:
    found = plan(snapshot(spec={"managedBy": by, "scheduling": queue}), NOW)
    assert (found.status is not None, bool(found.job_text)) == (starts, starts)
    assert found.actions == ()


def test_a_finished_job_of_another_controller_has_its_ttl() -> None:
    done = conditions.with_finished(RUNNING, outcomes.SUCCEEDED, "", NOW, 1)
    spec = {"managedBy": "example.com/farm", "runPolicy": {"ttlSecondsAfterFinished": 60}}
    assert plan(snapshot(spec=spec, status=done), NOW + 59).actions == ()
    assert plan(snapshot(spec=spec, status=done), NOW + 61).actions == (DeleteJob("uid"),)


def joined(**spec: Any) -> SeenBatchJob:
    """Return the place of a job with that spec, as its queue admitted it."""
    (join,) = plan(snapshot(spec=spec), NOW).actions
    assert isinstance(join, JoinQueue)
    return dataclasses.replace(ADMITTED, queue_digest=join.digest, parallelism=join.start.attempt_job.workers)


@pytest.mark.parametrize(
    "edited",
    [
        {"workers": 8},
        {"accelerator": {"type": "l4"}},
        {"accelerator": {"type": "t4", "countPerWorker": 2}},
        {"podTemplate": {"resources": {"requests": {"cpu": "7"}}}},
        {"scheduling": {"queueName": "others"}},
        {"scheduling": {"queueName": "gpus", "workloadPriorityClassName": "urgent"}},
    ],
)
def test_a_job_that_is_edited_in_its_queue_leaves_it_and_queues_again(edited: dict[str, Any]) -> None:
    found = plan(snapshot(spec=edited, queue_job=joined()), NOW)
    assert found.actions == (LeaveQueue("flowers-queue", "place"),)


@pytest.mark.parametrize("edited", [{}, {"training": {"epochs": 9, "batchSize": {"global": 64}}}])
def test_what_the_queue_does_not_admit_may_change(edited: dict[str, Any]) -> None:
    found = plan_of_children(snapshot(spec=edited, queue_job=joined()), NOW)
    assert StartAttempt in [type(action) for action in found.actions]


def test_a_job_that_started_keeps_a_place_of_another_version_of_the_operator() -> None:
    failed = conditions.with_attempt_ended(RUNNING, outcomes.PREEMPTED, "", NOW)
    place = dataclasses.replace(ADMITTED, queue_digest="of another version", active=2, started=NOW)
    seen = snapshot(status=failed, queue_job=place, lookups=Lookups(job_text=""))
    found = plan_of_children(seen, NOW + 60)
    assert [type(action) for action in found.actions] == [StartAttempt]


@pytest.mark.parametrize("spec", [{}, {"runPolicy": {"backoffLimit": 1}}])
def test_an_object_of_the_queue_that_can_never_be_created_fails_the_job(spec: dict[str, Any]) -> None:
    refusal = Refusal("Job flowers-queue", "spec.template: Invalid value", NOW, "Invalid")
    status = plan(snapshot(spec=spec, lookups=Lookups(refusal=refusal)), NOW).status
    assert status is not None
    assert (status.phase, status.current_attempt) == (Phase.FAILED, 1)
    assert (status.attempts or [])[0].outcome == outcomes.INVALID_SPEC.reason


TRIED = {"accelerator": {"type": "t4", "tryForSeconds": 60, "alternatives": [{"type": "l4"}]}}


def test_a_machine_that_the_queue_did_not_admit_leaves_a_digest_of_the_job_and_pending_timeout() -> None:
    """Attempt 2 would otherwise take its job from any ConfigMap of that name."""
    status = plan(snapshot(spec=TRIED, queue_job=PLACE), NOW + 60).status
    assert status is not None
    assert [attempt.outcome for attempt in status.attempts or ()] == [outcomes.NO_CAPACITY.reason]
    assert status.job_digest
    assert status.waited_seconds == 0, "time in a queue does not count"


def test_a_place_that_is_being_deleted_has_no_deadline() -> None:
    leaving = dataclasses.replace(PLACE, deleting=True)
    assert plan(snapshot(spec=TRIED, queue_job=leaving), NOW + 61).wake_at is None


@pytest.mark.parametrize(("ran", "waited"), [(False, 30), (True, None)])
def test_a_preemption_before_the_first_step_keeps_the_pending_timeout(ran: bool, waited: int | None) -> None:
    pending = STARTED.model_copy(update={"phase": Phase.PENDING})
    status = RUNNING if ran else pending
    found = plan(snapshot(status=status, queue_job=PLACE, batch_jobs=(FIRST,)), NOW + 30).status
    assert found is not None
    assert found.waited_seconds == waited


def test_the_pending_timeout_counts_on_after_a_preemption() -> None:
    spec = {"runPolicy": {"pendingTimeoutSeconds": 100}}
    pending = STARTED.model_copy(update={"phase": Phase.PENDING})
    preempted = plan(snapshot(spec=spec, status=pending, queue_job=PLACE, batch_jobs=(FIRST,)), NOW + 30).status
    place, again = dataclasses.replace(ADMITTED, uid="place"), NOW + 5000
    frozen = Lookups(job_text="")
    parts = {"spec": spec, "queue_job": place, "lookups": frozen}
    started = plan(snapshot(status=preempted, **parts), again).status
    second = dataclasses.replace(FIRST, name="flowers-2", uid="job-2", attempt=2, created=again, active=2, ready=0)
    for after, phase in ((69, Phase.PENDING), (70, Phase.FAILED)):
        found = plan(snapshot(status=started, batch_jobs=(second,), **parts), again + after)
        assert (found.status or started or JobStatus()).phase == phase


def test_the_active_deadline_counts_from_the_admission_over_all_attempts() -> None:
    place = dataclasses.replace(ADMITTED, active=2, ready=2, started=NOW)
    second = dataclasses.replace(FIRST, name="flowers-2", attempt=2, started=NOW + 500, created=NOW + 500)
    attempts = [Attempt(number=1, outcome="Preempted"), Attempt(number=2, start_time="2026-01-01T00:08:20Z")]
    status = RUNNING.model_copy(update={"current_attempt": 2, "attempts": attempts})
    spec = {"runPolicy": {"activeDeadlineSeconds": 600}}
    parts = {"status": status, "queue_job": place, "batch_jobs": (second,), "pods": (WORKER,)}
    found = plan(snapshot(spec=spec, **parts), NOW + 600).status
    assert found is not None
    assert conditions.is_true(found, "Failed")


def test_a_job_that_waits_for_its_namespace_gives_its_quota_back() -> None:
    limits = Limits(cluster=ClusterSettings(runtimes=with_image("trainer:test", limits={"workersPerNamespace": 2})))
    found = plan(snapshot(limits=limits, other_workers=1, queue_job=ADMITTED), NOW)
    assert found.actions == (LeaveQueue("flowers-queue", "place"),)


def test_an_elastic_attempt_whose_job_is_missing_is_no_larger_than_its_new_admission() -> None:
    spec = {"workers": None, "elastic": {"min": 1, "max": 4}}
    attempts = [Attempt(number=1, start_time="2026-01-01T00:00:00Z", workers=4)]
    status = JobStatus(current_attempt=1, attempts=attempts, workers=4, phase=Phase.PENDING)
    lookups = Lookups(job_text="")
    found = plan_of_children(snapshot(spec=spec, status=status, queue_job=ADMITTED, lookups=lookups), NOW + 1)
    (start,) = [action for action in found.actions if isinstance(action, StartAttempt)]
    assert start.workers == 2
    assert found.status is not None
    assert (found.status.workers, (found.status.attempts or [])[0].workers) == (2, 2)
