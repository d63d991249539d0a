"""The API server takes every object of the chart as it is written, and no unknown field."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from tests.testbed import ControlPlane
from tests.testbed.binaries import binary
from tests.testbed.kubernetes.chart import CHART, EVERYTHING, REGISTRY, RELEASE, documents, render
from tests.testbed.kubernetes.operator_namespace import JOBS, document
from tests.testbed.kubernetes.rest import MERGE

# The Prometheus operator's kinds, which this API server does not serve.
OTHERS = ("ServiceMonitor", "PrometheusRule")


def apply(control_plane: ControlPlane, objects: list[dict[str, Any]]) -> None:
    """Apply the objects by a strict dry run."""
    # Others own fields of the operator that is installed.
    flags = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    control_plane.kubectl("apply", *flags, "-f", "-", text=yaml.safe_dump_all(objects))


@pytest.fixture(scope="module")
def namespaces(installed: ControlPlane) -> ControlPlane:
    known = {each["metadata"]["name"] for each in installed.rest.get("/api/v1/namespaces")["items"]}
    for name in {"mptraining-system", *EVERYTHING["settings"]["namespaces"]} - known:
        installed.namespace(name)
    return installed


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_the_api_server_takes_every_object(namespaces: ControlPlane, values: dict[str, Any]) -> None:
    objects = [document for document in documents(render(values, tests=True)) if document["kind"] not in OTHERS]
    assert len(objects) > 10
    apply(namespaces, objects)


def test_an_unknown_field_is_refused(namespaces: ControlPlane) -> None:
    deployment = next(document for document in documents(render()) if document["kind"] == "Deployment")
    deployment["spec"]["replica"] = 2
    with pytest.raises(RuntimeError, match=r"spec\.replica\b"):
        apply(namespaces, [deployment])


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        ({}, False),
        ({"resolved": [{"decision": "image", "value": "trainer:1", "reason": "given in the job"}]}, False),
        ({"completionTime": "2026-01-01T00:00:00Z"}, False),
        (None, True),
    ],
    ids=["not started", "started", "ended", "started by an older operator"],
)
def test_helm_refuses_while_an_older_operator_runs_jobs(
    namespaces: ControlPlane, status: dict[str, Any] | None, refused: bool
) -> None:
    path = f"{JOBS.format('default')}/older"
    namespaces.rest.post(JOBS.format("default"), document("older"))
    attempts = {"attempts": [{"number": 1}]} if status != {} else {}
    namespaces.rest.patch(f"{path}/status", {"status": {**(status or {}), **attempts}}, kind=MERGE)
    kubeconfig = namespaces.kubeconfig("administrator", namespaces.rest.token)
    options = [
        "--dry-run=server",
        "--take-ownership",
        f"--kubeconfig={kubeconfig}",
        f"--set=global.imageRegistry={REGISTRY}",
    ]
    try:
        done = subprocess.run(
            [str(binary("helm")), "upgrade", "--install", RELEASE, str(CHART), *options],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        namespaces.rest.delete(path)
    assert bool(done.returncode) == refused, done.stderr
    assert ("cannot continue the jobs that an older one runs: default/older (1 in all)" in done.stderr) == refused
