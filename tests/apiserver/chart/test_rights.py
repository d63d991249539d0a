"""The rights of the operator, of users and of scrapers of metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.apiserver.chart.rendered import objects, rendered


def test_the_rights_hold_in_the_whole_cluster_or_in_some_namespaces_alone() -> None:
    everywhere = objects()
    assert ("ClusterRoleBinding", "mptraining-operator-jobs") in everywhere
    some = rendered(json.dumps({"settings": {"namespaces": ["a", "b"]}}), False)
    bound = [
        (each["kind"], each["metadata"].get("namespace"), each["roleRef"]["name"])
        for each in some
        if each["kind"].endswith("Binding") and each.get("subjects")
    ]
    assert sorted(bound, key=str) == [
        ("ClusterRoleBinding", None, "mptraining-operator"),
        ("RoleBinding", "a", "mptraining-operator-jobs"),
        ("RoleBinding", "b", "mptraining-operator-jobs"),
        ("RoleBinding", "mptraining-system", "mptraining-operator"),
        # What all users may read, and the operator with them.
        ("RoleBinding", "mptraining-system", "mptraining-runtimes"),
    ]
    rules = {each["metadata"]["name"]: each["rules"] for each in some if each["kind"] == "ClusterRole"}
    granted = {
        (group, resource)
        for rule in rules["mptraining-operator"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert granted == {
        ("authentication.k8s.io", "tokenreviews"),
        ("", "nodes"),
    }


# What the operator asks the API server for: a new call adds its right, and no other.
CALLS = {
    "mptrainingjobs": "get list watch create patch delete",
    "mptrainingjobs/status": "patch",
    "mptrainingsweeps": "get list watch delete",
    "mptrainingsweeps/status": "patch",
    # The API server's own check of blockOwnerDeletion.
    "mptrainingsweeps/finalizers": "update",
    "mptrainingjobs/finalizers": "update",
    "jobs": "get list watch create delete",
    "configmaps": "get create",
    "services": "get create update",
    "networkpolicies": "get create update",
    "pods": "get list watch delete",
    "events": "list create patch",
    "localqueues": "get",
    # Of the Job that holds a job's place in its queue.
    "jobs/status": "patch",
    "tokenreviews": "create",
    "nodes": "get list",
    "leases": "get create update",
    "secrets": "get create",
}


@pytest.mark.parametrize("namespaces", [[], ["a", "b"]])
@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({}, {}),
        ({"deviceClasses": {"t4": "t4.example.com"}}, {"resourceclaimtemplates": "get create"}),
        ({"gangSchedulers": {"volcano": "volcano"}}, {"podgroups": "get create"}),
        ({"progress": {"enabled": False}}, {"tokenreviews": "", "secrets": ""}),
        ({"nodeLabels": "GKE", "migStrategy": "Mixed"}, {"nodes": "get"}),
    ],
)
def test_the_operator_has_the_rights_for_its_calls_and_no_others(
    namespaces: list[str], settings: dict[str, Any], changed: dict[str, str]
) -> None:
    granted: dict[str, set[str]] = {}
    chosen = {"namespaces": namespaces, **settings}
    for (kind, name), each in objects({"settings": chosen}).items():
        if kind not in ("Role", "ClusterRole") or name.endswith(("-edit", "-view")):
            continue
        for rule in each["rules"]:
            for resource in rule["resources"]:
                granted.setdefault(resource, set()).update(rule["verbs"])
            if {"secrets", "leases"} & set(rule["resources"]):
                assert kind == "Role"
                assert rule["verbs"] == ["create"] or rule["resourceNames"]
    assert granted == {resource: set(verbs.split()) for resource, verbs in (CALLS | changed).items() if verbs}


def test_users_reach_jobs_by_the_roles_they_have() -> None:
    roles = objects()
    labels = {name: roles["ClusterRole", name]["metadata"]["labels"] for name in ("mptraining-edit", "mptraining-view")}
    told = {
        name: sorted(key.rpartition("/")[2] for key in found if "aggregate" in key) for name, found in labels.items()
    }
    assert told == {
        "mptraining-edit": ["aggregate-to-admin", "aggregate-to-edit"],
        "mptraining-view": ["aggregate-to-view"],
    }
    assert set(roles["ClusterRole", "mptraining-view"]["rules"][0]["verbs"]) == {"get", "list", "watch"}
    assert ("ClusterRole", "mptraining-edit") not in objects({"rbac": {"userRoles": False}})
