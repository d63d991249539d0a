"""The ConfigMap of a frozen job and the names of policies; tests/golden/children has the other objects."""

from __future__ import annotations

from mptraining_operator.resources import names
from mptraining_operator.resources.job_objects import Owner, allow_policy, config_map, deny_policy

OWNER = Owner(namespace="team-a", name="flowers", uid="uid-1", created="2026-11-23T10:00:00Z")


def test_the_frozen_job_goes_with_its_owner() -> None:
    child = config_map(OWNER, "{}")
    assert (child["immutable"], child["data"]) == (True, {"job.json": "{}"})
    (reference,) = child["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["name"], reference["uid"]) == ("MPTrainingJob", "flowers", "uid-1")
    assert (reference["controller"], reference["blockOwnerDeletion"]) == (True, True)
    assert child["metadata"]["namespace"] == "team-a"
    assert names.job_labels("flowers", "uid-1").items() <= child["metadata"]["labels"].items()


def test_no_job_s_policy_has_the_name_of_the_shared_one() -> None:
    assert not names.DENY_POLICY.endswith(names.network_policy("x").removeprefix("x"))


def test_no_pod_reaches_a_worker_but_the_job_s_own() -> None:
    denied = deny_policy("team-a")["spec"]
    assert denied["podSelector"] == {"matchExpressions": [{"key": "mptraining.dev/job", "operator": "Exists"}]}
    assert (denied["policyTypes"], "ingress" in denied) == (["Ingress"], False)
    own = {"podSelector": {"matchLabels": names.job_labels("flowers", "uid-1")}}
    allowed = allow_policy("team-a", "flowers", "uid-1")["spec"]
    assert allowed == {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}
