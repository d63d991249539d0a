"""The end of CI: the chart on real kubelets, a job to its end, and one whose worker is killed, which ends bit-equal."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mptraining
from hack.cluster.images import engine_of_cluster
from hack.cluster.installation import SYSTEM
from hack.cluster.kubectl import KUBECONFIG
from tests.testbed.binaries import binary
from tests.testbed.kind_cluster import Kind
from tests.testbed.kubernetes.chart import CHART, RELEASE

# The nodes have the images. With the setting of the fixture `kind`, whose tests may come later.
VALUES = ["--set", "global.imageRegistry=docker.io,settings.cpuFallback=true"]
SPEC: dict[str, Any] = {
    "accelerator": {"type": "cpu", "countPerWorker": 2},
    "program": {"application": {"name": "mlp", "classes": 10}},
    "data": {
        "train": ["/opt/mptraining/digits/train-*.tfrecord"],
        "validation": ["/opt/mptraining/digits/validation-*.tfrecord"],
    },
    "training": {"epochs": 100, "batchSize": {"global": 64}, "seed": 7},
    "checkpoint": {"everySteps": 100},
    "podTemplate": {
        "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}],
        "volumeMounts": [{"name": "runs", "mountPath": "/runs"}],
    },
}


def helm(*arguments: str) -> str:
    command = [str(binary("helm")), f"--kubeconfig={KUBECONFIG}", f"--namespace={SYSTEM}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kind]:
    """The cluster with the chart of this checkout and a namespace with a claim for run folders."""
    cluster = Kind()
    cluster.namespace = "smoke"
    options = ("--create-namespace", "--take-ownership", "--wait", "--timeout=5m", *VALUES)
    helm("upgrade", "--install", RELEASE, str(CHART), *options)
    cluster.kubectl("delete", "namespace", cluster.namespace, "--ignore-not-found", "--timeout=120s")
    cluster.kubectl("create", "namespace", cluster.namespace)
    storage = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    cluster.apply({**kind, "metadata": {"name": "runs"}, "spec": storage})
    yield cluster
    cluster.kubectl("delete", "namespace", cluster.namespace, "--wait=false")


def weights(job: str, folder: Path) -> dict[str, np.ndarray]:
    """Fetch the run folder from the claim; return the exported weights by name."""
    cluster = mptraining.Cluster(kubeconfig=str(KUBECONFIG), namespace="smoke")
    with np.load(mptraining.attach(job, cluster).fetch(folder / job) / "model" / "weights.npz") as stored:
        return dict(stored)


def test_a_killed_job_ends_with_the_weights_of_an_undisturbed_one(cluster: Kind, tmp_path: Path) -> None:
    for name in ("killed", "undisturbed"):
        cluster.job(name, **SPEC, output={"uri": f"/runs/{name}"})
    deadline = time.monotonic() + 300
    while '"kind":"Saved"' not in cluster.logs("killed").replace(" ", ""):
        assert time.monotonic() < deadline, cluster.logs("killed")[-3000:]
        time.sleep(0.5)
    (pod,) = cluster.get("pods", "-l", "mptraining.dev/job=killed")["items"]
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    kill = ("ctr", "-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", container)
    engine_of_cluster()("exec", pod["spec"]["nodeName"], *kill)
    assert [each["outcome"] for each in cluster.finished("undisturbed")["attempts"]] == ["Succeeded"]
    attempts = cluster.finished("killed")["attempts"]
    assert len(attempts) == 2
    assert attempts[-1]["outcome"] == "Succeeded"
    killed, undisturbed = weights("killed", tmp_path), weights("undisturbed", tmp_path)
    assert killed.keys() == undisturbed.keys()
    assert all(killed[name].tobytes() == undisturbed[name].tobytes() for name in killed)


def test_helm_test_finds_a_working_operator(cluster: Kind) -> None:
    assert "Phase:          Succeeded" in helm("test", RELEASE)
