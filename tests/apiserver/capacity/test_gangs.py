"""Gangs: jobs that each hold half of the machines that both need, on the real scheduler; PodGroups that come and go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.apiserver.test_gangs_on_the_api_server import CRDS
from tests.left_out import leave_out
from tests.testbed import ControlPlane, Exit
from tests.testbed.kubernetes.installation import grant

LABEL = "gang-test"
GPU = "cloud.google.com/gke-accelerator"
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
RESERVED = {"key": "reserved", "value": "right", "effect": "NoSchedule"}


def train_whole(ns: Any, *names: str) -> None:
    """End the workers of each job in its first attempt; while a job runs, no other one may hold a machine."""
    waiting = set(names)
    while waiting:
        ns.wait(lambda: {ns.status(name).get("phase") for name in waiting}, lambda phases: "Running" in phases)
        first = next(name for name in waiting if ns.status(name)["phase"] == "Running")
        waiting.discard(first)
        assert all(placed(ns, f"{name}-1") == 0 for name in waiting)
        ns.end(f"{first}-1", Exit(0))
        status = ns.phase(first, "Succeeded")
        assert [each["outcome"] for each in status["attempts"]] == ["Succeeded"]


@pytest.fixture
def ns(scheduled: ControlPlane, new_namespace: Any, namespace: str) -> Iterator[Any]:
    ns = new_namespace(scheduled, f"{namespace}-gangs").with_kubelet(bind=False)
    yield ns
    ns.close()


def job(pool: str, **pod_template: Any) -> dict[str, Any]:
    """Return a job of two workers that each need a machine of the pool."""
    return {
        "accelerator": {"type": "t4", "countPerWorker": 1},
        "workers": 2,
        "podTemplate": {"nodeSelector": {LABEL: pool}, **pod_template},
    }


def machine(ns: Any, name: str, pool: str, *taints: dict[str, str]) -> None:
    """Add a machine for one worker."""
    labels, taints = {LABEL: pool, GPU: "nvidia-tesla-t4"}, (TAINT, *taints)
    ns.control_plane.nodes.create(name, labels=labels, capacity={"nvidia.com/gpu": "1"}, taints=taints)


def placed(ns: Any, batch_job: str) -> int:
    found = ns.control_plane.pods.of_job(ns.namespace, batch_job)
    return len([pod for pod in found if pod.node and not pod.terminating])


def hold_half_each(ns: Any, pool: str) -> None:
    """Create two jobs of two workers on two machines, of which each holds one."""
    machine(ns, f"{pool}-1", pool)
    ns.create("left", **job(pool))
    ns.wait(lambda: placed(ns, "left-1"), lambda found: found == 1)
    machine(ns, f"{pool}-2", pool, RESERVED)
    ns.create("right", **job(pool, tolerations=[{"key": "reserved", "operator": "Exists"}]))
    ns.wait(lambda: placed(ns, "right-1"), lambda found: found == 1)
    ns.rest.patch(f"/api/v1/nodes/{pool}-2", {"spec": {"taints": [TAINT]}})


def train_all(ns: Any, *names: str) -> dict[str, list[str]]:
    """End the workers of each job whose workers all run, until all jobs have ended; return the attempts' outcomes."""
    left = set(names)

    def train() -> set[str]:
        for name in sorted(left):
            status = ns.status(name)
            if status.get("phase") == "Running":
                ns.end(f"{name}-{status['currentAttempt']}", Exit(0))
            if status.get("phase") == "Succeeded":
                left.discard(name)
        return left

    ns.wait(train, lambda found: not found, seconds=600)
    return {name: [each["outcome"] for each in ns.status(name)["attempts"]] for name in names}


def test_two_jobs_that_each_hold_half_both_succeed(ns: Any) -> None:
    ns.operator(gangReleaseSeconds=2)
    hold_half_each(ns, "halves")
    outcomes = train_all(ns, "left", "right")
    assert all(each[-1] == "Succeeded" for each in outcomes.values()), outcomes
    assert "GangReleased" in {outcome for each in outcomes.values() for outcome in each}
    for name in outcomes:
        status = ns.status(name)
        assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)
    released = next(name for name, each in outcomes.items() if each[0] == "GangReleased")
    ns.wait_for_event(released, "GangReleased: 1 of 2 workers had a machine, and the others got none for ")


@pytest.fixture(scope="module")
def installed_crds(scheduled: ControlPlane) -> None:
    """The CustomResourceDefinitions of scheduler-plugins and Volcano, whose schedulers do not run."""
    if not CRDS.is_dir():
        leave_out("no build/gang-crds: run `make servers` (needs Go)")
    for file in sorted(CRDS.glob("*.yaml")):
        scheduled.apply_crd(file)


@pytest.mark.usefixtures("installed_crds")
def test_the_pod_group_comes_and_goes_with_the_attempt(ns: Any) -> None:
    """With the rights that the chart gives for gangSchedulers.coscheduling."""
    group = "scheduling.x-k8s.io/v1alpha1"
    rule = {"apiGroups": ["scheduling.x-k8s.io"], "resources": ["podgroups"], "verbs": ["get", "create"]}
    grant(ns.control_plane, "gangs", rule)
    ns.operator(gangSchedulers={"coscheduling": "gangs"})
    ns.create("whole", workers=2, scheduling={"gang": "Coscheduling"})
    ns.wait(lambda: ns.child(f"{group} podgroups", "whole-1"), lambda found: found is not None)
    (batch_job,) = ns.batch_jobs("whole")
    created = ns.child(f"{group} podgroups", "whole-1")
    assert created["spec"]["minMember"] == 2
    assert [each["uid"] for each in created["metadata"]["ownerReferences"]] == [batch_job["metadata"]["uid"]]
    pods = ns.wait(lambda: ns.control_plane.pods.of_job(ns.namespace, "whole-1"), lambda found: len(found) == 2)
    for pod in pods:
        assert pod.whole["spec"]["schedulerName"] == "gangs"
        assert pod.whole["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "whole-1"

    ns.patch("whole", {"spec": {"runPolicy": {"suspend": True}}})
    # The garbage collector discovers new kinds of objects twice a minute.
    ns.wait(lambda: ns.child(f"{group} podgroups", "whole-1"), lambda found: found is None)
    ns.patch("whole", {"spec": {"runPolicy": {"suspend": False}}})
    ns.wait(lambda: ns.child(f"{group} podgroups", "whole-2"), lambda found: found is not None)
