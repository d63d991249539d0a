"""Jobs under the real Kueue on a real API server: its own cases that apply to an external job.

The names in brackets are those of Kueue's tests, in test/integration/singlecluster/controller/jobs/job and
test/e2e/singlecluster, which each test here follows for an MPTrainingJob. The other cases there are about

    pods that succeed one by one (reclaimable pods, failed indexes)    workers end together
    a priority or a queue that changes after the job's creation        the spec does not change after the start
    Jobs without a queue, orphaned Jobs, CronJobs                      no part of a job
    scaled Jobs (workload slices), topology, DRA                       not tested: Kueue's own code on the queue's Job
    waitForPodsReady                                                   not tested beyond `ready` of the queue's Job
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.left_out import leave_out
from tests.testbed import Behaviour, ControlPlane, Exit, Run
from tests.testbed.kubernetes.installation import install
from tests.testbed.kubernetes.kueue import BUILT, Kueue, holds
from tests.testbed.kubernetes.operator_namespace import condition
from tests.testbed.nodes.pods import Pod

# Two workers of a quarter of a core each.
ONE_JOB = {"cpu": "500m", "memory": "1Gi"}
PREEMPTION = {"withinClusterQueue": "LowerPriority"}
PREEMPTIONS = 8


@pytest.fixture(scope="module")
def control_plane_with_kueue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Kueue]]:
    if not (BUILT / "kueue").exists():
        leave_out("no kueue in build/kueue: run `make build/kueue/kueue` (needs Go)")
    with ControlPlane(tmp_path_factory.mktemp("kueue")) as control_plane, Kueue(control_plane) as kueue:
        install(control_plane)
        for each in ("east", "west"):
            control_plane.nodes.create(f"{each}-1", labels={"pool": each})
            kueue.flavor(each, {"pool": each})
        for name, value in (("low", 1), ("high", 100)):
            kueue.priority(name, value)
        yield control_plane, kueue


@pytest.fixture(scope="module")
def kueue(control_plane_with_kueue: tuple[ControlPlane, Kueue]) -> Kueue:
    return control_plane_with_kueue[1]


@pytest.fixture(scope="module")
def ns(control_plane_with_kueue: tuple[ControlPlane, Kueue], new_namespace: Any) -> Iterator[Any]:
    ns = new_namespace(control_plane_with_kueue[0], "kueue").with_kubelet()
    ns.operator()
    yield ns
    ns.close()


def the_workload(kueue: Kueue, ns: Any, job: str) -> dict[str, Any]:
    """Return the only Workload of the job: it has one over all attempts."""

    def found() -> list[dict[str, Any]]:
        owned = [(each, each["metadata"].get("ownerReferences", ())) for each in kueue.workloads(ns.namespace)]
        return [each for each, owners in owned if any(owner["name"] == f"{job}-queue" for owner in owners)]

    (workload,) = ns.wait(found, lambda found: len(found) == 1)
    assert isinstance(workload, dict)
    return workload


def queued(queue: str, priority: str | None = None) -> dict[str, Any]:
    return {"queueName": queue, **({"workloadPriorityClassName": priority} if priority else {})}


def saves(pod: Pod) -> Behaviour:
    return Run(stop_after=0.2)


def test_jobs_run_as_they_fit(kueue: Kueue, ns: Any) -> None:
    """[Should schedule jobs as they fit in their ClusterQueue]"""
    kueue.queue(ns.namespace, "fits", ONE_JOB, flavors=["east"])
    ns.create("first", saves, scheduling=queued("fits"))
    ns.running("first")
    ns.create("second", saves, scheduling=queued("fits"))
    ns.phase("second", "Queued")
    ns.end("first-1", Exit(0))
    ns.phase("first", "Succeeded")
    ns.running("second")
    workload = ns.wait(lambda: the_workload(kueue, ns, "first"), lambda found: holds(found, "Finished"))
    assert condition(workload["status"], "Finished")["reason"] == "Succeeded"
    ns.delete("second")


def test_a_restart_keeps_quota_and_place(kueue: Kueue, ns: Any) -> None:
    """A job that waits behind it does not overtake: the Workload, its admission and its reservation stay the same."""
    kueue.queue(ns.namespace, "restarts", ONE_JOB, flavors=["east"])
    ns.create("again", lambda pod: Exit(1, after=0.5) if pod.job == "again-1" else Run(), scheduling=queued("restarts"))
    ns.create("behind", saves, scheduling=queued("restarts"))
    status = ns.running("again", attempt=2)
    assert status["applicationFailures"] == 1
    workload = the_workload(kueue, ns, "again")
    assert holds(workload, "Admitted")
    assert not holds(workload, "Evicted")
    admitted = condition(workload["status"], "Admitted")["lastTransitionTime"]
    assert admitted < status["attempts"][1]["startTime"]
    assert ns.status("behind")["phase"] == "Queued"
    assert len(kueue.workloads(ns.namespace)) >= 2
    for each in ("again", "behind"):
        ns.delete(each)


def test_a_higher_workload_priority_preempts_once_the_workers_have_left(kueue: Kueue, ns: Any) -> None:
    """[Should readmit preempted Job with workloadPriorityClass; Should finish the preemption when the job becomes
    inactive]
    """
    kueue.queue(ns.namespace, "preempts", ONE_JOB, flavors=["east"], preemption=PREEMPTION)
    ns.create("low", lambda pod: Run(stop_after=2.0), scheduling=queued("preempts", "low"))
    ns.running("low")
    ns.create("high", saves, scheduling=queued("preempts", "high"))
    ns.running("high")
    alive = [pod for pod in ns.control_plane.pods.of_job(ns.namespace, "low-1") if not pod.ended]
    assert alive == [], "the quota was given away while workers of the preempted job still saved"
    assert ns.status("low")["phase"] == "Queued"
    ns.end("high-1", Exit(0))
    status = ns.running("low", attempt=2)
    assert [each.get("outcome") for each in status["attempts"]] == ["QueuePreempted", None]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)
    ns.delete("low")


def test_the_flavor_decides_where_pods_run_and_leaves_with_it(kueue: Kueue, ns: Any) -> None:
    """[Should set the flavor's node selectors; Should restore the original node selectors]"""
    kueue.queue(ns.namespace, "flavors", ONE_JOB, flavors=["east"])
    ns.create("placed", saves, scheduling=queued("flavors"))
    ns.running("placed")
    pods = ns.control_plane.pods.of_job(ns.namespace, "placed-1")
    assert {pod.whole["spec"]["nodeSelector"]["pool"] for pod in pods} == {"east"}
    workload = the_workload(kueue, ns, "placed")["metadata"]["name"]
    kueue.set_active(ns.namespace, workload, False)
    ns.phase("placed", "Queued")
    queue = ns.child("batch/v1 jobs", "placed-queue")
    assert "nodeSelector" not in queue["spec"]["template"]["spec"]
    kueue.set_active(ns.namespace, workload, True)
    ns.running("placed", attempt=2)
    ns.delete("placed")


def test_a_deactivated_workload_stays_out_after_kueue_restarts(kueue: Kueue, ns: Any) -> None:
    """[Shouldn't admit deactivated Workload after manager restart]"""
    kueue.queue(ns.namespace, "inactive", ONE_JOB, flavors=["east"])
    ns.create("idle", saves, scheduling=queued("inactive"))
    ns.running("idle")
    workload = the_workload(kueue, ns, "idle")["metadata"]["name"]
    kueue.set_active(ns.namespace, workload, False)
    ns.phase("idle", "Queued")
    kueue.restart()
    ns.create("other", saves, scheduling=queued("inactive"))
    ns.running("other")
    assert ns.status("idle")["phase"] == "Queued"
    for each in ("idle", "other"):
        ns.delete(each)


def test_the_child_jobs_are_kueues_children(kueue: Kueue, ns: Any) -> None:
    """[Should not create child workload for a job with a kueue managed parent]: also with a default queue, which Kueue
    gives to every Job without one.
    """
    kueue.queue(ns.namespace, "default", ONE_JOB, flavors=["east"])
    before = {workload["metadata"]["name"] for workload in kueue.workloads(ns.namespace)}
    ns.create("parent", saves, scheduling=queued("default"))
    ns.running("parent")
    new = [workload for workload in kueue.workloads(ns.namespace) if workload["metadata"]["name"] not in before]
    assert [each["metadata"]["ownerReferences"][0]["name"] for each in new] == ["parent-queue"]
    assert "kueue.x-k8s.io/queue-name" not in ns.child("batch/v1 jobs", "parent-1")["metadata"]["labels"]
    ns.delete("parent")


def test_a_suspended_job_leaves_the_queue_and_a_deleted_one_frees_its_quota(kueue: Kueue, ns: Any) -> None:
    """[Its workload finalizer should be removed]"""
    kueue.queue(ns.namespace, "leaves", ONE_JOB, flavors=["east"])
    ns.create("sleeps", saves, scheduling=queued("leaves"))
    ns.running("sleeps")
    ns.patch("sleeps", {"spec": {"runPolicy": {"suspend": True}}})
    ns.phase("sleeps", "Suspended")
    ns.create("wakes", saves, scheduling=queued("leaves"))
    ns.running("wakes")
    ns.delete("wakes")
    ns.patch("sleeps", {"spec": {"runPolicy": {"suspend": False}}})
    ns.running("sleeps", attempt=2)
    ns.delete("sleeps")
    mine = ("sleeps-queue", "wakes-queue")
    ns.wait(
        lambda: [w for w in kueue.workloads(ns.namespace) if w["metadata"]["ownerReferences"][0]["name"] in mine],
        lambda left: not left,
    )


def test_a_cohort_takes_back_what_it_lent(kueue: Kueue, ns: Any) -> None:
    """[Should preempt Workloads in the cohort borrowing quota, when the ClusterQueue is using less than nominal]"""
    for name in ("owner", "borrower"):
        reclaims = {"reclaimWithinCohort": "Any"}
        kueue.queue(ns.namespace, name, ONE_JOB, flavors=["east"], cohortName="lending", preemption=reclaims)
    for name in ("fair", "greedy"):
        ns.create(name, saves, scheduling=queued("borrower", "low" if name == "greedy" else "high"))
        ns.running(name)
    ns.create("rightful", saves, scheduling=queued("owner"))
    ns.running("rightful")
    assert ns.phase("greedy", "Queued")["attempts"][0]["outcome"] == "QueuePreempted"
    assert ns.status("fair")["phase"] == "Running"
    ns.end("rightful-1", Exit(0))
    ns.running("greedy", attempt=2)
    for name in ("fair", "greedy"):
        ns.delete(name)


def test_an_elastic_job_has_the_workers_that_fit(kueue: Kueue, ns: Any) -> None:
    """[Should schedule jobs with partial admission]; preempted, it is admitted with another number of them."""
    kueue.queue(ns.namespace, "partial", {"cpu": "750m", "memory": "2Gi"}, flavors=["east"], preemption=PREEMPTION)
    elastic = {"workers": None, "elastic": {"min": 1, "max": 4}, "training": {"epochs": 1, "batchSize": {"global": 24}}}
    ns.create("shrinks", saves, scheduling=queued("partial", "low"), **elastic)
    status = ns.running("shrinks")
    assert (status["workers"], status["attempts"][0]["workers"]) == (3, 3)
    assert ns.child("batch/v1 jobs", "shrinks-queue")["spec"]["parallelism"] == 3
    kueue.set_quota("partial", "east", {"cpu": "1", "memory": "2Gi"})
    ns.create("rush", saves, scheduling=queued("partial", "high"))
    ns.running("rush")
    assert ns.running("shrinks", attempt=2)["workers"] == 2, "the rest of the quota is enough for two"
    ns.end("rush-1", Exit(0))
    ns.phase("rush", "Succeeded")
    assert ns.status("shrinks")["workers"] == 2, "Kueue adds no workers to an admitted Job"
    ns.delete("shrinks")


def test_an_admission_check_decides_and_adds_annotations(kueue: Kueue, ns: Any) -> None:
    """[Should unsuspend a job only after all checks are cleared; labels and annotations should be propagated from
    admission check to job; Should suspend a job when its checks become invalid]
    """
    kueue.check("machines")
    kueue.queue(ns.namespace, "checked", ONE_JOB, flavors=["east"], checks=["machines"])
    ns.create("booked", saves, scheduling=queued("checked"))
    ns.phase("booked", "Queued")
    workload = ns.wait(
        lambda: the_workload(kueue, ns, "booked"), lambda found: found.get("status", {}).get("admissionChecks")
    )
    name = workload["metadata"]["name"]
    assert ns.batch_jobs("booked") == []
    kueue.decide(ns.namespace, name, "machines", "Ready", annotations={"booking": "17"})
    ns.running("booked")
    pods = ns.control_plane.pods.of_job(ns.namespace, "booked-1")
    assert {pod.whole["metadata"]["annotations"]["booking"] for pod in pods} == {"17"}
    kueue.decide(ns.namespace, name, "machines", "Rejected")
    status = ns.phase("booked", "Queued")
    assert status["attempts"][0]["outcome"] == "QueuePreempted"
    ns.delete("booked")


def test_preemptions_of_two_workers_charge_nothing(kueue: Kueue, ns: Any) -> None:
    """Each takes the machines while all workers run; the job resumes every time, with one Workload."""
    kueue.queue(ns.namespace, "often", ONE_JOB, flavors=["east"], preemption=PREEMPTION)
    ns.create("patient", saves, scheduling=queued("often", "low"))
    ns.running("patient")
    first = the_workload(kueue, ns, "patient")["metadata"]["uid"]
    for number in range(1, PREEMPTIONS + 1):
        name = f"urgent-{number}"
        ns.create(name, lambda pod: Exit(0, after=0.1), scheduling=queued("often", "high"))
        ns.phase(name, "Succeeded")
        ns.running("patient", attempt=number + 1)
        ns.delete(name)
    status = ns.status("patient")
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)
    assert the_workload(kueue, ns, "patient")["metadata"]["uid"] == first
    ns.end(f"patient-{PREEMPTIONS + 1}", Exit(0))
    ns.phase("patient", "Succeeded")
