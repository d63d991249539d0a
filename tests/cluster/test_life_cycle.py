"""The life of a job on a real API server, from its creation to its end, and every way in which an attempt ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mptraining_api.resolved_job import ResolvedJob
from tests.testbed import Behaviour, Disrupted, Exit, Lost, OutOfMemory, Run, Unscheduled, Waiting
from tests.testbed.kubernetes.rest import MERGE, Refused
from tests.testbed.nodes.pods import Pod


def test_created_running_succeeded(life: Any) -> None:
    life.create("flowers")
    status = life.running("flowers")
    assert (status["strategy"], status["precision"], status["workers"]) == ("MultiWorkerMirrored", "float32", 2)
    assert (status["replicasInSync"], status["globalBatchSize"]) == (2, 64)
    job = life.get("flowers")
    children = {
        "configmaps": "flowers-job",
        "services": "flowers-workers",
        "networking.k8s.io/v1 networkpolicies": "flowers-workers",
        "batch/v1 jobs": "flowers-1",
    }
    for kind, name in children.items():
        owner = life.child(kind, name)["metadata"]["ownerReferences"][0]
        assert (owner["uid"], owner["controller"]) == (job["metadata"]["uid"], True)
    file = life.child("configmaps", "flowers-job")
    assert file["immutable"]
    assert ResolvedJob.read(file["data"]["job.json"]).strategy == "MultiWorkerMirrored"

    life.end("flowers-1", Exit(0))
    status = life.phase("flowers", "Succeeded")
    for type in ("Succeeded", "Finished"):
        assert {c["type"]: c["status"] for c in status["conditions"]}[type] == "True"
    assert life.condition("flowers", "Running")["status"] == "False"
    assert [each["outcome"] for each in status["attempts"]] == ["Succeeded"]
    assert status["startTime"] <= status["completionTime"]
    # Events come after the status, from a thread of their own.
    expected = {"Started", "Running", "Succeeded"}
    life.wait(lambda: {each.split(":")[0] for each in life.events("flowers")}, lambda said: expected <= said)


def test_kubectl_shows_what_people_ask_for(life: Any) -> None:
    life.create("shown", lambda pod: Exit(0))
    life.phase("shown", "Succeeded")
    table = life.control_plane.kubectl("get", "mptj", "shown", "-n", life.namespace).stdout.splitlines()
    assert table[0].split("  ")[0] == "NAME"
    for column in ("PHASE", "ACCELERATOR", "STRATEGY", "PRECISION", "PROGRESS %", "AGE"):
        assert column in table[0]
    assert table[1].split()[:5] == ["shown", "Succeeded", "cpu", "MultiWorkerMirrored", "float32"]
    done = life.control_plane.kubectl(
        "wait", "--for=condition=Finished", "--timeout=60s", "mptj/shown", "-n", life.namespace
    )
    assert "condition met" in done.stdout


def test_when_one_worker_fails_the_whole_gang_starts_again(life: Any) -> None:
    """The peer leaves with its preemption code 75 because it was told to: that decides nothing."""

    def script(pod: Pod) -> Behaviour:
        if pod.job.endswith("-1"):
            return Exit(1, after=0.3) if pod.index == 1 else Run(stop_code=75)
        return Exit(0, after=0.3)

    life.create("gang", script)
    status = life.phase("gang", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (1, 0)
    assert "worker 1" in status["attempts"][0]["message"]
    first, second = life.batch_jobs("gang")
    ended = next(each for each in first["status"]["conditions"] if each["type"] == "Failed")["lastTransitionTime"]
    assert second["metadata"]["creationTimestamp"] >= ended


def test_failures_of_program_and_infrastructure_are_counted_apart(life: Any) -> None:
    def script(pod: Pod) -> Behaviour:
        ends: list[Behaviour] = [Disrupted(after=0.2), Exit(1, after=0.2), OutOfMemory(after=0.2), Exit(75, after=0.2)]
        number = int(pod.job.rpartition("-")[2])
        if number > len(ends):
            return Exit(0)
        return ends[number - 1] if pod.index == 0 else Run()

    life.create("mixed", script)
    status = life.phase("mixed", "Succeeded")
    outcomes = [each["outcome"] for each in status["attempts"]]
    assert outcomes == ["Preempted", "ProgramFailed", "OOMKilled", "Preempted", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (2, 2)


@pytest.mark.parametrize(("name", "code", "reason"), [("no-data", 2, "InvalidData"), ("diverged", 3, "Diverged")])
def test_what_can_never_work_is_not_tried_again(life: Any, name: str, code: int, reason: str) -> None:
    words = {
        "mptraining": 1, "time": 1.0, "attempt": 1, "incarnation": "x", "worker": 0, "kind": "Finished",
        "reason": reason, "exit_code": code, "message": "spec.data.train: nothing matches 'gs://b/*'",
    }  # fmt: skip
    life.create(name, lambda pod: Exit(code, after=0.1, message=json.dumps(words)) if pod.index == 0 else Run())
    status = life.phase(name, "Failed")
    failed = life.condition(name, "Failed")
    assert failed["reason"] == reason
    assert "nothing matches 'gs://b/*'" in failed["message"]
    assert len(status["attempts"]) == 1


def test_a_program_that_always_fails_uses_up_its_retries(life: Any) -> None:
    life.create("hopeless", lambda pod: Exit(1), runPolicy={"backoffLimit": 1})
    status = life.phase("hopeless", "Failed")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "ProgramFailed"]
    assert "No retry is left (spec.runPolicy.backoffLimit: 1)" in life.condition("hopeless", "Failed")["message"]


def test_the_active_deadline(life: Any) -> None:
    life.create("long", runPolicy={"activeDeadlineSeconds": 1})
    life.phase("long", "Failed")
    assert life.condition("long", "Failed")["reason"] == "DeadlineExceeded"
    life.released("long")


def test_the_progress_deadline_restarts_a_job_that_hangs(life: Any) -> None:
    life.create(
        "hung", lambda pod: Run() if pod.job.endswith("-1") else Exit(0), runPolicy={"progressDeadlineSeconds": 1}
    )
    status = life.phase("hung", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["NoProgress", "Succeeded"]


def test_half_a_gang_waits_with_the_schedulers_words_and_is_released_whole(life: Any) -> None:
    words = "0/7 nodes are available: 7 Insufficient nvidia.com/gpu."
    life.create(
        "half",
        lambda pod: Run() if pod.index == 0 else Unscheduled(words),
        # Long enough for its words to be heard before.
        runPolicy={"pendingTimeoutSeconds": 10},
    )
    assert words in life.waits("half", "Unschedulable")
    life.phase("half", "Failed")
    failed = life.condition("half", "Failed")
    assert failed["reason"] == "PendingTimeout"
    assert words in failed["message"]
    life.released("half")


def test_an_image_that_cannot_be_pulled(life: Any) -> None:
    life.create(
        "typo",
        lambda pod: Waiting("ImagePullBackOff", 'Back-off pulling image "nope:1"'),
        # Long enough for its words to be heard before.
        runPolicy={"pendingTimeoutSeconds": 10},
    )
    assert 'Back-off pulling image "nope:1"' in life.waits("typo", "ImagePullFailed")
    life.phase("typo", "Failed")
    assert life.condition("typo", "Failed")["reason"] == "PendingTimeout"
    assert "ImagePullFailed" in life.condition("typo", "Failed")["message"]


def test_suspend_and_resume(life: Any) -> None:
    life.create("paused", lambda pod: Run() if pod.job.endswith("-1") else Exit(0, after=0.2))
    life.running("paused")
    life.patch("paused", {"spec": {"runPolicy": {"suspend": True}}})
    life.phase("paused", "Suspended")
    life.released("paused")
    assert life.condition("paused", "Suspended")["status"] == "True"
    life.patch("paused", {"spec": {"runPolicy": {"suspend": False}}})
    status = life.phase("paused", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["Suspended", "Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)
    assert life.condition("paused", "Suspended")["status"] == "False"


def test_a_job_that_is_born_suspended_has_no_pods(life: Any) -> None:
    life.create("asleep", lambda pod: Exit(0), runPolicy={"suspend": True})
    life.phase("asleep", "Suspended")
    assert life.batch_jobs("asleep") == []
    life.patch("asleep", {"spec": {"runPolicy": {"suspend": False}}})
    life.phase("asleep", "Succeeded")


def test_a_started_job_may_only_be_suspended(life: Any) -> None:
    life.create("fixed")
    life.running("fixed")
    with pytest.raises(Refused, match="no change but runPolicy"):
        life.patch("fixed", {"spec": {"nodes": 3}})


def test_time_to_live_and_cascade(life: Any) -> None:
    life.create("brief", lambda pod: Exit(0), runPolicy={"ttlSecondsAfterFinished": 1})
    gone = lambda: life.child("mptraining.dev/v1alpha1 mptrainingjobs", "brief")  # noqa: E731
    life.wait(gone, lambda found: found is None)
    for kind, name in (("configmaps", "brief-job"), ("services", "brief-workers"), ("batch/v1 jobs", "brief-1")):
        life.wait(lambda kind=kind, name=name: life.child(kind, name), lambda found: found is None)
    life.wait(lambda: life.control_plane.pods.of_job(life.namespace, "brief-1"), lambda pods: not pods)


def test_deleting_a_running_job_takes_everything_along(life: Any) -> None:
    life.create("gone")
    life.running("gone")
    life.delete("gone")
    for kind, name in (("configmaps", "gone-job"), ("services", "gone-workers"), ("batch/v1 jobs", "gone-1")):
        life.wait(lambda kind=kind, name=name: life.child(kind, name), lambda found: found is None)
    life.wait(lambda: life.control_plane.pods.of_job(life.namespace, "gone-1"), lambda pods: not pods)


def test_a_job_deleted_and_made_again_at_once_waits_for_the_first_ones_children(life: Any) -> None:
    life.create("again")
    before = life.running("again") and life.batch_jobs("again")[0]["metadata"]["uid"]
    life.delete("again")
    life.create("again", lambda pod: Exit(0, after=0.2))
    life.phase("again", "Succeeded")
    assert life.batch_jobs("again")[0]["metadata"]["uid"] != before


def test_a_job_made_again_starts_no_gang_beside_pods_that_still_save(life: Any) -> None:
    """ConfigMap, Service and Job of the first go at once, its pods when they have saved: to the same output."""
    pods = lambda: life.control_plane.pods.select(life.namespace, **{"mptraining.dev/job": "beside"})  # noqa: E731
    life.create("beside")
    life.running("beside")
    first = life.get("beside")["metadata"]["uid"]
    saving = pods()
    for pod in saving:
        # They save until they are told that they have done so.
        life.kubelet.tell(pod, Lost())
    life.delete("beside")
    life.create("beside", lambda pod: Exit(0, after=0.2))
    life.waits("beside", "EarlierJobEnds")
    # The garbage collector may take half a minute to learn of a new resource.
    life.wait(pods, lambda found: len(found) == 2 and all(pod.terminating for pod in found))
    assert {pod.uid for pod in pods()} == {pod.uid for pod in saving}
    for pod in saving:
        life.kubelet.tell(pod, Run())
    seen = life.wait(pods, lambda found: any(pod.labels["mptraining.dev/job-uid"] != first for pod in found))
    assert not [pod.name for pod in seen if pod.labels["mptraining.dev/job-uid"] == first and not pod.ended]
    life.phase("beside", "Succeeded")
    life.told("beside", "EarlierJobEnds")


def test_somebody_deletes_the_indexed_job(life: Any) -> None:
    life.create("robbed", lambda pod: Run() if pod.job.endswith("-1") else Exit(0))
    life.running("robbed")
    life.rest.delete(f"/apis/batch/v1/namespaces/{life.namespace}/jobs/robbed-1", {"propagationPolicy": "Background"})
    status = life.phase("robbed", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ChildDeleted", "Succeeded"]


@pytest.mark.parametrize(
    ("name", "lost"),
    [("unlabelled", {"labels": {"mptraining.dev/job": None}}), ("disowned", {"ownerReferences": None})],
)
def test_somebody_takes_label_or_owner_from_the_indexed_job(life: Any, name: str, lost: dict[str, Any]) -> None:
    life.create(name, lambda pod: Run() if pod.job.endswith("-1") else Exit(0))
    life.running(name)
    path = f"/apis/batch/v1/namespaces/{life.namespace}/jobs/{name}-1"
    life.rest.patch(path, {"metadata": lost}, kind=MERGE)
    status = life.phase(name, "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ChildDeleted", "Succeeded"]
    life.wait(lambda: life.child("batch/v1 jobs", f"{name}-1"), lambda found: found is None)


def test_a_pod_stuck_on_a_dead_node_is_ended_by_its_status(life: Any) -> None:
    """Its node is silent: without the operator it would stay Terminating for ever, and the job with it."""
    life.control_plane.nodes.create("doomed", labels={"mptraining.dev/doomed": "yes"})

    def script(pod: Pod) -> Behaviour:
        return Run() if pod.job.endswith("-1") else Exit(0, after=0.2)

    life.create("stranded", script, podTemplate={"nodeSelector": {"mptraining.dev/doomed": "yes"}}, nodes=1)
    life.running("stranded")
    pod = life.control_plane.pods.of_job(life.namespace, "stranded-1")[0]
    life.kubelet.tell(pod, Lost())
    life.control_plane.nodes.set_ready("doomed", False)
    life.rest.delete(f"/api/v1/namespaces/{life.namespace}/pods/{pod.name}")
    status = life.until("stranded", lambda status: status.get("currentAttempt") == 2)
    assert status["attempts"][0]["outcome"] == "NodeLost"
    assert status["infrastructureRestarts"] == 1
    life.control_plane.nodes.set_ready("doomed", True)
    life.phase("stranded", "Succeeded")


def test_somebody_elses_job_of_the_childs_name(life: Any) -> None:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}}
    foreign = {"metadata": {"name": "taken-1"}, "spec": {"suspend": True, "template": pod}}
    life.rest.post(f"/apis/batch/v1/namespaces/{life.namespace}/jobs", foreign)
    life.create("taken", lambda pod: Exit(0))
    assert "Job taken-1" in life.waits("taken", "ChildNameTaken")
    life.rest.delete(f"/apis/batch/v1/namespaces/{life.namespace}/jobs/taken-1", {"propagationPolicy": "Background"})
    life.phase("taken", "Succeeded")
