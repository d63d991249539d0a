"""The PodGroups of schedulers of gangs, against the CustomResourceDefinitions of their Go modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mptraining_operator.jobs.resources.job_objects import Owner
from mptraining_operator.jobs.resources.pod_groups import COSCHEDULING, VOLCANO, PodGroupApi, pod_group
from tests.left_out import leave_out
from tests.testbed import ControlPlane, Refused

# `make servers` copies or makes them.
CRDS = Path(__file__).parents[2] / "build" / "gang-crds"


@pytest.fixture(scope="module")
def schedulers(control_plane: ControlPlane) -> ControlPlane:
    if not CRDS.is_dir():
        leave_out("no build/gang-crds: run `make servers` (needs Go)")
    for file in sorted(CRDS.glob("*.yaml")):
        control_plane.apply_crd(file)
    return control_plane


def group(api: PodGroupApi, namespace: str) -> dict[str, Any]:
    owner = Owner(namespace, "flowers", "8d1c0a52-5d0c-4d8e-9f0e-2f6c1b7e4a11", "2026-11-23T10:00:00Z")
    uid = "3c4a36d5-92a5-4f4e-8f5d-0c1c9d7a1b22"
    return pod_group(owner, api, "flowers-1", uid, 1, workers=4, queue="research", priority="high")


@pytest.mark.parametrize("api", [COSCHEDULING, VOLCANO], ids=lambda api: api.gang)
def test_the_api_server_takes_every_field(schedulers: ControlPlane, namespace: str, api: PodGroupApi) -> None:
    path = f"/apis/{api.api_version}/namespaces/{namespace}/{api.plural}"
    strict = {"fieldValidation": "Strict"}
    body = group(api, namespace)
    stored = schedulers.rest.post(path, body, strict)
    assert {key: stored["spec"][key] for key in body["spec"]} == body["spec"]
    misspelled = {**body, "metadata": {**body["metadata"], "name": "other"}, "spec": {"minMembers": 4}}
    with pytest.raises(Refused, match="unknown field"):
        schedulers.rest.post(path, misspelled, strict)
