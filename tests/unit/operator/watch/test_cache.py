"""The cache of jobs is the same for any order of events; what arrives is queued."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.kubernetes_api import BATCH_JOBS, PODS
from mptraining_operator.jobs.plan.plan import plan
from mptraining_operator.jobs.plan.snapshot import Limits, Lookups, Refusal, SeenWarning, Snapshot
from mptraining_operator.jobs.plan.suspend_and_cleanup import no_live_pods
from mptraining_operator.jobs.watch import parse
from mptraining_operator.jobs.watch.cache import LOOKUP_SECONDS, Cache
from mptraining_operator.jobs.watch.parse import StoredJob
from mptraining_operator.jobs.watch.streams import BatchJobStream, JobStream, PodStream
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue
from tests.fakes import Clock
from tests.unit.operator.api_objects import (
    decoded,
    raw_batch_job,
    raw_job,
    raw_pod,
    seen_batch_job,
    seen_pod,
    version_of,
)

KEY = Key("team", "flowers")


@pytest.fixture
def cache(clock: Clock) -> Cache:
    return Cache(clock)


def look(cache: Cache, key: Key = KEY) -> Snapshot:
    found = cache.snapshot(key, Limits())
    assert found is not None
    return found


def put_child(cache: Cache, raw: dict[str, Any]) -> bool:
    if raw["metadata"]["name"].count("-") > 1:
        return cache.put_pod(KEY, version_of(raw), seen_pod(raw))
    return cache.put_batch_job(KEY, version_of(raw), seen_batch_job(raw))


def test_a_job_with_its_children(cache: Cache) -> None:
    assert cache.snapshot(KEY, Limits()) is None
    # Children may arrive first.
    assert put_child(cache, raw_pod())
    assert put_child(cache, raw_batch_job())
    assert cache.snapshot(KEY, Limits()) is None
    assert cache.jobs() == ()
    assert cache.put_job(parse.job(raw_job(status={"phase": "Pending", "currentAttempt": 1, "progress": {"step": 3}})))
    seen = look(cache)
    assert (seen.uid, seen.generation, seen.problem) == ("job-1", 1, "")
    assert seen.job is not None
    assert (seen.job.spec.workers, seen.job.metadata.namespace) == (2, "team")
    assert seen.status is not None
    assert seen.status.to_document() == {"phase": "Pending", "currentAttempt": 1, "progress": {"step": 3}}
    assert [job.name for job in seen.batch_jobs] == ["flowers-1"]
    assert [pod.uid for pod in seen.pods] == ["pod-0"]
    assert cache.live_pods(KEY, 1) == {"pod-0": 0}
    assert cache.live_pods(KEY, 2) == {}
    assert cache.jobs_by_phase() == {"Pending": 1}


def test_an_event_without_a_change_is_ignored(cache: Cache) -> None:
    cache.put_job(parse.job(raw_job(version=10)))
    assert not cache.put_job(parse.job(raw_job(version=11)))
    assert cache.snapshot(KEY, Limits()).version == 11  # type: ignore[union-attr]
    assert put_child(cache, raw_pod(version=10))
    assert not put_child(cache, raw_pod(version=11))
    assert put_child(cache, raw_pod(version=12, phase="Failed"))


def test_older_events_are_ignored_and_versions_are_numbers(cache: Cache) -> None:
    cache.put_job(parse.job(raw_job(version=100, status={"phase": "Running"})))
    assert not cache.put_job(parse.job(raw_job(version=99, status={"phase": "Pending"})))
    assert not cache.put_job(parse.job(raw_job(version=100, status={"phase": "Pending"})))
    assert cache.jobs_by_phase() == {"Running": 1}
    put_child(cache, raw_pod(version=100, phase="Failed"))
    assert not put_child(cache, raw_pod(version=99))
    assert look(cache).pods[0].phase == "Failed"


def test_the_end_of_an_earlier_job_is_not_the_end_of_its_namesake(cache: Cache) -> None:
    cache.put_job(parse.job(raw_job(uid="old", version=10)))
    put_child(cache, raw_pod(uid="p-old", job_uid="old", version=11))
    cache.update_lookups(KEY, "old", refusal=Refusal("Service x", "no", 1.0))
    cache.put_job(parse.job(raw_job(uid="new", version=20)))
    assert look(cache).uid == "new"
    assert look(cache).pods == ()
    assert [predecessor.uid for predecessor in look(cache).predecessors] == ["p-old"]
    assert look(cache).lookups == Lookups()
    assert not cache.remove_job(KEY, "old", 19)
    assert look(cache).uid == "new"
    # Late events of the old job; its pods end later than it.
    assert not cache.put_job(parse.job(raw_job(uid="old", version=12)))
    assert put_child(cache, raw_pod(uid="p-old", job_uid="old", version=18, phase="Succeeded"))
    assert look(cache).uid == "new"
    assert look(cache).predecessors == ()


def test_a_pod_without_the_label_of_a_job_s_uid_is_ignored(cache: Cache) -> None:
    put_child(cache, raw_pod(uid="p", job_uid=""))
    cache.put_job(parse.job(raw_job()))
    assert (look(cache).pods, look(cache).predecessors) == ((), ())


def test_a_job_made_again_waits_for_the_pods_of_the_one_before(cache: Cache) -> None:
    cache.put_job(parse.job(raw_job(uid="old", version=10)))
    leaving = {"deletionTimestamp": "2026-01-01T00:01:00Z"}
    put_child(cache, raw_pod(uid="p-old", job_uid="old", version=11, metadata=leaving))
    assert cache.remove_job(KEY, "old", 12)
    cache.put_job(parse.job(raw_job(uid="new", version=13)))
    waits = plan(look(cache), 1_767_225_640.0)
    assert not waits.job_text
    assert [record.reason for record in waits.event_records] == ["EarlierJobEnds"]
    assert cache.remove_child(KEY, "p-old", 14)
    assert plan(look(cache), 1_767_225_660.0).job_text


def test_a_stale_count_of_terminating_pods_blocks_nothing(cache: Cache) -> None:
    """Pods decide what is alive, and not a Job's `terminating`."""
    cache.put_job(parse.job(raw_job()))
    put_child(cache, raw_batch_job(conditions=(("Failed", "True"),), terminating=1))
    put_child(cache, raw_pod())
    assert not no_live_pods(look(cache))
    put_child(cache, raw_pod(version=31, phase="Failed"))
    assert no_live_pods(look(cache))


