"""Objects that a job or its namespace has once: which pods they select, and which pods reach them."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.launch import launch
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_operator.resources import names
from mptraining_operator.resources.job_objects import Owner, allow_policy, config_map, deny_policy, service

OWNER = Owner(namespace="team-a", name="flowers", uid="uid-1", created="2026-11-23T10:00:00Z")


def resolved(**spec: Any) -> ResolvedJob:
    document = {
        "accelerator": {"type": "cpu"},
        "program": {"application": {"name": "cnn", "classes": 2}},
        "data": {"train": ["gs://bucket/train"]},
        **spec,
    }
    return resolve(MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": document}), ClusterSettings())


def test_the_frozen_job_goes_with_its_owner() -> None:
    child = config_map(OWNER, resolved().to_json())
    (reference,) = child["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["name"], reference["uid"]) == ("MPTrainingJob", "flowers", "uid-1")
    assert reference["controller"] is True
    assert reference["blockOwnerDeletion"] is True
    assert child["metadata"]["namespace"] == "team-a"
    assert names.job_labels("flowers", "uid-1").items() <= child["metadata"]["labels"].items()


def test_the_frozen_job_is_the_one_that_is_launched() -> None:
    job = resolved(nodes=2)
    child = config_map(OWNER, job.to_json())
    launched = launch(job, hosts=names.hosts("flowers", "team-a", 1, 2), job_path="anywhere", attempt=1)
    assert child["immutable"] is True
    assert child["data"] == {"job.json": launched.job_file}
    assert ResolvedJob.read(child["data"]["job.json"]) == job


POLICY = allow_policy("team-a", "flowers", "uid-1")


@pytest.mark.parametrize("shared", [service("team-a"), deny_policy("team-a"), POLICY])
def test_the_garbage_collector_never_deletes_them_while_workers_run(shared: dict[str, Any]) -> None:
    """With an owner they would be deleted with the job, and its workers run until the end of their grace period."""
    assert "ownerReferences" not in shared["metadata"]
    assert shared["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "mptraining-operator"


def test_workers_are_found_before_they_are_ready() -> None:
    spec = service("team-a")["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    assert spec["selector"] == {"mptraining.dev/peers": "true"}


def test_no_pod_reaches_a_worker_but_the_job_s_own() -> None:
    denied = deny_policy("team-a")["spec"]
    assert denied["podSelector"] == {"matchExpressions": [{"key": "mptraining.dev/job", "operator": "Exists"}]}
    assert denied["policyTypes"] == ["Ingress"]
    assert "ingress" not in denied
    own = {"podSelector": {"matchLabels": names.job_labels("flowers", "uid-1")}}
    assert POLICY["spec"] == {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}


def test_no_job_s_policy_has_the_name_of_the_shared_one() -> None:
    assert not names.DENY_POLICY.endswith(names.network_policy("x").removeprefix("x"))
