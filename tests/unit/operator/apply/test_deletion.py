"""Jobs and pods are ended by the uid that was seen."""

from __future__ import annotations

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, PODS, ApiProblem
from mptraining_operator.jobs.plan.actions import DeleteJob, DeletePod, EndAttempt, ForgetAttempt
from mptraining_operator.jobs.plan.snapshot import Limits
from tests.unit.operator.api_objects import raw_batch_job, raw_pod, seen_batch_job, seen_pod, version_of
from tests.unit.operator.apply.applied_job import KEY, Bench


def test_deletions_are_of_the_uid_that_was_seen(bench: Bench) -> None:
    bench.start()
    uid = bench.snapshot.batch_jobs[0].uid
    assert not bench.apply(actions=(EndAttempt("flowers-1", "another"), ForgetAttempt("flowers-9", "gone")))
    assert bench.api.find(BATCH_JOBS, "team", "flowers-1")
    assert not bench.apply(actions=(EndAttempt("flowers-1", uid),))
    assert bench.api.find(BATCH_JOBS, "team", "flowers-1") is None
    assert not bench.apply(actions=(DeletePod("nobody", "x", "flowers-1", uid), DeleteJob("job-1")))
    assert bench.api.find(JOBS, "team", "flowers") is None


def test_a_pod_whose_job_is_there_after_all_is_left_alone(bench: Bench) -> None:
    """Events of pods may arrive before the event of their Job."""
    bench.start()
    uid = bench.snapshot.batch_jobs[0].uid
    calls = len(bench.api.calls)
    assert bench.apply(actions=(DeletePod("flowers-1-0", "x", "flowers-1", uid),))
    assert [call[0] for call in bench.api.calls[calls:]] == ["get"]


@pytest.mark.parametrize("lost", ["label", "owner"])
def test_a_job_whose_label_or_owner_was_removed_is_ended(bench: Bench, lost: str) -> None:
    """Its pods are the job's, and no controller manages them: they are ended once, not in a loop."""
    bench.start()
    stored = bench.api.get(BATCH_JOBS, "team", "flowers-1")
    uid = stored["metadata"]["uid"]
    del stored["metadata"]["labels" if lost == "label" else "ownerReferences"]
    stored = bench.api.put(BATCH_JOBS, stored)
    if lost == "label":
        # A stream with a selector reports it as deleted; its status continues to change.
        bench.cache.remove_child(KEY, uid, version_of(stored))
        bench.api.put(BATCH_JOBS, stored)
    else:
        bench.cache.put_batch_job(KEY, version_of(stored), seen_batch_job(stored))
    assert bench.snapshot.batch_jobs == ()
    bench.api.calls.clear()
    assert not bench.apply(actions=(DeletePod("flowers-1-0", "x", "flowers-1", uid),))
    assert bench.api.calls == [("get", "jobs", "flowers-1"), ("delete", "jobs", "flowers-1")]


def test_a_job_without_label_that_is_going_is_left_to_go(bench: Bench) -> None:
    bench.start()
    stored = bench.api.get(BATCH_JOBS, "team", "flowers-1")
    del stored["metadata"]["ownerReferences"]
    stored["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    stored = bench.api.put(BATCH_JOBS, stored)
    bench.api.calls.clear()
    assert not bench.apply(actions=(DeletePod("flowers-1-0", "x", "flowers-1", stored["metadata"]["uid"]),))
    assert bench.api.calls == [("get", "jobs", "flowers-1")]


@pytest.mark.parametrize("other", [False, True])
def test_a_deletion_without_an_event_is_learnt_from_the_response(bench: Bench, other: bool) -> None:
    """Otherwise the next attempt would wait until the next list for a pod that is gone."""
    pod, job = raw_pod(), raw_batch_job()
    bench.cache.put_pod(KEY, 30, seen_pod(pod))
    bench.cache.put_batch_job(KEY, 20, seen_batch_job(job))
    if other:
        bench.api.put(PODS, raw_pod(uid="pod-9"))
        bench.api.put(BATCH_JOBS, raw_batch_job(uid="batch-9"))
    assert bench.apply(actions=(DeletePod("flowers-1-0-abcde", "pod-0", "flowers-7", "batch-7"),))
    assert bench.snapshot.pods == ()
    assert bench.apply(actions=(EndAttempt("flowers-1", "batch-1"),))
    assert bench.snapshot.batch_jobs == ()
    # A late event of the stream is recognized as late.
    assert not bench.cache.put_pod(KEY, 30, seen_pod(pod))
    bench.cache.put_pod(KEY, 31, seen_pod(raw_pod(uid="pod-1")))
    assert bench.apply(actions=(DeletePod("flowers-1-0-abcde", "pod-1", "flowers-1", "batch-1"),))
    assert bench.snapshot.pods == ()
    del bench.api.objects[("mptrainingjobs", "team", "flowers")]
    assert bench.apply(actions=(DeleteJob("job-1"),))
    assert bench.cache.snapshot(KEY, Limits()) is None


@pytest.mark.parametrize("status", [409, 422])
def test_another_conflict_is_no_deletion(bench: Bench, status: int) -> None:
    """The object is read and its uid compared: the words of the message decide nothing."""
    raw = raw_batch_job()
    bench.api.put(BATCH_JOBS, raw)
    bench.cache.put_batch_job(KEY, 20, seen_batch_job(raw))
    bench.api.calls.clear()
    bench.api.refuse("delete", BATCH_JOBS, ApiProblem(status, "Conflict", "Precondition failed: UID in precondition"))
    if status == 409:
        assert not bench.apply(actions=(ForgetAttempt("flowers-1", "batch-1"),))
        assert bench.api.calls == [("delete", "jobs", "flowers-1"), ("get", "jobs", "flowers-1")]
    else:
        with pytest.raises(ApiProblem):
            bench.apply(actions=(ForgetAttempt("flowers-1", "batch-1"),))
    assert [job.uid for job in bench.snapshot.batch_jobs] == ["batch-1"]
