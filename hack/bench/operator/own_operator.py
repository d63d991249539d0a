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
from tests.testbed.kubernetes.operator_namespace import document
from tests.testbed.kubernetes.rest import Object
from tests.testbed.processes import free_ports

SYSTEM = "mptraining-system"
ACCOUNT = "operator"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
EVERYTHING = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]


def own_job(name: str, workers: int) -> Object:
    """Return an MPTrainingJob of so many workers."""
    data = {"train": ["gs://bench/train-*.tfrecord"]}
    return document(name, workers=workers, data=data, output={"uri": f"gs://bench/{name}"}, training=None)


_GENERATED = ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name")
# The spec of the Job that the operator created for its first job in this process.
_made: Object = {}


def remember(job: Object) -> None:
    """Keep the operator's Job, without the API server's own fields."""
    spec = copy.deepcopy(job["spec"])
    del spec["selector"]
    for label in _GENERATED:
        spec["template"]["metadata"]["labels"].pop(label, None)
    _made.update(spec)


def by_hand(name: str, workers: int) -> Object:
    """Return the Job of an attempt, which the operator must have created once for so many workers."""
    assert _made["completions"] == workers
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": _made}


@contextmanager
def running_own_operator(control_plane: ControlPlane) -> Iterator[Server]:
    """Start the operator; it may still wait for its lease."""
    control_plane.namespace(SYSTEM)
    token = control_plane.service_account(SYSTEM, ACCOUNT, rules=EVERYTHING, cluster_wide=True)
    kubeconfig = control_plane.kubeconfig("operator", token, namespace=SYSTEM)
    health, progress = free_ports(2)
    settings = control_plane.folder / "operator.yaml"
    runtimes = {"default": {"images": {"cpu": "mptraining/trainer:bench"}}}
    chosen = {"runtimes": runtimes, "healthPort": health, "progress": {"port": progress}}
    settings.write_text(yaml.safe_dump(chosen), encoding="utf-8")
    with Server(
        [sys.executable, "-m", "mptraining_operator", "run", "--settings", str(settings)],
        log=control_plane.logs / "operator.log",
        environment={"KUBECONFIG": str(kubeconfig), "POD_NAMESPACE": SYSTEM, "POD_NAME": "operator-0"},
    ) as server:
        yield server
