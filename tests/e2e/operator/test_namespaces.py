"""An operator of three namespaces on a real API server: one is forbidden, one is deleted while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.testbed import ControlPlane, Exit
from tests.testbed.kubernetes.installation import SYSTEM
from tests.testbed.kubernetes.operator_namespace import JOBS, OperatorNamespace, document, eventually
from tests.testbed.kubernetes.rest import Refused

ACCOUNT = "in-some-namespaces"
ROLES = "/apis/rbac.authorization.k8s.io/v1"


def allow(control_plane: ControlPlane, namespace: str) -> None:
    """Bind the rights that jobs need to the operator's account in the namespace, as the chart does."""
    binding = {
        "metadata": {"name": ACCOUNT},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "mptraining-operator-jobs",
        },
        "subjects": [{"kind": "ServiceAccount", "namespace": SYSTEM, "name": ACCOUNT}],
    }
    control_plane.rest.post(f"{ROLES}/namespaces/{namespace}/rolebindings", binding)


def starts(control_plane: ControlPlane, namespace: str, name: str) -> None:
    """Create a job and wait until the operator has created its Indexed Job."""
    control_plane.rest.post(JOBS.format(namespace), document(name))

    def made() -> bool:
        try:
            control_plane.rest.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}-1")
        except Refused:
            return False
        return True

    eventually(made, bool, what=f"{name} in {namespace}")


def delete_namespace(control_plane: ControlPlane, name: str) -> None:
    control_plane.rest.delete(f"/api/v1/namespaces/{name}")

    def exists() -> bool:
        try:
            control_plane.rest.get(f"/api/v1/namespaces/{name}")
        except Refused as refused:
            return refused.code != 404
        return True

    eventually(exists, lambda there: not there, what=f"the deletion of {name}")


def test_the_others_are_served_and_each_is_served_when_it_is_back(
    installed: ControlPlane, new_namespace: Callable[..., OperatorNamespace]
) -> None:
    ns = new_namespace(installed, "some-served").with_kubelet()
    forbidden, gone = installed.namespace("some-forbidden"), installed.namespace("some-gone")
    lease: list[dict[str, Any]] = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
    ]
    installed.service_account(SYSTEM, ACCOUNT, rules=lease)
    for namespace in (ns.namespace, gone):
        allow(installed, namespace)
    settings = {"namespaces": [gone, forbidden, ns.namespace], "progress": {"enabled": False}}
    try:
        first = ns.operator(account=ACCOUNT, **settings)
        ns.create("first", lambda pod: Exit(0))
        ns.phase("first", "Succeeded")
        starts(installed, gone, "doomed")
        assert f"namespace {forbidden} is not served until it can be listed again" in first.log
        assert 'is forbidden: User "system:serviceaccount:mptraining-system:in-some-namespaces"' in first.log
        delete_namespace(installed, gone)
        ns.create("after-the-deletion", lambda pod: Exit(0))
        ns.phase("after-the-deletion", "Succeeded")
        # A new leader lists everything before it reconciles.
        first.stop()
        second = ns.operator(account=ACCOUNT, **settings)
        ns.create("second", lambda pod: Exit(0))
        ns.phase("second", "Succeeded")
        allow(installed, forbidden)
        starts(installed, forbidden, "granted")
        installed.namespace(gone)
        allow(installed, gone)
        starts(installed, gone, "recreated")
        for name in (forbidden, gone):
            assert second.log.count(f"namespace {name} is not served") <= 2, "jobs and sweeps, once each"
            # Once its sweeps can be listed as well.
            eventually(lambda: second.log, lambda log, name=name: f"namespace {name} is served" in log, what=name)
        assert second.server.exit_code is None
    finally:
        ns.close()
    for operator in ns.operators:
        assert "Traceback" not in operator.log, operator.log[-3000:]
