"""The life of a job on a real API server, from its creation to its end, and every way in which an attempt ends."""

from __future__ import annotations

import json
from typing import Any

from mptraining_api.resolved_job import ResolvedJob
from tests.testbed import Behaviour, Exit, Lost, Run, Unscheduled
from tests.testbed.http_stub import HttpStub
from tests.testbed.nodes.pods import Pod


def test_created_running_succeeded(ns: Any) -> None:
    ns.create("flowers")
    status = ns.running("flowers")
    resolved = {each["decision"]: each["value"] for each in status["resolved"]}
    assert resolved == {
        "image": "mptraining/trainer:test", "machine": "cpu x 1", "strategy": "MultiWorkerMirrored",
        "precision": "float32", "batchSize": "64",
    }  # fmt: skip
    assert all(each["reason"] for each in status["resolved"])
    assert (status["workers"], status["replicasInSync"]) == (2, 2)
    job = ns.get("flowers")
    batch_job = ns.child("batch/v1 jobs", "flowers-1")
    owner = batch_job["metadata"]["ownerReferences"][0]
    assert (owner["uid"], owner["controller"]) == (job["metadata"]["uid"], True)
    for kind in ("services", "networking.k8s.io/v1 networkpolicies"):
        assert "ownerReferences" not in ns.child(kind, "mptraining-workers")["metadata"]
    frozen = ns.child("configmaps", "flowers-job")["data"]["job.json"]
    assert ResolvedJob.read(frozen).strategy == "MultiWorkerMirrored"

    ns.end("flowers-1", Exit(0))
    status = ns.phase("flowers", "Succeeded")
    for type in ("Complete", "Finished"):
        assert {c["type"]: c["status"] for c in status["conditions"]}[type] == "True"
    assert ns.condition("flowers", "Running")["status"] == "False"
    assert [each["outcome"] for each in status["attempts"]] == ["Succeeded"]
    assert status["startTime"] <= status["completionTime"]
    # A separate thread writes the events, after the status.
    expected = {"Started", "Running", "Succeeded"}
    ns.wait(lambda: {event.split(":")[0] for event in ns.events("flowers")}, lambda said: expected <= said)


