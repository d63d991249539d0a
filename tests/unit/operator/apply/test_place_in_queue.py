"""A job's place in its queue in an API server: its Job, and the reports about it."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, LOCAL_QUEUES, ApiProblem
from mptraining_operator.jobs.plan.actions import JoinQueue, ReportToQueue, StartAttempt
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job, seen_batch_job
from tests.unit.operator.apply.applied_job import Bench


@pytest.fixture
def queued(api: Any, clock: Clock) -> Bench:
    api.put(LOCAL_QUEUES[0], {"metadata": {"namespace": "team", "name": "gpus"}})
    return Bench(api, clock, raw_job(scheduling={"queueName": "gpus"}))


NOT_SERVED = ApiProblem(404, "NotFound", "the server could not find the requested resource")
NO_QUEUE = ApiProblem(404, "NotFound", 'localqueues.kueue.x-k8s.io "gpus" not found', kind="localqueues")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([NOT_SERVED, NOT_SERVED], "Kueue is not installed"),
        ([NO_QUEUE], "there is none in the namespace 'team'"),
        ([NOT_SERVED, NO_QUEUE], "there is none in the namespace 'team'"),
    ],
)
def test_a_queue_that_nobody_serves_is_reported(queued: Bench, answers: list[ApiProblem], message: str) -> None:
    for resource, answer in zip(LOCAL_QUEUES, answers, strict=False):
        queued.api.refuse("get", resource, answer)
    queued.apply(actions=(JoinQueue(StartAttempt(1, queued.job)),))
    assert queued.api.find(BATCH_JOBS, "team", "flowers-queue") is None
    assert queued.refused[0] == "NoQueue"
    assert message in queued.refused[2]
    queued.apply(actions=(JoinQueue(StartAttempt(1, queued.job)),))
    assert queued.api.find(BATCH_JOBS, "team", "flowers-queue") is not None
    assert queued.lookups.refusal is None


def admit(queued: Bench) -> dict[str, Any]:
    """Create the queue's Job of a job, and admit it as Kueue does."""
    queued.apply(actions=(JoinQueue(StartAttempt(1, queued.job), digest="asked for"),))
    raw = queued.api.find(BATCH_JOBS, "team", "flowers-queue")
    stored: dict[str, Any] = queued.api.put(BATCH_JOBS, {**raw, "spec": {**raw["spec"], "suspend": False}})
    seen = seen_batch_job(stored)
    queued.cache.put_batch_job(queued.snapshot.key, seen.version, seen)
    return stored


def test_an_attempt_remembers_its_place_without_the_owner_reference(queued: Bench) -> None:
    """The garbage collector removes the reference when the queue's Job is deleted."""
    place = admit(queued)
    queued.start()
    raw = queued.api.find(BATCH_JOBS, "team", "flowers-1")
    references = raw["metadata"]["ownerReferences"]
    raw["metadata"]["ownerReferences"] = [reference for reference in references if reference["kind"] != "Job"]
    assert seen_batch_job(raw).queue_uid == place["metadata"]["uid"]


def test_no_attempt_starts_on_a_place_that_was_preempted_meanwhile(queued: Bench) -> None:
    seen = seen_batch_job(admit(queued))
    raw = queued.api.find(BATCH_JOBS, "team", "flowers-queue")
    queued.api.put(BATCH_JOBS, {**raw, "spec": {**raw["spec"], "suspend": True}})
    report = ReportToQueue(seen.name, 2, 0, uid=seen.uid, version=seen.version)
    assert queued.apply(actions=(report, StartAttempt(1, queued.job))), "it is planned again"
    assert queued.api.find(BATCH_JOBS, "team", "flowers-1") is None
    place = queued.snapshot.queue_job
    assert place is not None
    assert (place.suspended, place.active) == (True, 0)


def test_a_report_is_written_to_the_job_as_observed(queued: Bench) -> None:
    seen = seen_batch_job(admit(queued))
    assert not queued.apply(actions=(ReportToQueue(seen.name, 2, 0, uid=seen.uid, version=seen.version),))
    place = queued.snapshot.queue_job
    assert place is not None
    assert (place.queue_digest, place.suspended, place.active) == ("asked for", False, 2)
    assert place.version > seen.version


def test_a_place_without_managed_by_is_deleted_and_reported(queued: Bench) -> None:
    """Kubernetes' Job controller would create its pods."""
    create = queued.api.create

    def without_the_gate(resource: Any, namespace: str, body: dict[str, Any], **kwargs: Any) -> Any:
        spec = {key: value for key, value in body["spec"].items() if key != "managedBy"}
        return create(resource, namespace, {**body, "spec": spec}, **kwargs)

    queued.api.create = without_the_gate
    queued.apply(actions=(JoinQueue(StartAttempt(1, queued.job)),))
    assert queued.api.find(BATCH_JOBS, "team", "flowers-queue") is None
    assert "JobManagedBy" in queued.refused[2]
