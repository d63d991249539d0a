"""The cache of sweeps, and the index of their jobs in the cache of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_operator.jobs.watch import parse
from mptraining_operator.jobs.watch.cache import Cache
from mptraining_operator.runtime.values import Key
from mptraining_operator.runtime.work_queue import WorkQueue
from mptraining_operator.sweeps.cache import SweepCache, SweepStream
from tests.fakes import Clock
from tests.unit.operator.api_objects import raw_job
from tests.unit.operator.sweeps.swept import document, stored

KEY = Key("team", "lr")
OWNER = {"apiVersion": "mptraining.dev/v1alpha1", "kind": "MPTrainingSweep", "uid": "sweep-1", "controller": True}


def raw(version: int, uid: str = "sweep-1", **status: Any) -> dict[str, Any]:
    made = document()
    made["metadata"] |= {"uid": uid, "resourceVersion": str(version)}
    return {**made, "status": status}


def test_an_older_version_is_ignored_also_after_the_deletion() -> None:
    cache = SweepCache()
    assert cache.put(stored(raw(10)))
    assert not cache.put(stored(raw(9, phase="Running")))
    assert not cache.put(stored(raw(11)))
    assert cache.put(stored(raw(12, phase="Running")))
    assert cache.remove(KEY, "sweep-1", 13)
    assert not cache.put(stored(raw(12)))
    assert (cache.get(KEY), cache.key_of("sweep-1")) == (None, None)


def test_a_new_sweep_of_the_name_replaces_the_old_one() -> None:
    cache = SweepCache()
    cache.put(stored(raw(10)))
    assert cache.put(stored(raw(20, uid="sweep-2")))
    assert (cache.key_of("sweep-1"), cache.key_of("sweep-2")) == (None, KEY)
    assert not cache.remove(KEY, "sweep-1", 21)
    assert cache.known_before(cache.begin_list()) == [(KEY, "sweep-2")]


def test_a_list_supersedes_what_was_known_before_it_began() -> None:
    """After the restore of an etcd backup, versions go back, and deleted sweeps exist again."""
    cache = SweepCache()
    cache.put(stored(raw(100, uid="sweep-2")))
    cache.remove(KEY, "sweep-2", 101)
    cache.put(stored(raw(102, uid="sweep-3")))
    listed = cache.begin_list()
    assert not cache.put(stored(raw(40, uid="sweep-2")))
    assert cache.put(stored(raw(40, uid="sweep-2")), listed)
    assert (cache.key_of("sweep-2"), cache.key_of("sweep-3")) == (KEY, None)
    assert not cache.put(stored(raw(40, uid="sweep-2")), cache.begin_list())
    assert cache.put(stored(raw(41, uid="sweep-2", phase="Running")))


@pytest.mark.parametrize(
    ("reference", "indexed"),
    [
        ({}, True),
        ({"controller": False}, False),
        ({"kind": "Other"}, False),
        ({"apiVersion": "other.dev/v1"}, False),
    ],
)
def test_the_jobs_of_a_sweep_are_indexed_by_their_controller(
    clock: Clock, reference: dict[str, Any], indexed: bool
) -> None:
    owner = {"apiVersion": "mptraining.dev/v1alpha1", "kind": "MPTrainingSweep", "name": "lr", "uid": "sweep-1"}
    changed: list[str] = []
    cache = Cache(clock, lambda _, uid: changed.append(uid))
    body = raw_job("lr-1")
    body["metadata"]["ownerReferences"] = [{**owner, "controller": True, **reference}]
    cache.put_job(parse.job(body))
    assert [trial.key.name for trial in cache.trials("team", "sweep-1")] == (["lr-1"] if indexed else [])
    # The same version again, as the watch reports the operator's own write, changes nothing.
    cache.put_job(parse.job(body))
    assert changed == (["sweep-1"] if indexed else [])
    cache.remove_job(Key("team", "lr-1"), "job-1", 20)
    assert cache.trials("team", "sweep-1") == ()
    assert changed == (["sweep-1"] * 2 if indexed else [])


def test_the_job_of_a_trial_resolves_with_its_sweep_so_that_another_sweep_cannot_resume_it() -> None:
    body = raw_job("lr-1")
    assert _resolved(body).sweep is None
    body["metadata"]["ownerReferences"] = [OWNER]
    assert _resolved(body).sweep == "sweep-1"


def _resolved(body: dict[str, Any]) -> ResolvedJob:
    job, problem = parse.read_job(parse.job(body))
    assert (job is not None, problem) == (True, "")
    assert job is not None
    return resolve(job, ClusterSettings())


def test_progress_does_not_queue_the_sweep(clock: Clock) -> None:
    changed: list[str] = []
    cache = Cache(clock, lambda _, uid: changed.append(uid))
    for version in (10, 11):
        body = raw_job("lr-1", version=version, status={"phase": "Running", "progress": {"step": version}})
        body["metadata"]["ownerReferences"] = [OWNER]
        cache.put_job(parse.job(body))
    assert changed == ["sweep-1"]


def test_a_job_of_another_namespace_is_no_trial(clock: Clock) -> None:
    """Kubernetes stores an owner reference as it is sent, also with the uid of a sweep elsewhere."""
    owner = {"apiVersion": "mptraining.dev/v1alpha1", "kind": "MPTrainingSweep", "uid": "sweep-1", "controller": True}
    sweeps, queue = SweepCache(), WorkQueue(clock)
    stream = SweepStream(sweeps, queue)
    sweeps.put(stored(raw(1)))
    cache = Cache(clock, stream.trial_changed)
    body = raw_job("lr-1", uid="job-2")
    body["metadata"] |= {"namespace": "other-team", "ownerReferences": [owner]}
    cache.put_job(parse.job(body))
    clock.now += 1
    assert queue.take(timeout=0) is None
    assert cache.trials("team", "sweep-1") == ()
    assert cache.trial_workers("team", "sweep-1") == (0, 0)
    # The deletion of the foreign job leaves the sweep's own one.
    body = raw_job("lr-1")
    body["metadata"]["ownerReferences"] = [owner]
    cache.put_job(parse.job(body))
    clock.now += 1
    assert queue.take(timeout=0) == KEY
    cache.remove_job(Key("other-team", "lr-1"), "job-2", 20)
    assert [trial.key for trial in cache.trials("team", "sweep-1")] == [Key("team", "lr-1")]