def test_when_one_worker_fails_the_whole_gang_starts_again(ns: Any) -> None:
    """The other worker was told to stop and exits with the preemption code 75: that code decides nothing."""

    def script(pod: Pod) -> Behaviour:
        if pod.job.endswith("-1"):
            return Exit(1, after=0.3) if pod.index == 1 else Run(stop_code=75)
        return Exit(0, after=0.3)

    ns.create("gang", script)
    status = ns.phase("gang", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (1, 0)
    assert "worker 1" in status["attempts"][0]["message"]
    first, second = ns.batch_jobs("gang")
    ended = next(each for each in first["status"]["conditions"] if each["type"] == "Failed")["lastTransitionTime"]
    assert second["metadata"]["creationTimestamp"] >= ended


def test_half_a_gang_waits_with_the_schedulers_message_and_is_released_whole(ns: Any) -> None:
    words = "0/7 nodes are available: 7 Insufficient nvidia.com/gpu."
    ns.create(
        "half",
        lambda pod: Run() if pod.index == 0 else Unscheduled(words),
        # Long enough for the operator to see the scheduler's message first.
        runPolicy={"pendingTimeoutSeconds": 10},
    )
    assert words in ns.waits("half", "Unschedulable")
    ns.phase("half", "Failed")
    failed = ns.condition("half", "Failed")
    assert failed["reason"] == "PendingTimeout"
    assert words in failed["message"]
    ns.released("half")


def test_suspend_and_resume(ns: Any) -> None:
    ns.create("paused", lambda pod: Run() if pod.job.endswith("-1") else Exit(0, after=0.2))
    ns.running("paused")
    ns.patch("paused", {"spec": {"runPolicy": {"suspend": True}}})
    ns.phase("paused", "Suspended")
    ns.released("paused")
    assert ns.condition("paused", "Suspended")["status"] == "True"
    ns.patch("paused", {"spec": {"runPolicy": {"suspend": False}}})
    status = ns.phase("paused", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["Suspended", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)
    assert ns.condition("paused", "Suspended")["status"] == "False"


def test_deadline_and_time_to_live_of_a_started_job_may_move(ns: Any) -> None:
    ns.create("moved", runPolicy={"activeDeadlineSeconds": 3600})
    ns.running("moved")
    ns.patch("moved", {"spec": {"runPolicy": {"activeDeadlineSeconds": 1}, "checkpoint": {"maxToKeep": 9}}})
    ns.phase("moved", "Failed")
    failed = ns.condition("moved", "Failed")
    assert failed["reason"] == "DeadlineExceeded"
    assert "the job ran for longer than 1 s (spec.runPolicy.activeDeadlineSeconds)" in failed["message"]
    ns.patch("moved", {"spec": {"runPolicy": {"ttlSecondsAfterFinished": 1}}})
    gone = lambda: ns.child("mptraining.dev/v1alpha1 mptrainingjobs", "moved")  # noqa: E731
    ns.wait(gone, lambda found: found is None)


def test_deleting_a_running_job_deletes_its_objects(ns: Any) -> None:
    ns.create("gone")
    ns.running("gone")
    ns.delete("gone")
    ns.wait(lambda: ns.child("batch/v1 jobs", "gone-1"), lambda found: found is None)
    ns.wait(lambda: ns.control_plane.pods.of_job(ns.namespace, "gone-1"), lambda pods: not pods)


def test_a_job_made_again_starts_no_gang_beside_pods_that_still_save(ns: Any) -> None:
    """The Job of the first one is deleted at once, its pods after they have saved to the same output; until then the
    policy keeps other pods away from them.
    """
    pods = lambda: ns.control_plane.pods.select(ns.namespace, **{"mptraining.dev/job": "beside"})  # noqa: E731
    ns.create("beside")
    ns.running("beside")
    first = ns.get("beside")["metadata"]["uid"]
    saving = pods()
    for pod in saving:
        # The pods save until the test ends them.
        ns.kubelet.tell(pod, Lost())
    ns.delete("beside")
    ns.create("beside", lambda pod: Exit(0, after=0.2))
    ns.waits("beside", "EarlierJobEnds")
    # The garbage collector may take half a minute to discover a new resource.
    ns.wait(pods, lambda found: len(found) == 2 and all(pod.terminating for pod in found))
    assert {pod.uid for pod in pods()} == {pod.uid for pod in saving}
    for kind in ("services", "networking.k8s.io/v1 networkpolicies"):
        assert ns.child(kind, "mptraining-workers") is not None
    for pod in saving:
        ns.kubelet.tell(pod, Run())
    seen = ns.wait(pods, lambda found: any(pod.labels["mptraining.dev/job-uid"] != first for pod in found))
    assert not [pod.name for pod in seen if pod.labels["mptraining.dev/job-uid"] == first and not pod.ended]
    ns.phase("beside", "Succeeded")
    ns.wait_for_event("beside", "EarlierJobEnds")


def test_somebody_deletes_the_indexed_job(ns: Any) -> None:
    ns.create("robbed", lambda pod: Run() if pod.job.endswith("-1") else Exit(0))
    ns.running("robbed")
    ns.rest.delete(f"/apis/batch/v1/namespaces/{ns.namespace}/jobs/robbed-1", {"propagationPolicy": "Background"})
    status = ns.phase("robbed", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ChildDeleted", "Succeeded"]


def test_somebody_elses_job_of_the_childs_name(ns: Any) -> None:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}}
    foreign = {"metadata": {"name": "taken-1"}, "spec": {"suspend": True, "template": pod}}
    ns.rest.post(f"/apis/batch/v1/namespaces/{ns.namespace}/jobs", foreign)
    ns.create("taken", lambda pod: Exit(0))
    assert "Job taken-1" in ns.waits("taken", "ChildNameTaken")
    ns.rest.delete(f"/apis/batch/v1/namespaces/{ns.namespace}/jobs/taken-1", {"propagationPolicy": "Background"})
    ns.phase("taken", "Succeeded")


def annotate(ns: Any, name: str, value: str | None) -> None:
    ns.patch(name, {"metadata": {"annotations": {"mptraining.dev/paused": value}}})


def test_a_paused_job_is_left_alone_until_the_annotation_is_removed(ns: Any) -> None:
    ns.create("still", lambda pod: Run() if pod.job.endswith("-1") else Exit(0, after=0.2))
    before = ns.running("still")
    annotate(ns, "still", "true")
    ns.wait_for_event("still", "Paused")
    ns.end("still-1", Exit(1))
    ns.wait(lambda: ns.batch_jobs("still")[0]["status"].get("conditions"), lambda found: found)
    # The operator works meanwhile: another job lives from its creation to its end.
    ns.create("other", lambda pod: Exit(0))
    ns.phase("other", "Succeeded")
    assert ns.status("still") == before
    annotate(ns, "still", None)
    status = ns.phase("still", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Succeeded"]
    said = [each.partition(":")[0] for each in ns.wait_for_event("still", "Unpaused")]
    assert (said.count("Paused"), said.count("Unpaused")) == (1, 1)


def test_the_end_of_a_job_is_posted_to_a_webhook(alone: Any) -> None:
    with HttpStub(lambda _, handler: handler.answer(200)) as server:
        alone.operator(notifications={"url": server.address})
        alone.create("flowers", lambda pod: Exit(2, message="no such folder"), workers=1)
        with server.arrived:
            assert server.arrived.wait_for(lambda: server.requests, timeout=60)
    text = json.loads(server.requests[0].body)["text"]
    assert text.startswith(f"{alone.namespace}/flowers: Failed (InvalidSpec): worker 0 on node "), text