def test_a_removed_object_stays_removed(cache: Cache) -> None:
    cache.put_job(parse.job(raw_job()))
    put_child(cache, raw_pod(version=30))
    assert cache.remove_child(KEY, "pod-0", 35)
    assert not cache.remove_child(KEY, "pod-0", 35)
    # A page of a list that is older.
    assert not put_child(cache, raw_pod(version=33))
    assert look(cache).pods == ()
    # Its label was restored: a stream had reported it as deleted when the label was removed.
    assert put_child(cache, raw_pod(version=36))


def test_a_job_is_removed_with_its_objects(cache: Cache) -> None:
    cache.put_job(parse.job(raw_job()))
    put_child(cache, raw_batch_job())
    put_child(cache, raw_pod())
    assert cache.remove_job(KEY, "job-1", 60)
    assert cache.snapshot(KEY, Limits()) is None
    assert cache.stored(KEY) is None
    assert [pod for record in cache._records.values() for pod in record.pods] == ["pod-0"]
    assert put_child(cache, raw_pod(version=61, phase="Succeeded"))
    assert not put_child(cache, raw_batch_job(version=62))
    # Its pods are removed last, each by itself.
    assert cache.remove_child(KEY, "pod-0", 63)
    assert not cache._records


def test_findings_are_kept_and_some_expire(cache: Cache, clock: Clock) -> None:
    assert not cache.update_lookups(KEY, "job-1", job_text="")
    cache.put_job(parse.job(raw_job()))
    assert not cache.update_lookups(KEY, "another", job_text="")
    assert cache.update_lookups(KEY, "job-1", job_text="")
    assert not cache.update_lookups(KEY, "job-1", job_text="")
    refusal = Refusal("Job flowers-1", "exceeded quota", 5.0)
    assert cache.update_lookups(KEY, "job-1", refusal=refusal)
    clock.now += LOOKUP_SECONDS / 2
    assert cache.update_node(KEY, "job-1", "node-1", True)
    assert cache.update_node(KEY, "job-1", "node-2", False)
    found = look(cache).lookups
    assert (found.job_text, found.refusal) == ("", refusal)
    assert dict(found.unready_nodes) == {"node-1": True, "node-2": False}
    clock.now += LOOKUP_SECONDS / 2
    found = look(cache).lookups
    assert set(found.unready_nodes) == {"node-1", "node-2"}
    clock.now += LOOKUP_SECONDS / 2
    found = look(cache).lookups
    assert dict(found.unready_nodes) == {}
    assert found.refusal == refusal


