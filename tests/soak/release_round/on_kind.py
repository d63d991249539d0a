"""The release on a kind cluster whose nodes have no image of it: by Helm and by kubectl, a job each."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import yaml

from kind import registry
from kind.engine import Engine, podman
from kind.kubectl import KUBECONFIG, kubectl
from kind.nodes import NODES, WORKERS
from release.programs import program, run
from tests.soak.release_round.place import VERSION, Place

SYSTEM, NAMESPACE = "mptraining-system", "release-round"
_WITH = {"KUBECONFIG": str(KUBECONFIG)}


def install_both_ways(place: Place, examples: Path) -> None:
    """Install with Helm, train, uninstall; the same with `kubectl apply`. Raises Failed or AssertionError."""
    engine = podman()
    registry.connect(engine, place.registry_port)
    there = [node for node in NODES if "/mptraining/" in _images(engine, node)]
    assert not there, f"{', '.join(there)} have images already: make cluster-down cluster"
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")
    kubectl("create", "namespace", NAMESPACE)
    job = list(yaml.safe_load_all((examples / "digits.yaml").read_text(encoding="utf-8")))
    helm = (program("helm"), "install", "mptraining", f"oci://{place.registry}/mptraining/charts/mptraining")
    flags = ("--version", VERSION, "--plain-http", "--namespace", SYSTEM, "--create-namespace", "--wait")
    place.timed("kind: helm install, images pulled", *helm, *flags, environment=_WITH)
    place.timed("kind: helm test", program("helm"), "test", "mptraining", "--namespace", SYSTEM, environment=_WITH)
    _train(place, "kind: a job, its image pulled", job)
    _only_ours(place)
    run(program("helm"), "uninstall", "mptraining", "--namespace", SYSTEM, "--wait", environment=_WITH)
    kubectl("delete", "namespace", SYSTEM, "--timeout=120s")
    began = time.monotonic()
    kubectl("apply", "-f", str(place.files / "install.yaml"))
    kubectl("rollout", "status", "deployment/mptraining-operator", "-n", SYSTEM, "--timeout=200s")
    place.remember("kind: kubectl apply", "kubectl apply -f install.yaml", time.monotonic() - began)
    _train(place, "kind: a job again", job)
    _only_ours(place)
    assert all(f"{place.registry}/" in _images(engine, node) for node in WORKERS)


def _train(place: Place, what: str, documents: list[dict[str, Any]]) -> None:
    began = time.monotonic()
    text = yaml.safe_dump_all(documents)
    kubectl("apply", "-n", NAMESPACE, "-f", "-", text=text)
    kubectl("wait", "-n", NAMESPACE, "mptj/digits", "--for=condition=Succeeded", "--timeout=290s")
    place.remember(what, "kubectl apply -f digits.yaml", time.monotonic() - began)
    (job,) = json.loads(kubectl("get", "jobs.batch", "-n", NAMESPACE, "-o", "json"))["items"]
    image = job["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.startswith(f"{place.registry}/mptraining/trainer@sha256:"), image
    kubectl("delete", "-n", NAMESPACE, "-f", "-", "--timeout=120s", text=text)


def _only_ours(place: Place) -> None:
    """Every replica runs the image of the registry, by its digest."""
    pods = json.loads(
        kubectl("get", "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/name=mptraining-operator", "-o", "json")
    )
    found = {container["image"] for pod in pods["items"] for container in pod["spec"]["containers"]}
    assert found, "no replica"
    assert all(each.startswith(f"{place.registry}/mptraining/operator@sha256:") for each in found), found


def _images(engine: Engine, node: str) -> str:
    return engine("exec", node, "ctr", "--namespace", "k8s.io", "images", "list", "--quiet")
