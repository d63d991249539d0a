"""What docs/versioning.md says of versions without a conversion webhook, asked of the API server."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.crd import custom_resource_definition, sweep_definition
from tests.testbed import ControlPlane
from tests.testbed.kubernetes.access import apply_crd

GROUP = "versions.example.com"


def version(name: str, field: str, *, stored: bool) -> dict[str, Any]:
    spec = {"type": "object", "properties": {field: {"type": "integer"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    return {"name": name, "served": True, "storage": stored, "schema": schema}


def toys(*versions: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"toys.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "toys", "singular": "toy", "kind": "Toy", "listKind": "ToyList"},
            "versions": list(versions),
        },
    }


def test_a_field_that_a_version_lacks_is_lost_with_the_next_write(control_plane: ControlPlane, namespace: str) -> None:
    rest = control_plane.rest
    old, new = (f"/apis/{GROUP}/{name}/namespaces/{namespace}/toys" for name in ("v1alpha1", "v1beta1"))
    apply_crd(rest, toys(version("v1alpha1", "count", stored=True)))
    toy = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "Toy", "metadata": {"name": "a"}, "spec": {"count": 4}}
    rest.post(old, toy)
    apply_crd(rest, toys(version("v1beta1", "number", stored=False), version("v1alpha1", "count", stored=True)))
    assert rest.get(f"{new}/a")["spec"] == {}
    assert rest.get(f"{old}/a")["spec"] == {"count": 4}
    rest.patch(f"{new}/a", {"metadata": {"labels": {"written": "by-v1beta1"}}})
    assert rest.get(f"{old}/a")["spec"] == {}


@pytest.mark.parametrize("definition", [custom_resource_definition, sweep_definition])
def test_both_versions_pass_the_api_server_s_checks(control_plane: ControlPlane, definition: Any) -> None:
    made = definition(("v1beta1", "v1alpha1"), "v1beta1")
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{made['metadata']['name']}"
    accepted = control_plane.rest.patch(
        path,
        made,
        kind="application/apply-patch+yaml",
        query={"fieldManager": "testbed", "force": "true", "dryRun": "All"},
    )
    assert [each["name"] for each in accepted["spec"]["versions"]] == ["v1beta1", "v1alpha1"]