def test_warnings_are_kept_while_their_objects_exist(cache: Cache, clock: Clock) -> None:
    warning = SeenWarning("FailedCreate", "exceeded quota: gpus", clock.now)
    assert not cache.update_warning(KEY, "job-1", "batch-1", warning)
    cache.put_job(parse.job(raw_job()))
    put_child(cache, raw_batch_job())
    put_child(cache, raw_pod())
    assert cache.update_warning(KEY, "job-1", "batch-1", warning)
    assert cache.update_warning(KEY, "job-1", "pod-0", SeenWarning("", "", clock.now))
    assert look(cache).lookups.warnings["batch-1"] == warning
    cache.remove_child(KEY, "pod-0", 50)
    assert cache.update_warning(KEY, "job-1", "batch-1", SeenWarning("FailedCreate", "pod security", clock.now))
    assert set(look(cache).lookups.warnings) == {"batch-1"}


# One object's whole life: a job that is created, changed, deleted and created again, and pods of both.
NEWS = st.permutations(
    [
        ("job", "old", 10, "Pending"),
        ("job", "old", 12, "Running"),
        ("gone-job", "old", 20, ""),
        ("job", "new", 21, "Pending"),
        ("job", "new", 30, "Running"),
        ("pod", "p-old", 11, "Pending"),
        ("gone-pod", "p-old", 19, ""),
        ("pod", "p1", 22, "Pending"),
        ("pod", "p1", 25, "Failed"),
        ("pod", "p2", 23, "Pending"),
        ("gone-pod", "p2", 28, ""),
        ("pod", "p2", 26, "Running"),
    ]
)


@given(NEWS, st.lists(st.integers(0, 11), max_size=8))
def test_the_order_of_events_does_not_matter(news: list[tuple[str, str, int, str]], again: list[int]) -> None:
    cache = Cache(lambda: 0.0)
    other = Key("team", "beside")
    cache.put_job(StoredJob(other, "beside", 1, 1, 0.0, False, b"{}", b"{}", b"", "Pending", 0))
    workers = {"Pending": 0, "Running": 3}
    for kind, uid, version, phase in [*news, *(news[index] for index in again)]:
        if kind == "job":
            stored = StoredJob(KEY, uid, version, 1, 0.0, False, b"{}", b"{}", b"", phase, 0)
            cache.put_job(dataclasses.replace(stored, workers=workers[phase]))
        elif kind == "gone-job":
            cache.remove_job(KEY, uid, version)
        elif kind == "gone-pod":
            cache.remove_child(KEY, uid, version)
        else:
            job_uid = "old" if uid == "p-old" else "new"
            cache.put_pod(KEY, version, seen_pod(raw_pod(uid, uid=uid, job_uid=job_uid, phase=phase)))
        assert look(cache, other).other_workers == workers_by_definition(cache)
    seen = look(cache)
    assert (seen.uid, cache.jobs_by_phase()) == ("new", {"Running": 1, "Pending": 1})
    assert (seen.other_workers, look(cache, other).other_workers) == (0, 3)
    assert [(pod.uid, pod.phase) for pod in seen.pods] == [("p1", "Failed")]


