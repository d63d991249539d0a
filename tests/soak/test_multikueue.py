"""A job that MultiKueue runs in another cluster: two API servers, two operators and two real Kueues."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.left_out import leave_out
from tests.testbed import ControlPlane, Exit, Run
from tests.testbed.kubernetes.installation import install
from tests.testbed.kubernetes.kueue import API, BUILT, GROUP, SYSTEM, Kueue

QUOTA = {"cpu": "2", "memory": "8Gi"}
ELSEWHERE = {"managedBy": "kueue.x-k8s.io/multikueue", "scheduling": {"queueName": "gpus"}}
FRAMEWORKS = {
    "multiKueue": {"externalFrameworks": [{"name": "MPTrainingJob.v1alpha1.mptraining.dev"}]},
}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kueue, Kueue]]:
    """The manager's Kueue and the worker's."""
    if not (BUILT / "kueue").exists():
        leave_out("no kueue in build/kueue: run `make kueue` (needs Go)")
    folders = [tmp_path_factory.mktemp(each) for each in ("manager", "worker")]
    with (
        ControlPlane(folders[0]) as manager,
        ControlPlane(folders[1]) as worker,
        Kueue(worker) as workers_kueue,
        Kueue(manager, FRAMEWORKS) as managers_kueue,
    ):
        for each in (manager, worker):
            install(each)
        worker.nodes.create("worker-node")
        yield managers_kueue, workers_kueue


@pytest.fixture(scope="module")
def sides(clusters: tuple[Kueue, Kueue], new_namespace: Any) -> Iterator[tuple[Any, Any]]:
    """The same namespace of both clusters, each with an operator; the worker's has the queue's machines."""
    here, there = (new_namespace(each.control_plane, "farm") for each in clusters)
    there.with_kubelet()
    manager, worker = clusters
    worker.queue("farm", "gpus", QUOTA)
    connect(manager, worker)
    manager.queue("farm", "gpus", QUOTA, checks=["elsewhere"])
    for each in (here, there):
        each.operator()
    yield here, there
    for each in (here, there):
        each.close()


def connect(manager: Kueue, worker: Kueue) -> None:
    """Make the worker's cluster known to the manager's MultiKueue."""
    rest = manager.rest
    access = yaml.safe_load(worker.control_plane.admin_kubeconfig.read_text())
    for each in access["clusters"]:
        # Kueue reads no files that a kubeconfig names.
        authority = Path(each["cluster"].pop("certificate-authority")).read_bytes()
        each["cluster"]["certificate-authority-data"] = base64.b64encode(authority).decode()
    text = yaml.safe_dump(access).encode()
    secret = {"metadata": {"name": "worker"}, "data": {"kubeconfig": base64.b64encode(text).decode()}}
    rest.post(f"/api/v1/namespaces/{SYSTEM}/secrets", {"apiVersion": "v1", "kind": "Secret", **secret})

    def create(plural: str, kind: str, name: str, spec: dict[str, Any]) -> None:
        body = {"apiVersion": f"{GROUP}/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
        rest.post(f"{API}/{plural}", body)

    source = {"kubeConfig": {"location": "worker", "locationType": "Secret"}}
    create("multikueueclusters", "MultiKueueCluster", "worker", {"clusterSource": source})
    create("multikueueconfigs", "MultiKueueConfig", "farm", {"clusters": ["worker"]})
    parameters = {"apiGroup": GROUP, "kind": "MultiKueueConfig", "name": "farm"}
    spec = {"controllerName": f"{GROUP}/multikueue", "parameters": parameters}
    create("admissionchecks", "AdmissionCheck", "elsewhere", spec)


def arrived(there: Any, name: str) -> None:
    """Wait until MultiKueue has created the job in this cluster."""
    there.wait(lambda: [each["metadata"]["name"] for each in there.rest.get(there.jobs)["items"]], lambda n: name in n)


def test_a_job_runs_in_the_other_cluster_and_its_status_comes_back(sides: tuple[Any, Any]) -> None:
    here, there = sides
    there.scripts["away"] = lambda pod: Exit(1, after=0.5) if pod.job == "away-1" else Run()
    here.create("away", **ELSEWHERE)
    arrived(there, "away")
    there.running("away", attempt=2)
    remote = there.get("away")
    assert "managedBy" not in remote["spec"]
    assert here.batch_jobs("away") == [], "no worker runs in the manager's cluster"
    there.end("away-2", Exit(0))
    there.phase("away", "Succeeded")
    status = here.phase("away", "Succeeded")
    assert [each["outcome"] for each in status["attempts"]] == ["ProgramFailed", "Succeeded"]
    # MultiKueue removes the copy of a job that has ended.
    there.wait(lambda: there.rest.get(there.jobs)["items"], lambda left: not left)


def test_a_job_that_is_deleted_is_deleted_in_the_other_cluster(sides: tuple[Any, Any]) -> None:
    here, there = sides
    here.create("gone", **ELSEWHERE)
    arrived(there, "gone")
    there.running("gone")
    here.delete("gone")
    there.wait(lambda: there.rest.get(there.jobs)["items"], lambda left: not left)
    there.released("gone")
    time.sleep(1)
    assert there.batch_jobs("gone") == []
