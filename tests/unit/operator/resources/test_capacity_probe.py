"""The probe of an elastic job: it needs what a worker needs, and is no worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mptraining_api.resolve.resolve import resolve
from mptraining_api.resolve.runtime_settings import Runtime
from mptraining_operator.jobs.resources.capacity_probe import capacity_probe
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.jobs.resources.queue_job import QUEUE, Admitted, queue_placement
from tests.unit.operator.resources.test_indexed_job import CLUSTER, OWNER, SETTINGS, parsed

SPEC: dict[str, Any] = {
    "accelerator": {"type": "l4", "provisioning": "Spot"},
    "elastic": {"min": 2, "max": 8},
    "training": {"batchSize": {"global": 64}},
}
TEMPLATE: dict[str, Any] = {
    "resources": {"requests": {"cpu": "7", "memory": "30Gi"}},
    "nodeSelector": {"zone": "a"},
    "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}, {"name": "scratch", "emptyDir": {}}],
    "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
}


def built(**spec: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the probe and the Job of an attempt."""
    job = parsed(**{**SPEC, **spec})
    resolved = resolve(job, CLUSTER)
    probe = capacity_probe(OWNER, resolved, machine=0, pods=6, settings=SETTINGS)
    return probe, indexed_job(OWNER, resolved, attempt=1, settings=SETTINGS, workers=2)


@pytest.mark.parametrize("template", [{}, TEMPLATE], ids=["plain", "template"])
def test_its_pods_are_placed_as_workers_are(template: dict[str, Any]) -> None:
    probe, attempt = built(podTemplate=template)
    pod, worker = (each["spec"]["template"]["spec"] for each in (probe, attempt))
    for field in ("nodeSelector", "tolerations", "securityContext", "schedulerName", "priorityClassName"):
        assert pod.get(field) == worker.get(field), field
    (container,), (trainer,) = pod["containers"], worker["containers"]
    for field in ("image", "resources", "securityContext"):
        assert container[field] == trainer[field], field
    assert (probe["spec"]["parallelism"], probe["spec"]["completions"]) == (6, 6)


def test_it_does_nothing_and_holds_nothing_of_the_job() -> None:
    probe, attempt = built(podTemplate=TEMPLATE)
    pod = probe["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][1:] == ["-c", "import signal; signal.pause()"]
    assert container["command"][0] == attempt["spec"]["template"]["spec"]["containers"][0]["command"][0]
    assert not {"env", "envFrom", "volumeMounts", "ports"} & container.keys()
    assert "initContainers" not in pod
    assert pod["automountServiceAccountToken"] is False
    assert pod["terminationGracePeriodSeconds"] == 0
    # A claim may bind pods to a zone; nothing of it is mounted.
    assert pod["volumes"] == [TEMPLATE["volumes"][0]]


def test_no_attempt_selects_its_pods() -> None:
    probe, attempt = built()
    assert probe["metadata"]["name"] == "flowers-probe"
    assert probe["metadata"]["ownerReferences"] == attempt["metadata"]["ownerReferences"]
    labels = probe["spec"]["template"]["metadata"]["labels"]
    assert not any(name.startswith("mptraining.dev/") for name in labels)
    assert "suspend" not in probe["spec"], "no queue would resume it"


def test_it_needs_room_for_sidecars_too() -> None:
    sidecar = {"name": "proxy", "image": "p", "restartPolicy": "Always", "resources": {"requests": {"cpu": "8"}}}
    probe, _ = built(podTemplate={"initContainers": [sidecar, {"name": "once", "image": "o"}]})
    containers = probe["spec"]["template"]["spec"]["containers"]
    assert [container["name"] for container in containers] == ["probe", "probe-1"]
    assert containers[1]["resources"]["requests"]["cpu"] == "8"
    assert containers[1]["command"] == containers[0]["command"]


def test_it_needs_what_the_runtime_of_the_job_asks_for() -> None:
    runtime = Runtime.parse({"podTemplate": {"nodeSelector": {"pool": "x"}, "resources": {"requests": {"cpu": "9"}}}})
    job = parsed(**SPEC, runtime="team")
    frozen = resolve(job, replace(CLUSTER, runtimes={**(CLUSTER.runtimes or {}), "team": runtime}))
    probe = capacity_probe(OWNER, frozen, machine=0, pods=6, settings=SETTINGS)
    pod = probe["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["pool"] == "x"
    assert pod["containers"][0]["resources"]["requests"]["cpu"] == "9"


def test_an_admitted_job_has_a_probe_of_its_own_quota() -> None:
    job = parsed(**SPEC, scheduling={"queueName": "gpus"})
    placement = queue_placement({"spec": {"nodeSelector": {"pool": "east"}}})
    admitted = Admitted("flowers-queue", "place", placement)
    resolved = resolve(job, CLUSTER)
    probe = capacity_probe(OWNER, resolved, machine=0, pods=2, settings=SETTINGS, admitted=admitted)
    assert "suspend" not in probe["spec"]
    assert QUEUE not in probe["metadata"]["labels"]
    assert probe["spec"]["template"]["spec"]["nodeSelector"]["pool"] == "east"
    controllers = [each["name"] for each in probe["metadata"]["ownerReferences"] if each["controller"]]
    assert controllers == ["flowers-queue"]
