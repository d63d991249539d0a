"""What values make of the operator: names, images, settings, replicas, and which values are refused."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from mptraining.job_file.runtimes_file import KnownRuntimes
from mptraining_api.resolve.runtime_settings import RuntimeImages
from mptraining_operator.settings import OperatorSettings
from tests.apiserver.chart.rendered import objects, pod, rendered, settings
from tests.testbed.kubernetes.chart import REGISTRY, Refused, documents, render

CRD = "mptrainingjobs.mptraining.dev"


def default(**fields: Any) -> dict[str, Any]:
    return {"runtimes": {"default": fields}}


def images(values: dict[str, Any]) -> RuntimeImages:
    return settings(values).runtimes["default"].images


def test_by_default_the_operator_reads_its_own_defaults_and_this_version_s_images() -> None:
    chosen = settings({})
    found = chosen.runtimes["default"].images.to_document()
    assert found == {
        kind: f"{REGISTRY}/mptraining/trainer:{version('mptraining')}{suffix}"
        for kind, suffix in (("cpu", ""), ("gpu", "-gpu"), ("tpu", "-tpu"))
    }
    assert chosen.model_copy(update={"runtimes": {}}) == OperatorSettings()
    (container,) = pod()["spec"]["containers"]
    assert container["image"] == found["cpu"].replace("trainer", "operator")


@pytest.mark.parametrize(
    ("values", "repository"),
    [
        ({"global": {}}, "mptraining/operator"),
        ({"global": {}, "image": {"registry": "own.example"}}, "mptraining/trainer"),
        ({"global": {}, "image": {"registry": "own.example"}, "settings": default(images={"cpu": "own/t:1"})},
         "mptraining/trainer"),
    ],
)  # fmt: skip
def test_no_image_comes_from_a_registry_that_nobody_named(values: dict[str, Any], repository: str) -> None:
    """Nodes would take it from Docker Hub, where the name is not this project's."""
    with pytest.raises(Refused, match=f"global.imageRegistry: expected the HOST/PATH .* {repository}"):
        render(values)


