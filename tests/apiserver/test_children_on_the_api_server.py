"""A real API server takes every golden child, and `restricted` pod security admits the pods, of bare and real Jobs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.testbed import ControlPlane, Disrupted, Exit, Run
from tests.testbed.kubernetes.access import wait_until
from tests.testbed.kubernetes.rest import Refused
from tests.testbed.nodes.pods import RESTRICTED as RESTRICTED_CONTAINER
from tests.unit.operator.resources.test_golden_objects import FOLDER, children, golden

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
FIELDS = {"fieldManager": "test", "fieldValidation": "Strict"}
PATHS = {
    "ConfigMap": "/api/v1",
    "Service": "/api/v1",
    "NetworkPolicy": "/apis/networking.k8s.io/v1",
    "Job": "/apis/batch/v1",
}
PLURALS = {"ConfigMap": "configmaps", "Service": "services", "NetworkPolicy": "networkpolicies", "Job": "jobs"}
_numbers = itertools.count()


@pytest.fixture
def restricted(control_plane: ControlPlane) -> str:
    """A new namespace that admits only restricted pods, with the account and the class that a golden job names."""
    name = control_plane.namespace(f"restricted-{next(_numbers)}", labels=RESTRICTED)
    account = {"metadata": {"name": "trainer", "namespace": name}}
    control_plane.rest.post(f"/api/v1/namespaces/{name}/serviceaccounts", account)
    for path, body in (
        ("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "training"}, "value": 1000}),
        ("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "gvisor"}, "handler": "runsc"}),
    ):
        if body["metadata"]["name"] not in [each["metadata"]["name"] for each in control_plane.rest.get(path)["items"]]:
            control_plane.rest.post(path, body)
    classes_of_pod = {"priorityClassName": "training", "runtimeClassName": "gvisor"}
    pod = {"metadata": {"name": "asks"}, "spec": {**classes_of_pod, **bare_pod()}}
    # Admission reads from its cache, which is updated later.
    wait_until(
        lambda: bool(control_plane.rest.post(f"/api/v1/namespaces/{name}/pods", pod, {"dryRun": "All"})),
        "a pod of the class would be taken",
    )
    return name


def bare_pod() -> dict[str, Any]:
    """Return the spec of a pod that the level `restricted` admits."""
    return {"containers": [{"name": "trainer", "image": "x", "securityContext": RESTRICTED_CONTAINER}]}


def created(control_plane: ControlPlane, namespace: str, file: Path) -> list[dict[str, Any]]:
    """The golden children as the API server stores them, of a job that exists."""
    case = golden(file.stem)
    found = children(case)
    # It keeps the name that the children's owner references have: the garbage collector compares it too.
    job = {**case["job"], "metadata": {**case["job"]["metadata"], "namespace": namespace}}
    path = f"/apis/mptraining.dev/v1alpha1/namespaces/{namespace}/mptrainingjobs"
    uid = control_plane.rest.post(path, job, FIELDS)["metadata"]["uid"]
    golden_uid = found[-1]["metadata"]["ownerReferences"][0]["uid"]
    # Without its real owner the garbage collector would delete a child.
    text = json.dumps(found).replace(golden_uid, uid).replace("team-a", namespace)
    stored = []
    for child in json.loads(text):
        path = f"{PATHS[child['kind']]}/namespaces/{namespace}/{PLURALS[child['kind']]}"
        try:
            stored.append(control_plane.rest.post(path, child, FIELDS))
        except Refused as refused:
            # The jobs of a namespace share some.
            if refused.code != 409:
                raise
    return stored


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_golden_children_are_taken(control_plane: ControlPlane, restricted: str, file: Path) -> None:
    expected = children(golden(file.stem))[-1]
    *_, job = created(control_plane, restricted, file)
    # Unknown fields would be dropped by now, or refused: validation is strict.
    kept = ("completionMode", "completions", "backoffLimitPerIndex", "maxFailedIndexes", "podReplacementPolicy")
    assert {name: job["spec"][name] for name in kept} == {name: expected["spec"][name] for name in kept}
    assert job["spec"]["suspend"] is expected["spec"].get("suspend", False)
    template = job["spec"]["template"]
    labels = {name: value for name, value in template["metadata"]["labels"].items() if "batch.kubernetes" not in name}
    pod = {"metadata": {"name": "alone", **template["metadata"], "labels": labels}, "spec": template["spec"]}
    alone = control_plane.rest.post(f"/api/v1/namespaces/{restricted}/pods", pod, FIELDS | {"dryRun": "All"})
    # The tolerations that admission adds by default are already there, with our seconds.
    lost = [each for each in alone["spec"]["tolerations"] if each.get("effect") == "NoExecute"]
    assert {each["tolerationSeconds"] for each in lost} == {30}
    if not job["spec"]["suspend"]:
        pods = control_plane.pods.wait_for(restricted, job["metadata"]["name"], job["spec"]["completions"])
        assert len(pods) == job["spec"]["completions"]


def test_pods_have_the_names_that_the_launch_gives_them(control_plane: ControlPlane, restricted: str) -> None:
    *_, job = created(control_plane, restricted, FOLDER / "t4-two-workers-spot.yaml")
    control_plane.pods.wait_for(restricted, "flowers-1", 2)
    pods = control_plane.rest.get(f"/api/v1/namespaces/{restricted}/pods")["items"]
    (variable,) = [
        each["value"]
        for each in job["spec"]["template"]["spec"]["containers"][0]["env"]
        if each["name"] == "MPTRAINING_HOSTS"
    ]
    found = {f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}.{restricted}.svc:2222" for pod in pods}
    assert found == set(variable.split(","))


@pytest.mark.parametrize(("end", "reason"), [("exit", "MaxFailedIndexesExceeded"), ("disrupted", "PodFailurePolicy")])
def test_the_first_failure_ends_the_gang_and_nothing_is_replaced(
    control_plane: ControlPlane, restricted: str, end: str, reason: str
) -> None:
    ends = {"exit": Exit(code=1, message="the last words"), "disrupted": Disrupted()}
    path = f"/apis/batch/v1/namespaces/{restricted}/jobs/flowers-1"
    control_plane.nodes.create(f"node-of-{restricted}", labels={}, capacity={})

    def failures() -> list[dict[str, Any]]:
        conditions = control_plane.rest.get(path)["status"].get("conditions", ())
        return [condition for condition in conditions if condition["type"] == "Failed"]

    with control_plane.kubelet(lambda pod: ends[end] if pod.index == 1 else Run(), namespace=restricted):
        created(control_plane, restricted, FOLDER / "cpu-three-workers.yaml")
        wait_until(lambda: bool(failures()), "flowers-1 has failed")
        status = control_plane.rest.get(path)["status"]
    assert [failure["reason"] for failure in failures()] == [reason]
    assert status.get("active", 0) == 0
    pods = control_plane.pods.of_job(restricted, "flowers-1")
    assert len({pod.index for pod in pods}) == len(pods), "no index had a second pod"
    assert [pod.phase for pod in pods if pod.index == 1] == ["Failed"]
