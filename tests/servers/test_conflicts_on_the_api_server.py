"""The API server's answers about an object that is gone and about a new one of its name; the operator detects deletions
by them.
"""

from __future__ import annotations

import pytest

from mptraining_api.kubernetes_api import BATCH_JOBS, PODS, STRATEGIC_MERGE_PATCH, ApiProblem
from mptraining_operator.cluster import Cluster
from tests.testbed import ControlPlane

pytestmark = pytest.mark.cluster

POD = {"spec": {"containers": [{"name": "trainer", "image": "x"}], "terminationGracePeriodSeconds": 0}}
STATUS = {"status": {"phase": "Failed"}}


def test_a_namesake_is_a_matter_of_the_uid(control_plane: ControlPlane, namespace: str) -> None:
    operator = Cluster(control_plane.client())
    pod = {**POD, "metadata": {"name": "namesake"}}
    control_plane.rest.post(f"/api/v1/namespaces/{namespace}/pods", pod)
    with pytest.raises(ApiProblem) as deleted:
        operator.delete(PODS, namespace, "namesake", uid="another", propagation="Background")
    assert (deleted.value.status, "the UID in the precondition" in deleted.value.message) == (409, True)
    body = {"metadata": {"uid": "another"}, **STATUS}
    with pytest.raises(ApiProblem) as failed:
        operator.patch(PODS, namespace, "namesake", body, subresource="status", content_type=STRATEGIC_MERGE_PATCH)
    assert (failed.value.status, "metadata.uid: Invalid value" in failed.value.message) == (422, True)


def test_none_is_not_found(control_plane: ControlPlane, namespace: str) -> None:
    operator = Cluster(control_plane.client())
    with pytest.raises(ApiProblem) as deleted:
        operator.delete(BATCH_JOBS, namespace, "none", uid="one", propagation="Foreground")
    body = {"metadata": {"uid": "one"}, **STATUS}
    with pytest.raises(ApiProblem) as failed:
        operator.patch(PODS, namespace, "none", body, subresource="status", content_type=STRATEGIC_MERGE_PATCH)
    assert (deleted.value.status, failed.value.status) == (404, 404)
