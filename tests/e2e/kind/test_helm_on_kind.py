"""The chart's life cycle: installed over install.yaml, upgraded while a job trains, uninstalled, installed again.

`charts/mptraining-0.0.9.tgz` is frozen: an early state of the chart. Its image is this checkout's operator under an
older name, since no older release was ever published. The CustomResourceDefinition is this checkout's without a field:
an operator is never newer than the conditions that its resource admits.
"""

from __future__ import annotations

import copy
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.images import VERSION, engine_of_cluster
from hack.cluster.installation import SYSTEM
from hack.cluster.kubectl import KUBECONFIG
from hack.cluster.nodes import NODES
from tests.testbed.binaries import binary
from tests.testbed.kubernetes.chart import CHART, RELEASE

OLD_CHART = Path(__file__).parent / "charts" / "mptraining-0.0.9.tgz"
OLD = "0.0.9"
ROOT = Path(__file__).parents[3]
# The nodes have the images.
VALUES = ["--set", "settings.cpuFallback=true,commonLabels.test=helm,global.imageRegistry=docker.io"]
# Trains until the test creates the file.
SCRIPT = """
import os, time
import keras
import numpy as np

class UntilTold(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.5)
        self.model.stop_training = os.path.exists("/tmp/enough")

x = np.random.default_rng(0).normal(size=(256, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(x, x.sum(axis=1), epochs=100_000, verbose=0, callbacks=[UntilTold()])
"""


def helm(*arguments: str) -> str:
    command = [str(binary("helm")), f"--kubeconfig={KUBECONFIG}", f"--namespace={SYSTEM}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def definition(kind: Any) -> dict[str, Any]:
    """Return the spec of the installed CustomResourceDefinition, without the API server's own fields."""
    found = json.loads(kind.kubectl("get", "crd", "mptrainingjobs.mptraining.dev", "-o", "json"))
    schema: dict[str, Any] = found["spec"]["versions"][0]["schema"]
    return schema


def older(resource: dict[str, Any]) -> dict[str, Any]:
    """Return the CustomResourceDefinition of the older release: without a field of the status."""
    status = resource["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    del status["progress"]["properties"]["lossScale"]
    metadata = resource["metadata"]
    metadata.setdefault("labels", {})["app.kubernetes.io/managed-by"] = "Helm"
    owner = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": SYSTEM}
    metadata.setdefault("annotations", {}).update(owner)
    return resource


def pods(kind: Any, job: str) -> set[str]:
    """Return the uids of a job's pods."""
    return {each["metadata"]["uid"] for each in kind.get("pods", "-l", f"mptraining.dev/job={job}")["items"]}


def grants(kind: Any, role: str, verb: str) -> bool:
    """Report whether the ClusterRole allows that verb on jobs."""
    rules = json.loads(kind.kubectl("get", "clusterrole", role, "-o", "json"))["rules"]
    return any("mptrainingjobs" in rule.get("resources", ()) and verb in rule["verbs"] for rule in rules)


def operator_image(kind: Any) -> str:
    found = kind.kubectl("get", "deploy/mptraining-operator", "-n", SYSTEM, "-o", "json")
    return str(json.loads(found)["spec"]["template"]["spec"]["containers"][0]["image"])


@pytest.fixture
def old_image(kind: Any) -> None:
    engine = engine_of_cluster()
    name = "docker.io/mptraining/{}:{}"
    for node in NODES:
        for target in ("operator",):
            tagged = ("tag", "--force", name.format(target, VERSION), name.format(target, OLD))
            engine("exec", node, "ctr", "--namespace", "k8s.io", "images", *tagged)


def test_installed_upgraded_uninstalled_and_installed_again_while_a_job_trains(kind: Any, old_image: None) -> None:
    helm("uninstall", RELEASE, "--ignore-not-found", "--wait")
    # The objects that `kubectl apply -f install.yaml` created are adopted, including the resource with its jobs.
    trainer = ["--set", f"trainer.tag={VERSION}"]
    resource = yaml.safe_load((ROOT / "charts/mptraining/files/crd.yaml").read_text())
    current = copy.deepcopy(resource["spec"]["versions"][0]["schema"])
    kind.apply(older(resource))
    old = ["--set", "crds.install=false", *trainer]
    helm("install", RELEASE, str(OLD_CHART), "--take-ownership", "--wait", "--timeout=10m", *VALUES, *old)
    assert operator_image(kind).endswith(f":{OLD}")
    assert definition(kind) != current

    kind.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "told"}, "data": {"train.py": SCRIPT}},
    )
    kind.job(
        "upgraded",
        accelerator={"type": "nvidia-tesla-t4"},
        program={"script": {"path": "train.py"}},
        source={"configMap": {"name": "told"}},
        # Without a run folder worker 0 would wait until its model was fetched.
        output={"uri": "/kept/run"},
        podTemplate={
            "volumes": [{"name": "kept", "emptyDir": {}}],
            "volumeMounts": [{"name": "kept", "mountPath": "/kept"}],
        },
    )
    kind.until("upgraded", lambda status: (status.get("progress") or {}).get("epoch", 0) >= 1)
    before = pods(kind, "upgraded")
    assert len(before) == 1

    # The older chart left what it did not know to install.yaml.
    helm("upgrade", RELEASE, str(CHART), "--take-ownership", "--wait", "--timeout=10m", *VALUES)
    assert operator_image(kind).endswith(f":{VERSION}")
    assert definition(kind) == current
    assert pods(kind, "upgraded") == before
    for role in ("view", "edit", "admin"):
        # Kubernetes' own roles aggregate the chart's, after a moment.
        verbs = {"view": "get", "edit": "create", "admin": "delete"}[role]
        deadline = time.monotonic() + 120
        while not grants(kind, role, verbs):
            assert time.monotonic() < deadline, role
            time.sleep(0.5)
    said = helm("test", RELEASE)
    assert "Phase:          Succeeded" in said

    helm("uninstall", RELEASE, "--wait")
    assert kind.status("upgraded")["phase"] == "Running"
    assert pods(kind, "upgraded") == before
    # Users may still create jobs; no operator starts them.
    kind.job(
        "later",
        accelerator={"type": "cpu"},
        program={"script": {"path": "train.py"}},
        source={"configMap": {"name": "told"}},
        runPolicy={"suspend": True},
    )
    # It ends while no operator runs.
    (pod,) = kind.get("pods", "-l", "mptraining.dev/job=upgraded")["items"]
    kind.kubectl("exec", "-n", kind.namespace, pod["metadata"]["name"], "-c", "trainer", "--", "touch", "/tmp/enough")

    helm("install", RELEASE, str(CHART), "--wait", "--timeout=10m", *VALUES)
    status = kind.finished("upgraded")
    assert [each["outcome"] for each in status["attempts"]] == ["Succeeded"]
    assert (status["applicationFailures"], status["infrastructureRestarts"]) == (0, 0)
    assert pods(kind, "upgraded") == before
    kind.until("later", lambda status: status.get("phase") == "Suspended")
