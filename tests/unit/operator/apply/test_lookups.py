"""Reads that a plan asks for: nodes and events."""

from __future__ import annotations

from mptraining_api.kubernetes_api import (
    EVENTS,
    NODES,
    ApiProblem,
)
from mptraining_operator.plan.actions import (
    Plan,
    ReadEvents,
    ReadNode,
)
from mptraining_operator.plan.snapshot import SeenWarning
from mptraining_operator.watch import parse
from tests.unit.operator.api_objects import raw_event, raw_job
from tests.unit.operator.apply.applied_job import Bench


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
    seen = bench.seen
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
