"""Objects that arrive on a watch are queued."""

from __future__ import annotations

from mptraining_api.kubernetes_api import BATCH_JOBS, JOBS, PODS
from mptraining_operator.watch.cache import Cache
from mptraining_operator.watch.informer import COALESCE, Intake
from mptraining_operator.watch.work_queue import WorkQueue
from tests.fakes import Clock
from tests.unit.operator.api_objects import decoded, raw_batch_job, raw_job, raw_pod
from tests.unit.operator.controller.reconciled_job import KEY


def test_what_arrives_is_queued_at_once_for_jobs_and_soon_for_children(clock: Clock) -> None:
    cache, queue = Cache(clock), WorkQueue(clock)
    intake = Intake(cache, queue)
    intake.put(PODS, decoded(PODS, raw_pod()))
    intake.put(BATCH_JOBS, decoded(BATCH_JOBS, raw_batch_job()))
    assert queue.take(0) is None
    clock.now += COALESCE
    assert queue.take(0) == KEY
    queue.done(KEY)
    intake.put(JOBS, decoded(JOBS, raw_job()))
    assert queue.take(0) == KEY
    queue.done(KEY)
    for resource, raw in ((JOBS, raw_job(version=11)), (PODS, raw_pod(version=31))):
        intake.put(resource, decoded(resource, raw))
    clock.now += 1
    assert queue.take(0) is None
    intake.remove(PODS, decoded(PODS, raw_pod(version=32)))
    clock.now += 1
    assert queue.take(0) == KEY
    queue.done(KEY)
    intake.remove(JOBS, decoded(JOBS, raw_job(version=12)))
    assert queue.take(0) == KEY
    assert cache.job_keys() == ()


def test_foreign_objects_are_ignored(clock: Clock) -> None:
    cache, queue = Cache(clock), WorkQueue(clock)
    intake = Intake(cache, queue)
    pod = raw_pod()
    pod["metadata"]["labels"] = {}
    intake.put(PODS, decoded(PODS, pod))
    intake.remove(PODS, decoded(PODS, pod))
    clock.now += 1
    assert queue.take(0) is None
