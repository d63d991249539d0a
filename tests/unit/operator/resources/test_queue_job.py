"""The Job that holds a job's place in Kueue's queue, the Workload for MultiKueue, and what an attempt takes from it."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import Scheduling
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.jobs.resources.job_objects import Owner
from mptraining_operator.jobs.resources.queue_job import MIN_PARALLELISM, Admitted, queue_job, queue_placement
from tests.fakes import with_image
from tests.jobs import two_workers

OWNER = Owner("team", "flowers", "0a1b2c3d-4e5f", "2026-01-01T00:00:00Z")
QUEUED = Scheduling(queue_name="gpus", workload_priority_class_name="urgent")


def attempt(*, admitted: Admitted | None = None, **spec: Any) -> dict[str, Any]:
    training = {"epochs": 1, "batchSize": {"global": 64}}
    scheduling = {"queueName": "gpus", "workloadPriorityClassName": "urgent"}
    job = two_workers(**{"training": training, "scheduling": scheduling, **spec})
    resolved = resolve(job, ClusterSettings(runtimes=with_image("trainer:test")))
    return indexed_job(OWNER, resolved, attempt=1, settings=PodSettings(), admitted=admitted)


def test_no_controller_but_the_operator_acts_on_the_queues_job() -> None:
    built = queue_job(OWNER, attempt(), QUEUED)
    assert built["spec"]["managedBy"] == "mptraining.dev/operator"
    assert built["spec"]["suspend"] is True
    labels = built["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "gpus"
    assert labels["kueue.x-k8s.io/priority-class"] == "urgent"
    assert "mptraining.dev/attempt" not in labels, "it is no attempt"


def test_it_asks_for_the_machines_of_an_attempt_without_its_program() -> None:
    of_attempt = attempt()["spec"]["template"]["spec"]
    pod = queue_job(OWNER, attempt(), QUEUED)["spec"]["template"]["spec"]
    for field in ("nodeSelector", "tolerations", "securityContext", "restartPolicy"):
        assert pod[field] == of_attempt[field]
    (container,) = pod["containers"]
    assert container["resources"] == of_attempt["containers"][0]["resources"]
    assert container.keys().isdisjoint(("env", "command", "volumeMounts"))


@pytest.mark.parametrize(("least", "expected"), [(None, None), (1, "1"), (2, None)])
def test_partial_admission(least: int | None, expected: str | None) -> None:
    """Kueue refuses a minimum that equals the number of workers."""
    built = queue_job(OWNER, attempt(), QUEUED, least_workers=least)
    assert built["metadata"]["annotations"].get(MIN_PARALLELISM) == expected


def test_an_attempt_runs_where_the_queue_admitted_the_job() -> None:
    place = queue_job(OWNER, attempt(), QUEUED)
    template = place["spec"]["template"]
    template["metadata"]["labels"] |= {"kueue.x-k8s.io/podset": "main", "controller-uid": "of-the-place"}
    template["metadata"]["annotations"]["kueue.x-k8s.io/workload"] = "job-flowers"
    template["spec"]["nodeSelector"]["zone"] = "east"
    toleration = {"key": "reserved", "operator": "Exists"}
    template["spec"]["tolerations"] = [*template["spec"]["tolerations"], toleration]
    template["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/topology"}]

    built = attempt(admitted=Admitted("flowers-queue", "place", queue_placement(template)))
    about, pod = built["spec"]["template"]["metadata"], built["spec"]["template"]["spec"]
    assert about["labels"]["kueue.x-k8s.io/podset"] == "main"
    assert about["labels"]["mptraining.dev/attempt"] == "1"
    assert "controller-uid" not in about["labels"], "of the other Job's own pods"
    assert about["annotations"]["kueue.x-k8s.io/workload"] == "job-flowers"
    assert pod["nodeSelector"]["zone"] == "east"
    assert pod["nodeSelector"]["cloud.google.com/gke-accelerator"] == "nvidia-tesla-t4"
    assert pod["tolerations"].count(toleration) == 1
    assert pod["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    # The Job controller creates its pods at once; for Kueue it is the child of a Job that is admitted.
    assert "suspend" not in built["spec"]
    assert "kueue.x-k8s.io/queue-name" not in built["metadata"]["labels"]
    owners = {each["kind"]: each["controller"] for each in built["metadata"]["ownerReferences"]}
    assert owners == {"MPTrainingJob": False, "Job": True}
