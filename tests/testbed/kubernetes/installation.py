"""The operator's namespace, account and rights on a control plane, as manifests/install.yaml creates them.

No node runs its Deployment: tests start the operator as processes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from tests.testbed.kubernetes.access import created
from tests.testbed.kubernetes.control_plane import ControlPlane

MANIFEST = Path(__file__).parents[3] / "manifests" / "install.yaml"
SYSTEM = "mptraining-system"
OPERATOR = "mptraining-operator"
_ROLES = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{SYSTEM}"


def install(control_plane: ControlPlane) -> None:
    """Create all of install.yaml but the CustomResourceDefinition, which exists: a change interrupts watches."""
    documents = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    rest = [document for document in documents if document and document["kind"] != "CustomResourceDefinition"]
    control_plane.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(rest))


def grant(control_plane: ControlPlane, name: str, rule: Mapping[str, Sequence[str]]) -> None:
    """Give the operator's account a right in all namespaces, as the chart does for some of its settings."""
    roles = "/apis/rbac.authorization.k8s.io/v1"
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "namespace": SYSTEM, "name": OPERATOR}],
    }
    role = {"metadata": {"name": name}, "rules": [{key: list(value) for key, value in rule.items()}]}
    created(control_plane.rest, f"{roles}/clusterroles", role)
    created(control_plane.rest, f"{roles}/clusterrolebindings", binding)


def grant_lease(control_plane: ControlPlane, name: str) -> None:
    """Allow the operator's account to hold a Lease of another name, as the chart does for `settings.lease.name`."""
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": [name]}
    role = {"metadata": {"name": f"lease-{name}"}, "rules": [{**rule, "verbs": ["get", "update"]}]}
    binding = {
        "metadata": {"name": f"lease-{name}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": f"lease-{name}"},
        "subjects": [{"kind": "ServiceAccount", "namespace": SYSTEM, "name": OPERATOR}],
    }
    for plural, body in (("roles", role), ("rolebindings", binding)):
        created(control_plane.rest, f"{_ROLES}/{plural}", body)
