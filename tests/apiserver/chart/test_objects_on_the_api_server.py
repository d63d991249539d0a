"""The API server takes every object of the chart as it is written, and no unknown field."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.testbed import ControlPlane
from tests.testbed.kubernetes.chart import EVERYTHING, documents, render

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
