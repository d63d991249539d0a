"""Two jobs that really train during the chaos run, and the same two undisturbed, for comparison."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import yaml

from hack.cluster.images import VERSION
from hack.cluster.kubectl import kubectl
from tests.soak.chaos.calls import insisted, listed
from tests.testbed.kubernetes.rest import Rest
from tests.testbed.nodes.pods import RESTRICTED

NAMES = ("train-one", "train-two")
_ALONE = "{}-alone"
_READER = "chaos-reader"
_VOLUMES = {
    "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
    "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
}
# Two replicas in one process, and two processes; long enough to be hit, with a checkpoint every second or two.
_SHAPES: Mapping[str, dict[str, Any]] = {
    "train-one": {"accelerator": {"type": "cpu", "countPerNode": 2}, "nodes": 1},
    "train-two": {"accelerator": {"type": "cpu"}, "nodes": 2},
}
_EPOCHS: Mapping[str, int] = {"train-one": 120, "train-two": 60}
# The bits of the exported weights, without those of the archive.
_DIGEST = """
import hashlib, sys, numpy
for name in sys.argv[1:]:
    digest = hashlib.sha256()
    with numpy.load(f"/runs/{name}/model/weights.npz") as arrays:
        for key in sorted(arrays):
            array = numpy.ascontiguousarray(arrays[key])
            digest.update(f"{key} {array.dtype} {array.shape} ".encode() + array.tobytes())
    print(name, digest.hexdigest())
"""


class Cluster(Protocol):
    """The part of `kind_cluster.KindCluster` that is needed here."""

    rest: Rest
    namespace: str


def claim(namespace: str) -> dict[str, Any]:
    """The claim for the run folders of all of them."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "runs", "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def documents(*, alone: bool = False) -> list[dict[str, Any]]:
    """Return the jobs under faults or, `alone`, the undisturbed ones: the same but for name and run folder."""
    found = []
    for shape, spec in _SHAPES.items():
        name = _ALONE.format(shape) if alone else shape
        found.append(
            {
                "apiVersion": "mptraining.dev/v1alpha1",
                "kind": "MPTrainingJob",
                "metadata": {"name": name},
                "spec": {
                    **spec,
                    "program": {"application": {"name": "mlp", "classes": 10}},
                    "data": {"train": ["/opt/mptraining/digits/train-*.tfrecord"]},
                    "training": {"epochs": _EPOCHS[shape], "batchSize": {"global": 64}, "seed": 7},
                    "checkpoint": {"everySteps": 100},
                    "output": {"uri": f"/runs/{name}"},
                    "runPolicy": {"infrastructureRetries": 1000},
                    "podTemplate": _VOLUMES,
                },
            }
        )
    return found


def compared(cluster: Cluster, *, seconds: float) -> dict[str, tuple[str, str]]:
    """Run the undisturbed jobs to their end; return both digests by job, "" for a job without weights."""
    jobs = f"/apis/mptraining.dev/v1alpha1/namespaces/{cluster.namespace}/mptrainingjobs"
    for document in documents(alone=True):
        insisted(partial(cluster.rest.post, jobs, document))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        there = {each["metadata"]["name"]: each.get("status", {}) for each in listed(partial(cluster.rest.get, jobs))}
        if all(there[_ALONE.format(name)].get("phase") in ("Succeeded", "Failed") for name in NAMES):
            break
        time.sleep(0.5)
    found = _read(cluster, [name for each in NAMES for name in (each, _ALONE.format(each))])
    return {name: (found.get(name, ""), found.get(_ALONE.format(name), "")) for name in NAMES}


def _phase(pod: Any) -> str:
    return str((pod or {}).get("status", {}).get("phase", ""))


def _read(cluster: Cluster, names: list[str]) -> dict[str, str]:
    """Return the weights' digest by run folder, computed by a pod on the claim."""
    container = {
        "name": "read",
        "image": f"mptraining/trainer:{VERSION}",
        "command": ["python", "-c", _DIGEST, *names],
        "volumeMounts": _VOLUMES["volumeMounts"],
        "securityContext": RESTRICTED,
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _READER, "namespace": cluster.namespace},
        "spec": {"restartPolicy": "Never", "volumes": _VOLUMES["volumes"], "containers": [container]},
    }
    kubectl("apply", "-f", "-", text=yaml.safe_dump(pod))
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{_READER}"
    until = time.monotonic() + 120
    while _phase(insisted(partial(cluster.rest.get, path))) not in ("Succeeded", "Failed"):
        if time.monotonic() > until:
            break
        time.sleep(0.5)
    lines = kubectl("logs", "-n", cluster.namespace, _READER, check=False).splitlines()
    kubectl("delete", "pod", "-n", cluster.namespace, _READER, "--grace-period=1")
    return dict(line.split() for line in lines if len(line.split()) == 2)