def workers_by_definition(cache: Cache) -> int:
    """The workers of the job: those of its status, or its live pods of any job of that name if there are more."""
    record = cache._records.get(KEY)
    if record is None:
        return 0
    live = sum(pod.phase not in ("Succeeded", "Failed") for pod in record.pods.values())
    return max(record.job.workers if record.job else 0, live)


def test_reserved_workers_count_for_other_jobs_until_the_start_is_written(cache: Cache) -> None:
    cache.put_job(parse.job(raw_job()))
    cache.put_job(parse.job(raw_job("beside", uid="job-2")))
    beside = Key("team", "beside")
    cache.reserve_workers(beside, 2)
    assert (look(cache).other_workers, look(cache, beside).other_workers) == (2, 0)
    cache.reserve_workers(beside, 0)
    assert look(cache).other_workers == 0
    # A job that was deleted meanwhile leaves nothing.
    cache.reserve_workers(Key("team", "gone"), 5)
    cache.reserve_workers(Key("team", "gone"), 0)
    assert look(cache).other_workers == 0
    assert [job.key for job in cache.jobs()] == [KEY, beside]


@pytest.mark.parametrize(
    ("raw", "problem", "readable"),
    [
        # A field of a newer version is left out.
        ({"teleport": {"to": "moon"}}, "teleport", (True, True)),
        ({"workers": "two"}, "spec.workers", (False, True)),
        ({"status": {"phase": "Levitating"}}, "status.phase", (True, False)),
        ({"status": {"phase": "Running", "mood": "good"}}, "", (True, True)),
    ],
)
def test_what_cannot_be_read_of_a_job_is_named(
    cache: Cache, raw: dict[str, Any], problem: str, readable: tuple[bool, bool]
) -> None:
    cache.put_job(parse.job(raw_job(**raw)))
    seen = look(cache)
    assert problem in seen.problem
    assert (seen.job is not None, seen.status is not None) == readable


def test_what_arrives_is_queued_at_once_for_jobs_and_soon_for_children(clock: Clock) -> None:
    cache, queue = Cache(clock), WorkQueue(clock)
    jobs, batch_jobs, pods = (stream(cache, queue) for stream in (JobStream, BatchJobStream, PodStream))
    pods.put(decoded(PODS, raw_pod()))
    batch_jobs.put(decoded(BATCH_JOBS, raw_batch_job()))
    assert queue.take(0) is None
    clock.now += PodStream.coalesce
    assert queue.take(0) == KEY
    queue.done(KEY)
    jobs.put(raw_job())
    assert queue.take(0) == KEY
    queue.done(KEY)
    jobs.put(raw_job(version=11))
    pods.put(decoded(PODS, raw_pod(version=31)))
    clock.now += 1
    assert queue.take(0) is None
    pods.remove(decoded(PODS, raw_pod(version=32)))
    clock.now += 1
    assert queue.take(0) == KEY
    queue.done(KEY)
    jobs.remove(raw_job(version=12))
    assert queue.take(0) == KEY
    assert cache.jobs() == ()


def test_foreign_objects_are_ignored(clock: Clock) -> None:
    queue = WorkQueue(clock)
    pods = PodStream(Cache(clock), queue)
    pod = raw_pod()
    pod["metadata"]["labels"] = {}
    pods.put(decoded(PODS, pod))
    pods.remove(decoded(PODS, pod))
    clock.now += 1
    assert queue.take(0) is None


@pytest.mark.parametrize(
    ("annotations", "paused"),
    [
        (None, False),
        ({"mptraining.dev/paused": "true"}, True),
        ({"mptraining.dev/paused": "True"}, True),
        ({"mptraining.dev/paused": "false"}, False),
    ],
)
def test_only_the_value_true_pauses_and_its_change_queues_the_job(
    cache: Cache, annotations: dict[str, str] | None, paused: bool
) -> None:
    """An annotation changes neither generation nor spec."""
    cache.put_job(parse.job(raw_job(version=10)))
    raw = raw_job(version=11)
    raw["metadata"]["annotations"] = annotations
    assert cache.put_job(parse.job(raw)) is paused
    stored = cache.stored(KEY)
    assert stored is not None
    assert stored.paused is paused
