"""Parts of the pods and their objects: affinity, volumes, Secrets, the frozen job and policies."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining_api.pods.fields import PodTemplate
from mptraining_api.resolved_job import Placement
from mptraining_operator.jobs.resources import names
from mptraining_operator.jobs.resources.affinity import affinity
from mptraining_operator.jobs.resources.environment import secret_sources
from mptraining_operator.jobs.resources.job_objects import Owner, config_map, network_policy
from mptraining_operator.jobs.resources.volumes import outlives_pod

REQUIRED, PREFERRED = (f"{word}DuringSchedulingIgnoredDuringExecution" for word in ("required", "preferred"))


def expression(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def placement(*terms: dict[str, Any], pack_by: tuple[str, ...] | None = None) -> Placement:
    return Placement(node_selector={}, resources={}, tolerations=(), node_affinity=terms or None, pack_by=pack_by)


def test_a_job_without_requirements_has_none() -> None:
    assert affinity(placement(), None, {}) == {}


def test_one_term_of_the_accelerator_and_one_of_the_job_hold_and_avoided_nodes_are_a_preference() -> None:
    gpu = [{"matchExpressions": [expression("gpu", name)]} for name in ("T4", "T4-16GB")]
    zones = [{"matchExpressions": [expression("zone", name)]} for name in ("a", "b")]
    preferred = [{"weight": 1, "preference": {"matchExpressions": [expression("disk", "fast")]}}]
    own = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": zones}, PREFERRED: preferred}}
    found = affinity(placement(*gpu), own, {}, avoided_nodes=("gpu-1", "gpu-2"))["nodeAffinity"]
    terms = [
        [(each["key"], *each["values"]) for each in term["matchExpressions"]]
        for term in found[REQUIRED]["nodeSelectorTerms"]
    ]
    assert terms == [[("gpu", gpu_name), ("zone", zone)] for gpu_name in ("T4", "T4-16GB") for zone in ("a", "b")]
    avoided = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["gpu-1", "gpu-2"]}
    assert found[PREFERRED] == [{"weight": 100, "preference": {"matchExpressions": [avoided]}}, *preferred]


def test_workers_near_one_another_are_a_preference_beside_the_job_s_own() -> None:
    apart = [{"topologyKey": "host", "namespaceSelector": {}, "labelSelector": {"matchLabels": {"app": "other"}}}]
    own = [{"weight": 7, "podAffinityTerm": {"topologyKey": "rack"}}]
    given = {"podAffinity": {PREFERRED: own}, "podAntiAffinity": {REQUIRED: apart}}
    found = affinity(placement(pack_by=("host", "block")), given, {"job": "a"})
    *near, last = found["podAffinity"][PREFERRED]
    assert [(each["weight"], each["podAffinityTerm"]["topologyKey"]) for each in near] == [(100, "host"), (50, "block")]
    assert (last, found["podAntiAffinity"]) == (own[0], {REQUIRED: apart})


TEMPLATE = PodTemplate.parse(
    {
        "volumes": [
            {"name": "claim", "persistentVolumeClaim": {"claimName": "runs"}},
            {"name": "bucket", "csi": {"driver": "gcsfuse.csi.storage.gke.io"}},
            {"name": "scratch", "emptyDir": {}},
        ],
        "volumeMounts": [
            {"name": "claim", "mountPath": "//runs/"},
            {"name": "scratch", "mountPath": "/runs/scratch"},
            {"name": "bucket", "mountPath": "/tmp/bucket"},
        ],
    }
)


@pytest.mark.parametrize(
    ("uri", "lasts"),
    [
        ("gs://bucket/runs", True),
        ("/runs/digits", True),
        ("//runs/digits", True),
        ("/runs/scratch/digits", False),
        ("/runs-of-others", False),
        ("runs/digits", False),
        # Below the images' working folder.
        ("bucket/runs", True),
    ],
)
def test_a_run_folder_outlives_its_pod_in_a_bucket_or_on_a_volume_that_does(uri: str, lasts: bool) -> None:
    assert outlives_pod(uri, TEMPLATE) is lasts
    assert outlives_pod(uri, PodTemplate()) is uri.startswith("gs://")


MOUNTS = [{"name": "data", "mountPath": "/data"}, {"name": "key", "mountPath": "/var/key", "readOnly": True}]


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ({"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"configMapKeyRef": {}}}]}, {}),
        (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
            {"MPTRAINING_SECRET_VARIABLES": "A"},
        ),
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, {"MPTRAINING_SECRET_VARIABLES": "*"}),
        ({"envFrom": [{"prefix": "AWS_", "secretRef": {"name": "s"}}]}, {"MPTRAINING_SECRET_VARIABLES": "AWS_*"}),
        ({"volumes": [{"name": "key", "configMap": {"name": "c"}}], "volumeMounts": MOUNTS}, {}),
        (
            {"volumes": [{"name": "key", "secret": {"secretName": "s"}}], "volumeMounts": MOUNTS},
            {"MPTRAINING_SECRET_PATHS": "/var/key"},
        ),
        (
            {
                "volumes": [{"name": "key", "projected": {"sources": [{"configMap": {}}, {"secret": {"name": "s"}}]}}],
                "volumeMounts": MOUNTS,
            },
            {"MPTRAINING_SECRET_PATHS": "/var/key"},
        ),
    ],
)
def test_what_comes_from_a_secret(template: dict[str, Any], found: dict[str, str]) -> None:
    assert secret_sources(PodTemplate.parse(template), {}) == found


def test_a_proxy_with_a_password_is_a_secret_too() -> None:
    proxies = {"HTTP_PROXY": "http://user:password@proxy:3128", "NO_PROXY": "localhost"}
    assert secret_sources(PodTemplate(), proxies) == {"MPTRAINING_SECRET_VARIABLES": "HTTP_PROXY"}


OWNER = Owner(namespace="team-a", name="flowers", uid="uid-1", created="2026-11-23T10:00:00Z")


def test_the_frozen_job_goes_with_its_owner() -> None:
    child = config_map(OWNER, "{}")
    assert (child["immutable"], child["data"]) == (True, {"job.json": "{}"})
    (reference,) = child["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["name"], reference["uid"]) == ("MPTrainingJob", "flowers", "uid-1")
    assert (reference["controller"], reference["blockOwnerDeletion"]) == (True, True)
    assert child["metadata"]["namespace"] == "team-a"
    assert names.job_labels("flowers", "uid-1").items() <= child["metadata"]["labels"].items()


def test_no_pod_reaches_a_worker_but_workers_of_its_namespace() -> None:
    workers = {"podSelector": {"matchExpressions": [{"key": "mptraining.dev/job", "operator": "Exists"}]}}
    expected = {**workers, "policyTypes": ["Ingress"], "ingress": [{"from": [workers]}]}
    assert network_policy("team-a")["spec"] == expected
