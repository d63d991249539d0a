"""This project's operator as a contender, started the way its image starts it; and its batch/v1 Jobs
created by hand.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from tests.testbed import ControlPlane, Server
from tests.testbed.kubernetes.rest import Object
from tests.testbed.processes import free_ports

SYSTEM = "mptraining-system"
ACCOUNT = "operator"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
_EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]


def own_job(name: str, workers: int) -> Object:
    """Return an MPTrainingJob of so many workers."""
    return {
        "apiVersion": "mptraining.dev/v1alpha1",
        "kind": "MPTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "accelerator": {"type": "cpu"},
            "nodes": workers,
            "program": {"application": {"name": "mlp", "classes": 10}},
            "data": {"train": ["gs://bench/train-*.tfrecord"]},
            "output": {"uri": f"gs://bench/{name}"},
        },
    }


# The Job that the operator created for its first job in this process; `by_hand` creates the same.
_made: Object = {}
_GENERATED = ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name")


def remember(job: Object) -> None:
    """Keep the operator's Job, without the API server's own fields."""
    spec = copy.deepcopy(job["spec"])
    del spec["selector"]
    for label in _GENERATED:
        spec["template"]["metadata"]["labels"].pop(label, None)
    _made["spec"] = spec


def by_hand(name: str, workers: int) -> Object:
    """Return the batch/v1 Job of an attempt: the operator's own if one has been seen, else as a person writes it."""
    if _made:
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": _made["spec"]}
    container = {"name": "trainer", "image": "none"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completionMode": "Indexed",
            "completions": workers,
            "parallelism": workers,
            "backoffLimitPerIndex": 0,
            "maxFailedIndexes": 0,
            "template": {"spec": {"restartPolicy": "Never", "subdomain": name, "containers": [container]}},
        },
    }


@contextmanager
def running_own_operator(control_plane: ControlPlane) -> Iterator[Server]:
    """Start the operator; it may still wait for its lease. May be used again on the same control plane."""
    kubeconfig = control_plane.folder / "operator.kubeconfig"
    if not kubeconfig.exists():
        control_plane.namespace(SYSTEM)
        token = control_plane.service_account(SYSTEM, ACCOUNT, rules=_EVERYTHING, cluster_wide=True)
        control_plane.kubeconfig("operator", token, namespace=SYSTEM)
    health, progress = free_ports(2)
    settings = control_plane.folder / "operator.yaml"
    document = {
        "trainerImage": "mptraining/trainer:bench",
        "healthPort": health,
        "progress": {"port": progress},
    }
    settings.write_text(yaml.safe_dump(document), encoding="utf-8")
    with Server(
        [sys.executable, "-m", "mptraining_operator", "run", "--settings", str(settings)],
        log=control_plane.logs / "operator.log",
        environment={"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": SYSTEM, "POD_NAME": "operator-0"},
    ) as server:
        yield server