def test_images_come_from_one_registry_unless_something_nearer_is_named() -> None:
    values: dict[str, Any] = {
        "global": {"imageRegistry": "mirror.example/k8s/", "imagePullSecrets": [{"name": "pull"}]}
    }
    assert pod(values)["spec"]["containers"][0]["image"].startswith("mirror.example/k8s/mptraining/operator:")
    assert pod(values)["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert images(values).gpu.startswith("mirror.example/k8s/mptraining/trainer:")
    assert images(values).gpu.endswith("-gpu")
    nearer = {
        **values,
        "image": {"registry": "own.example", "digest": "sha256:" + "0" * 64},
        "trainer": {"tag": "9"},
        "settings": default(images={"tpu": "tpu.example/t:1"}),
    }
    assert pod(nearer)["spec"]["containers"][0]["image"] == "own.example/mptraining/operator@sha256:" + "0" * 64
    assert images(nearer).gpu == "mirror.example/k8s/mptraining/trainer:9-gpu"
    assert images(nearer).tpu == "tpu.example/t:1"


@pytest.mark.parametrize("crd", [CRD, "mptrainingsweeps.mptraining.dev"])
def test_the_resources_are_upgraded_with_the_chart_and_outlive_it(crd: str) -> None:
    found = objects()["CustomResourceDefinition", crd]
    assert found["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in objects({"crds": {"keep": False}})["CustomResourceDefinition", crd]["metadata"]
    assert ("CustomResourceDefinition", crd) not in objects({"crds": {"install": False}})


def test_names_follow_from_the_release_or_are_given() -> None:
    other = documents(render({"fullnameOverride": "trainer-op"}, release="two"))
    names = {(each["kind"], each["metadata"]["name"]) for each in other}
    assert ("Deployment", "trainer-op") in names
    assert ("ClusterRole", "trainer-op-jobs") in names
    assert ("ClusterRole", "two-edit") in names
    assert ("Deployment", "two-operator") in {
        (e["kind"], e["metadata"]["name"]) for e in documents(render(release="two"))
    }


def test_extra_labels_are_on_every_object_and_every_object_says_what_it_belongs_to() -> None:
    values = {
        "commonLabels": {"team": "platform"},
        "metrics": {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboard")},
    }
    for each in objects(values, tests=True).values():
        labels = each["metadata"]["labels"]
        assert labels["team"] == "platform", each["kind"]
        assert labels["app.kubernetes.io/instance"] == "mptraining"
    assert pod(values)["metadata"]["labels"]["team"] == "platform"
    selector = objects(values)["Deployment", "mptraining-operator"]["spec"]["selector"]["matchLabels"]
    assert "team" not in selector, "a selector can never be changed"


def test_replicas_are_spread_and_one_of_them_remains() -> None:
    spread = pod()["spec"]["topologySpreadConstraints"]
    assert [(each["topologyKey"], each["whenUnsatisfiable"]) for each in spread] == [
        ("kubernetes.io/hostname", "DoNotSchedule"),
        ("topology.kubernetes.io/zone", "ScheduleAnyway"),
    ]
    # A cordoned node must not keep a replica pending, nor a replica of the old version during an upgrade.
    assert (spread[0]["nodeTaintsPolicy"], spread[0]["matchLabelKeys"]) == ("Honor", ["pod-template-hash"])
    assert objects()["PodDisruptionBudget", "mptraining-operator"]["spec"]["minAvailable"] == 1
    # With a single one no node could ever be drained.
    assert ("PodDisruptionBudget", "mptraining-operator") not in objects({"replicas": 1})


def test_no_user_is_named_unless_the_values_do() -> None:
    """OpenShift's restricted-v2 assigns one from the namespace's range and refuses others."""
    security = pod()["spec"]["securityContext"]
    assert security == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    named = pod({"podSecurityContext": {"runAsUser": 2000}})["spec"]["securityContext"]
    assert named == {**security, "runAsUser": 2000}


def test_the_replicas_go_before_jobs_on_a_busy_node() -> None:
    """By a class of the administrator's: one of the chart's own would be usable by everybody."""
    assert not [name for kind, name in objects() if kind == "PriorityClass"]
    assert "priorityClassName" not in pod()["spec"]
    assert (
        pod({"priorityClassName": "system-cluster-critical"})["spec"]["priorityClassName"] == "system-cluster-critical"
    )
    requests = pod()["spec"]["containers"][0]["resources"]["requests"]
    assert (requests["cpu"], requests["memory"]) == ("250m", "256Mi")


def test_only_workers_and_readers_of_metrics_reach_the_replicas() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ingress = objects({"networkPolicy": {"metricsFrom": [peer]}})["NetworkPolicy", "mptraining-operator"]["spec"][
        "ingress"
    ]
    by_port = {rule["ports"][0]["port"]: rule["from"] for rule in ingress}
    assert by_port["health"] == [peer]
    workers, test = by_port["progress"]
    assert workers["podSelector"]["matchExpressions"] == [{"key": "mptraining.dev/job", "operator": "Exists"}]
    assert test["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == "mptraining-test"
    checked = objects(tests=True)["Pod", "mptraining-operator-test"]["metadata"]["labels"]
    assert test["podSelector"]["matchLabels"].items() <= checked.items()


def test_ports_and_names_of_the_settings_are_those_of_the_objects() -> None:
    chosen = {"healthPort": 9000, "progress": {"port": 9443, "service": "reports"}, "lease": {"name": "lead"}}
    found = objects({"settings": chosen})
    (container,) = pod({"settings": chosen})["spec"]["containers"]
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == {"health": 9000, "progress": 9443}
    # Pods report to the Service, on the port of the settings.
    assert found["Service", "reports"]["spec"]["ports"] == [
        {"name": "progress", "port": 9443, "targetPort": "progress"}
    ]
    named = [name for rule in found["Role", "mptraining-operator"]["rules"] for name in rule.get("resourceNames", ())]
    assert named == ["lead", "reports-progress"]
    quiet = objects({"settings": {"progress": {"enabled": False}}})
    assert ("Service", "mptraining-operator") not in quiet
    assert not any("secrets" in rule["resources"] for rule in quiet["Role", "mptraining-operator"]["rules"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replica": 3}, "replica"),
        ({"settings": {"healthPort": 0}}, "healthPort"),
        ({"settings": {"namespaces": ["a", "mptraining-system"]}}, "mptraining-system is the operator's own namespace"),
        ({"crds": None}, "crds"),
        # The selectors of Deployment, Services and NetworkPolicy go by them.
        ({"commonLabels": {"app.kubernetes.io/name": "a"}}, "app.kubernetes.io/name"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        render(values)


def test_what_kubernetes_takes_is_taken() -> None:
    resources = {"requests": {"cpu": 0.5, "memory": 268435456}, "limits": None}
    (container,) = pod({"resources": resources})["spec"]["containers"]
    assert container["resources"]["requests"] == {
        "cpu": 0.5,
        "memory": 268435456,
        "ephemeral-storage": "16Mi",
    }
    # Digits alone are the name of a namespace, and a number in YAML; and one that stands there twice is one.
    some = rendered(json.dumps({"settings": {"namespaces": ["1234", "1234"]}}), False)
    bound = [each["metadata"].get("namespace") for each in some if each["kind"] == "RoleBinding"]
    assert sorted(bound) == ["1234", "mptraining-system", "mptraining-system"]
    # null removes a default.
    assert ("ClusterRoleBinding", "mptraining-operator-jobs") in objects({"settings": {"namespaces": None}})
    assert objects({"settings": default(httpProxy="http://proxy.example:3128")})


def test_an_older_kubernetes_is_refused() -> None:
    with pytest.raises(Refused, match=r"requires kubeVersion: >=1\.33"):
        render(kubernetes="1.32.13")


RUNTIMES: dict[str, Any] = {
    "runtimes": {
        "default": {"limits": {"accelerators": ["t4"], "workersPerNamespace": 8}},
        "team-default": {
            "provisioning": "Spot",
            "podTemplate": {
                "resources": {"requests": {"cpu": 4, "memory": "8Gi"}},
                "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
            },
            "limits": {"workersPerJob": 2},
        },
    },
    "defaultRuntimes": {"vision": "team-default"},
}


def test_runtimes_are_the_operator_s_and_all_users_may_read_them_and_nothing_else() -> None:
    found = objects({"settings": RUNTIMES})
    published = KnownRuntimes.parse(yaml.safe_load(found["ConfigMap", "mptraining-runtimes"]["data"]["runtimes.yaml"]))
    chosen = settings({"settings": RUNTIMES})
    assert (published.runtimes, published.default_runtimes) == (chosen.runtimes, chosen.default_runtimes)
    # `mptj check --runtimes` refuses what the operator refuses.
    assert published.runtimes["default"].limits.workers_per_namespace == 8
    assert found["Role", "mptraining-runtimes"]["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mptraining-runtimes"], "verbs": ["get"]}
    ]
    (subject,) = found["RoleBinding", "mptraining-runtimes"]["subjects"]
    assert subject["name"] == "system:authenticated"
    for values, kinds in (
        ({}, {"ConfigMap", "Role", "RoleBinding"}),
        ({"settings": RUNTIMES, "rbac": {"userRoles": False}}, {"ConfigMap"}),
    ):
        assert {kind for kind, name in objects(values) if name == "mptraining-runtimes"} == kinds
