"""Actions that read, and the probe of an elastic job, which is created once, is no attempt, and may be refused."""

from __future__ import annotations

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, EVENTS, NODES, ApiProblem
from mptraining_operator.jobs.plan.actions import Plan, ReadEvents, ReadNode, StartProbe
from mptraining_operator.jobs.plan.snapshot import Limits, SeenWarning
from mptraining_operator.jobs.watch import parse
from tests.unit.operator.api_objects import raw_event, raw_job, seen_batch_job, version_of
from tests.unit.operator.apply.applied_job import KEY, QUOTA, Bench


def test_asking_for_nodes(bench: Bench) -> None:
    def node(name: str, ready: str, *taints: str) -> None:
        conditions = [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": ready}]
        spec = {"taints": [{"key": key, "effect": "NoExecute"} for key in taints]}
        bench.api.put(NODES, {"metadata": {"name": name}, "spec": spec, "status": {"conditions": conditions}})

    node("well", "True")
    node("silent", "Unknown", "node.kubernetes.io/unreachable")
    node("declared-gone", "Unknown", "node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service")
    assert bench.apply(actions=tuple(ReadNode(name) for name in ("well", "silent", "declared-gone", "deleted")))
    # The pod garbage collector ends the pods of the last two.
    expected = {"well": False, "silent": True, "declared-gone": False, "deleted": False}
    assert dict(bench.lookups.unready_nodes) == expected


def test_when_the_uid_is_reused_nothing_is_learnt_of_the_old_job(bench: Bench) -> None:
    seen = bench.snapshot
    bench.cache.put_job(parse.job(raw_job(uid="job-2", version=10_000)))
    assert bench.applier.apply(Plan(actions=(ReadNode("gone"),)), seen)
    assert dict(bench.lookups.unready_nodes) == {}


def test_the_newest_warning_about_a_pod_is_read(bench: Bench) -> None:
    event = raw_event(message='configmap "code" not found', involvedObject={"uid": "pod-0"}, reason="FailedMount")
    bench.api.put(EVENTS, event)
    bench.api.calls.clear()
    assert bench.apply(actions=(ReadEvents("pod-0"),))
    assert bench.api.calls == [("list", "events", "")]
    assert dict(bench.lookups.warnings) == {
        "pod-0": SeenWarning("FailedMount", 'configmap "code" not found', bench.clock.now)
    }


def test_events_that_may_not_be_read_stop_no_job(bench: Bench) -> None:
    bench.api.refuse("list", EVENTS, ApiProblem(403, "Forbidden", "no"))
    assert bench.apply(actions=(ReadEvents("pod-0"),))
    assert dict(bench.lookups.warnings) == {"pod-0": SeenWarning("", "", bench.clock.now)}


def probe(bench: Bench) -> StartProbe:
    return StartProbe(bench.job, machine=0, pods=2)


def test_it_is_created_once_and_is_no_attempt(bench: Bench) -> None:
    assert not bench.apply(actions=(probe(bench),))
    assert not bench.apply(actions=(probe(bench),))
    assert [name for plural, _, name in bench.api.objects if plural == "jobs"] == ["flowers-probe"]
    seen = bench.cache.snapshot(KEY, Limits())
    assert seen is not None
    assert seen.batch_jobs == ()
    assert seen.probe is not None
    assert seen.probe.parallelism == 2


def test_each_of_its_pods_counts(bench: Bench) -> None:
    """Of an attempt's Job only the last ready pod is a change."""
    bench.apply(actions=(probe(bench),))
    raw = bench.api.get(BATCH_JOBS, "team", "flowers-probe")
    for ready in (1, 2):
        raw["status"] = {"active": 2, "ready": ready}
        raw["metadata"]["resourceVersion"] = str(bench.api.version)
        assert bench.cache.put_batch_job(KEY, version_of(raw), seen_batch_job(raw))
        seen = bench.cache.snapshot(KEY, Limits())
        assert seen is not None
        assert seen.probe is not None
        assert seen.probe.ready == ready


def test_a_quota_that_refuses_it_does_not_stop_the_job(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.api.refuse("create", BATCH_JOBS, QUOTA)
    assert not bench.apply(actions=(probe(bench),))
    assert bench.lookups.refusal is None
    assert "the job cannot look for more machines" in caplog.text
