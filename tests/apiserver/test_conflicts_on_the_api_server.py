"""The API server's codes, reasons and causes by which the operator judges a refused call; no message is read.

Kubernetes 1.33 to 1.36, by the control plane of the tests.
"""

from __future__ import annotations

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, CONFIG_MAPS, PODS, ApiProblem
from mptraining_operator.runtime.cluster import Cluster
from tests.testbed import ControlPlane
from tests.testbed.kubernetes.access import wait_until

POD = {"spec": {"containers": [{"name": "trainer", "image": "x"}], "terminationGracePeriodSeconds": 0}}


def test_a_namesake_is_a_matter_of_the_uid(control_plane: ControlPlane, namespace: str) -> None:
    operator = Cluster(control_plane.client())
    pod = {**POD, "metadata": {"name": "namesake"}}
    control_plane.rest.post(f"/api/v1/namespaces/{namespace}/pods", pod)
    with pytest.raises(ApiProblem) as deleted:
        operator.delete(PODS, namespace, "namesake", uid="another", propagation="Background")
    assert (deleted.value.status, deleted.value.reason) == (409, "Conflict")
    assert operator.get(PODS, namespace, "namesake")["metadata"]["uid"] != "another"


def test_an_invalid_object_has_a_cause_for_each_field(control_plane: ControlPlane, namespace: str) -> None:
    operator = Cluster(control_plane.client())
    template = {"spec": {"restartPolicy": "Always", "containers": [{"name": "Not A Name", "image": ""}]}}
    with pytest.raises(ApiProblem) as invalid:
        operator.create(BATCH_JOBS, namespace, {"metadata": {"name": "invalid"}, "spec": {"template": template}})
    assert (invalid.value.status, invalid.value.reason) == (422, "Invalid")
    assert len(invalid.value.causes) >= 3
    assert {cause[:10] for cause in invalid.value.causes} == {"FieldValue"}
    with pytest.raises(ApiProblem) as malformed:
        operator.create(BATCH_JOBS, namespace, {"metadata": {"name": "malformed"}, "spec": {"completions": "two"}})
    assert (malformed.value.status, malformed.value.reason) == (400, "BadRequest")


def test_a_namespace_that_is_being_deleted_is_the_cause(control_plane: ControlPlane) -> None:
    operator = Cluster(control_plane.client())
    control_plane.rest.post("/api/v1/namespaces", {"metadata": {"name": "leaving"}})
    kept = {"metadata": {"name": "kept", "finalizers": ["example.com/kept"]}}
    control_plane.rest.post("/api/v1/namespaces/leaving/configmaps", kept)
    control_plane.rest.delete("/api/v1/namespaces/leaving")
    try:
        with pytest.raises(ApiProblem) as refused:
            operator.create(CONFIG_MAPS, "leaving", {"metadata": {"name": "another"}})
        assert (refused.value.status, refused.value.causes) == (403, ("NamespaceTerminating",))
        assert refused.value.namespace_terminating
    finally:
        control_plane.rest.patch("/api/v1/namespaces/leaving/configmaps/kept", {"metadata": {"finalizers": None}})


def test_a_policy_of_the_administrator_gives_a_cause_without_a_reason(control_plane: ControlPlane) -> None:
    """A ValidatingAdmissionPolicy answers with 422 and Invalid as well."""
    operator = Cluster(control_plane.client())
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    bindings = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "object.metadata.name != 'unwanted'", "message": "not here"}],
    }
    control_plane.rest.post(policies, {"metadata": {"name": "tests"}, "spec": spec})
    binding = {"policyName": "tests", "validationActions": ["Deny"]}
    control_plane.rest.post(bindings, {"metadata": {"name": "tests"}, "spec": binding})

    def refusal() -> ApiProblem | None:
        try:
            operator.create(CONFIG_MAPS, "default", {"metadata": {"name": "unwanted"}})
        except ApiProblem as problem:
            return None if problem.reason == "AlreadyExists" else problem
        operator.delete(CONFIG_MAPS, "default", "unwanted", uid=_uid(operator), propagation="Background")
        return None

    try:
        wait_until(lambda: refusal() is not None, "the policy is in force", every=0.2)
        found = refusal()
        assert found is not None
        assert (found.status, found.reason) == (422, "Invalid")
        assert found.causes == ("",)
    finally:
        control_plane.rest.delete(f"{bindings}/tests")
        control_plane.rest.delete(f"{policies}/tests")


def _uid(operator: Cluster) -> str:
    return str(operator.get(CONFIG_MAPS, "default", "unwanted")["metadata"]["uid"])
