"""Objects that a job has once: owned by it, selected by its labels, closed to other pods."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.launch import launch
from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.resolved_job import ResolvedJob
from mptraining_api.spec import MPTrainingJob
from mptraining_operator.resources import names
from mptraining_operator.resources.job_objects import Owner, config_map, network_policy, service

OWNER = Owner(namespace="team-a", name="flowers", uid="uid-1", created="2026-11-23T10:00:00Z")


def resolved(**spec: Any) -> ResolvedJob:
    document = {
        "accelerator": {"type": "cpu"},
        "program": {"application": {"name": "cnn", "classes": 2}},
        "data": {"train": ["gs://bucket/train"]},
        **spec,
    }
    return resolve(MPTrainingJob.parse({"metadata": {"name": "flowers"}, "spec": document}), ClusterSettings())


@pytest.mark.parametrize("child", [config_map(OWNER, resolved()), service(OWNER), network_policy(OWNER)])
def test_a_child_goes_with_its_owner(child: dict[str, Any]) -> None:
    (reference,) = child["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["name"], reference["uid"]) == ("MPTrainingJob", "flowers", "uid-1")
    assert reference["controller"] is True
    assert reference["blockOwnerDeletion"] is True
    assert child["metadata"]["namespace"] == "team-a"
    assert names.job_labels("flowers", "uid-1").items() <= child["metadata"]["labels"].items()


def test_the_frozen_job_is_the_one_that_is_launched() -> None:
    job = resolved(nodes=2)
    child = config_map(OWNER, job)
    launched = launch(job, hosts=names.hosts("flowers", "team-a", 1, 2), job_path="anywhere", attempt=1)
    assert child["immutable"] is True
    assert child["data"] == {"job.json": launched.job_file}
    assert ResolvedJob.read(child["data"]["job.json"]) == job


def test_workers_are_found_before_they_are_ready_and_never_a_namesake_s() -> None:
    spec = service(OWNER)["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    # A job that was deleted and created again may have pods of both for a while.
    assert spec["selector"][names.JOB_UID] == "uid-1"


def test_only_the_job_s_own_pods_reach_them() -> None:
    spec = network_policy(OWNER)["spec"]
    own = {"podSelector": {"matchLabels": names.job_labels("flowers", "uid-1")}}
    assert spec == {**own, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}


def test_what_the_selectors_ask_for_is_on_the_pods() -> None:
    assert service(OWNER)["spec"]["selector"].items() <= names.attempt_labels("flowers", "uid-1", 3).items()
