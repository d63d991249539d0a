"""What values make of the chart: names, images, rights, settings, and which values are refused."""

from __future__ import annotations

import functools
import json
from importlib.util import find_spec
from typing import Any

import pytest
import yaml

from mptraining.board.in_cluster.run_folders import FolderOwners, Place
from mptraining.board.in_cluster.settings import BoardSettings
from mptraining_operator.settings import OperatorSettings
from tests.testbed.kubernetes.chart import Refused, documents, render

pytestmark = pytest.mark.integration

CRD = "mptrainingjobs.mptraining.dev"


@functools.cache
def _rendered(values: str, tests: bool) -> list[dict[str, Any]]:
    return documents(render(json.loads(values), tests=tests))


def objects(values: dict[str, Any] | None = None, *, tests: bool = False) -> dict[tuple[str, str], dict[str, Any]]:
    """Kind and name -> object."""
    found = _rendered(json.dumps(values or {}), tests)
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def pod(values: dict[str, Any] | None = None) -> dict[str, Any]:
    deployment = objects(values)["Deployment", "mptraining-operator"]
    template: dict[str, Any] = deployment["spec"]["template"]
    return template


def settings(values: dict[str, Any]) -> OperatorSettings:
    text = objects(values)["ConfigMap", "mptraining-operator"]["data"]["settings.yaml"]
    return OperatorSettings.parse(yaml.safe_load(text))


def test_by_default_the_operator_reads_its_own_defaults_and_this_version_s_images() -> None:
    chosen = settings({})
    images = {kind: chosen.image(kind) for kind in ("cpu", "gpu", "tpu")}
    assert images == {kind: OperatorSettings().image(kind) for kind in images}
    assert chosen.model_copy(update={"trainer_images": OperatorSettings().trainer_images}) == OperatorSettings()
    (container,) = pod()["spec"]["containers"]
    assert container["image"] == OperatorSettings().image("cpu").replace("trainer", "operator")


def test_images_come_from_one_registry_unless_something_nearer_is_named() -> None:
    values: dict[str, Any] = {
        "global": {"imageRegistry": "mirror.example/k8s/", "imagePullSecrets": [{"name": "pull"}]}
    }
    assert pod(values)["spec"]["containers"][0]["image"].startswith("mirror.example/k8s/mptraining/operator:")
    assert pod(values)["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert settings(values).image("gpu").startswith("mirror.example/k8s/mptraining/trainer:")
    assert settings(values).image("gpu").endswith("-gpu")
    nearer = {
        **values,
        "image": {"registry": "own.example", "digest": "sha256:" + "0" * 64},
        "trainer": {"tag": "9", "suffixes": {"gpu": "-cuda"}},
        "settings": {"trainerImages": {"tpu": "tpu.example/t:1"}},
    }
    assert pod(nearer)["spec"]["containers"][0]["image"] == "own.example/mptraining/operator@sha256:" + "0" * 64
    assert settings(nearer).image("gpu") == "mirror.example/k8s/mptraining/trainer:9-cuda"
    assert settings(nearer).image("tpu") == "tpu.example/t:1"
    one = {**values, "settings": {"trainerImage": "all.example/t:1"}}
    assert {settings(one).image(kind) for kind in ("cpu", "gpu", "tpu")} == {"all.example/t:1"}


def test_the_rights_hold_in_the_whole_cluster_or_in_some_namespaces_alone() -> None:
    everywhere = objects()
    assert ("ClusterRoleBinding", "mptraining-operator-jobs") in everywhere
    some = _rendered(json.dumps({"settings": {"namespaces": ["a", "b"]}}), False)
    bound = [
        (each["kind"], each["metadata"].get("namespace"), each["roleRef"]["name"])
        for each in some
        if each["kind"].endswith("Binding") and each["subjects"]
    ]
    assert sorted(bound, key=str) == [
        ("ClusterRoleBinding", None, "mptraining-operator"),
        ("RoleBinding", "a", "mptraining-operator-jobs"),
        ("RoleBinding", "b", "mptraining-operator-jobs"),
        ("RoleBinding", "mptraining-system", "mptraining-operator"),
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
        ("kueue.x-k8s.io", "workloadpriorityclasses"),
    }


# What the operator asks the API server for, by the module that does: whoever adds a call adds its right, and no other.
CALLS = {
    "mptrainingjobs": {
        "get": "apply",
        "list": "watch.informer",
        "watch": "watch.kopf_streams",
        "create": "sweeps.apply",
        "patch": "sweeps.apply",
        "delete": "apply",
    },
    "mptrainingjobs/status": {"patch": "apply"},
    "mptrainingsweeps": {
        "get": "sweeps.apply",
        "list": "watch.informer",
        "watch": "watch.reflector",
        "delete": "sweeps.apply",
    },
    "mptrainingsweeps/status": {"patch": "sweeps.apply"},
    "mptrainingsweeps/finalizers": {"update": "sweeps.apply"},
    # The API server's own check of blockOwnerDeletion.
    "mptrainingjobs/finalizers": {"update": "resources.job_objects"},
    "jobs": {
        "get": "apply",
        "list": "watch.informer",
        "watch": "watch.reflector",
        "create": "apply",
        "delete": "apply",
    },
    # Of the Job that holds a job's place in its queue, and of MultiKueue's Workload.
    "jobs/status": {"patch": "kueue.place_in_queue"},
    "workloads": dict.fromkeys(("get", "create"), "kueue.place_in_queue"),
    "workloadpriorityclasses": {"get": "kueue.place_in_queue"},
    "configmaps": {"get": "apply", "create": "apply"},
    "services": dict.fromkeys(("get", "list", "create", "update"), "namespace_objects"),
    "networkpolicies": dict.fromkeys(("get", "list", "create", "update", "delete"), "namespace_objects"),
    "pods": {"get": "apply", "list": "watch.informer", "watch": "watch.reflector", "delete": "apply"},
    "events": {
        "list": "apply",
        "create": "event_recorder",
        "patch": "event_recorder",
    },
    "tokenreviews": {"create": "progress.auth"},
    "nodes": {"get": "apply"},
    "leases": {"get": "leader_election", "create": "leader_election", "update": "leader_election"},
    "secrets": {"get": "progress.server", "create": "progress.server"},
}


# With metrics behind a token.
REVIEWS = {"subjectaccessreviews": {"create": "monitoring.metrics_access"}}


@pytest.mark.parametrize("namespaces", [[], ["a", "b"]])
@pytest.mark.parametrize(("authentication", "more"), [("None", {}), ("TokenReview", REVIEWS)])
def test_the_operator_has_the_rights_for_its_calls_and_no_others(
    namespaces: list[str], authentication: str, more: dict[str, dict[str, str]]
) -> None:
    granted: dict[str, set[str]] = {}
    chosen = {"namespaces": namespaces, "metrics": {"authentication": authentication}}
    for (kind, name), each in objects({"settings": chosen}).items():
        if kind not in ("Role", "ClusterRole") or name.endswith(("-edit", "-view", "-metrics-reader")):
            continue
        for rule in each["rules"]:
            for resource in rule["resources"]:
                granted.setdefault(resource, set()).update(rule["verbs"])
            if {"secrets", "leases"} & set(rule["resources"]):
                assert kind == "Role"
                assert rule["verbs"] == ["create"] or rule["resourceNames"]
    assert granted == {resource: set(verbs) for resource, verbs in {**CALLS, **more}.items()}
    modules = {module for verbs in {**CALLS, **more}.values() for module in verbs.values()}
    assert all(find_spec(f"mptraining_operator.{module}") for module in modules)


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


def test_the_replicas_go_before_jobs_on_a_busy_node() -> None:
    """By the chart's own class: clusters with a quota for system-cluster-critical refuse that outside kube-system."""
    own = objects()["PriorityClass", "mptraining-operator"]
    assert (own["value"], own["globalDefault"]) == (10**9, False)
    assert pod()["spec"]["priorityClassName"] == "mptraining-operator"
    other: dict[str, Any] = {"priorityClassName": "system-cluster-critical"}
    assert ("PriorityClass", "mptraining-operator") not in objects(other)
    assert pod(other)["spec"]["priorityClassName"] == "system-cluster-critical"
    none: dict[str, Any] = {"priorityClass": {"create": False}}
    assert ("PriorityClass", "mptraining-operator") not in objects(none)
    assert "priorityClassName" not in pod(none)["spec"]
    requests = pod()["spec"]["containers"][0]["resources"]["requests"]
    assert (requests["cpu"], requests["memory"]) == ("250m", "256Mi")


def test_a_change_of_settings_restarts_the_replicas() -> None:
    before = pod()["metadata"]["annotations"]["checksum/settings"]
    assert pod({"settings": {"cpuFallback": True}})["metadata"]["annotations"]["checksum/settings"] != before
    assert pod({"commonLabels": {"a": "b"}})["metadata"]["annotations"]["checksum/settings"] == before
    # A running operator takes over these two.
    live = {"settings": {"logLevel": "DEBUG", "paused": True}}
    assert pod(live)["metadata"]["annotations"]["checksum/settings"] == before
    assert (settings(live).log_level, settings(live).paused) == ("DEBUG", True)


CLOSED: dict[str, Any] = {
    "metrics": {"serviceMonitor": {"enabled": True}},
    "settings": {"metrics": {"authentication": "TokenReview"}},
}


def test_metrics_behind_a_token_take_https_a_right_and_a_role_for_scrapers() -> None:
    (container,) = pod(CLOSED)["spec"]["containers"]
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness", "startup")]
    assert [each["scheme"] for each in probes] == ["HTTPS"] * 3
    assert pod(CLOSED)["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    found = objects(CLOSED)
    rules = found["ClusterRole", "mptraining-operator"]["rules"]
    assert {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]} in rules
    reader = found["ClusterRole", "mptraining-operator-metrics-reader"]["rules"]
    assert reader == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    (endpoint,) = found["ServiceMonitor", "mptraining-operator"]["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", {"insecureSkipVerify": True})
    assert endpoint["bearerTokenFile"] == "/var/run/secrets/kubernetes.io/serviceaccount/token"
    secret = {"bearerTokenSecret": {"name": "scraper", "key": "jwt"}, "enabled": True}
    by_secret = objects({**CLOSED, "metrics": {"serviceMonitor": secret}})
    (endpoint,) = by_secret["ServiceMonitor", "mptraining-operator"]["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "scraper", "key": "jwt"}}
    assert "bearerTokenFile" not in endpoint


def test_by_default_metrics_are_open_and_no_right_is_taken_for_them() -> None:
    found = objects({"metrics": {"serviceMonitor": {"enabled": True}}})
    (endpoint,) = found["ServiceMonitor", "mptraining-operator"]["spec"]["endpoints"]
    assert set(endpoint) == {"port", "path", "interval"}
    (container,) = pod()["spec"]["containers"]
    assert "scheme" not in container["livenessProbe"]["httpGet"]
    assert ("ClusterRole", "mptraining-operator-metrics-reader") not in found
    assert settings({}).metrics.authentication == "None"


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
        ({"settings": {"cpuFalback": True}}, "cpuFalback"),
        ({"settings": {"workers": 0}}, "workers"),
        ({"settings": {"limits": {"nodesPerJob": "many"}}}, "nodesPerJob"),
        ({"replica": 3}, "replica"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"settings": {"healthPort": 0}}, "healthPort"),
        ({"settings": {"healthPort": 8443}}, r"healthPort: 8443 is settings.progress.port too"),
        ({"settings": {"lease": {"durationSeconds": 5, "renewSeconds": 3}}}, "renewSeconds"),
        ({"settings": {"logLevel": "verbose"}}, "logLevel"),
        ({"settings": {"metrics": {"authentication": "Token"}}}, "authentication"),
        ({"settings": {"paused": "yes"}}, "paused"),
        ({"settings": {"namespaces": ["Team_A"]}}, "namespaces/0"),
        ({"settings": {"defaultOutput": "s3://runs"}}, "defaultOutput"),
        ({"settings": {"limits": {"accelerators": ["t5"]}}}, "nvidia-tesla-t4"),
        ({"image": {"repository": ""}}, "repository"),
        ({"global": {"imageRegistry": "https://mirror.example"}}, "imageRegistry"),
        ({"fullnameOverride": "Training"}, "fullnameOverride"),
        ({"resources": {"limits": {"memory": "10MB"}}}, "10MB|memory"),
        ({"image": {"tag": "1:2"}}, "tag"),
        ({"metrics": {"serviceMonitor": {"interval": "fast"}}}, "interval"),
        ({"settings": {"pods": {"httpProxy": "notaurl"}}}, "httpProxy"),
        ({"settings": {"pods": {"labels": {"mptraining.dev/job": "x"}}}}, "mptraining.dev/job"),
        ({"settings": {"lease": None}}, "lease"),
        ({"settings": {"progress": None}}, "progress"),
        ({"crds": None}, "crds"),
        # The selectors of Deployment, Services and NetworkPolicy go by them.
        ({"commonLabels": {"app.kubernetes.io/name": "a"}}, "app.kubernetes.io/name"),
        ({"podLabels": {"app.kubernetes.io/instance": "a"}}, "app.kubernetes.io/instance"),
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
    some = _rendered(json.dumps({"settings": {"namespaces": ["1234", "1234"]}}), False)
    bound = [each["metadata"].get("namespace") for each in some if each["kind"] == "RoleBinding"]
    assert sorted(bound) == ["1234", "mptraining-system"]
    # null removes a default.
    assert ("ClusterRoleBinding", "mptraining-operator-jobs") in objects({"settings": {"namespaces": None}})
    assert objects({"settings": {"pods": {"httpProxy": "http://proxy.example:3128"}}})


def test_the_names_of_a_long_release_fit() -> None:
    found = documents(render(release="r" * 53))
    assert all(len(each["metadata"]["name"]) <= 63 for each in found if each["kind"] == "Service")


def test_by_default_there_is_no_board() -> None:
    assert [key for key in objects() if "board" in key[1]] == []


BOARD: dict[str, Any] = {
    "board": {
        "enabled": True,
        "hosts": ["board.example"],
        "runFolders": [
            {"namespace": "red", "folder": "gs://red-runs"},
            {"folder": "/mnt/{namespace}/runs", "claim": "all-runs", "subPath": "a"},
        ],
        "googleCredentials": {"secretName": "google", "key": "board.json"},
        "networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "oauth2-proxy"}}}]},
        "tls": {"secretName": "board-tls"},
    },
    "settings": {"defaultOutput": "gs://all-runs"},
}
BOARD_NAME = "mptraining-operator-board"


def board_settings(values: dict[str, Any]) -> BoardSettings:
    return BoardSettings.parse(yaml.safe_load(objects(values)["ConfigMap", BOARD_NAME]["data"]["board.yaml"]))


def test_the_board_reads_the_settings_that_its_values_make() -> None:
    found = board_settings(BOARD)
    own = [f"{BOARD_NAME}{suffix}" for suffix in (".mptraining-system", ".mptraining-system.svc")]
    assert set(own) | {"board.example", BOARD_NAME} <= set(found.hosts)
    assert (found.certificate, found.default_output, found.review_seconds) == (
        "/etc/mptraining-tls",
        "gs://all-runs",
        30,
    )
    assert [each.mount for each in found.run_folders] == ["", "/runs/1"]
    owners = FolderOwners(found.run_folders, default_output=found.default_output)
    assert owners.place("blue", "/mnt/blue/runs/one") == Place("/mnt/blue/runs/one", "/runs/1", ("one",))
    plain = board_settings({"board": {"enabled": True}})
    assert (plain.certificate, plain.run_folders, plain.audiences, plain.namespaces) == (None, (), (), ())
    some = board_settings({"board": {"enabled": True}, "settings": {"namespaces": ["1234", "b", "b"]}})
    assert some.namespaces == ("1234", "b")


def test_the_pod_of_the_board_is_restricted_and_mounts_what_the_values_name_read_only() -> None:
    spec = objects(BOARD)["Deployment", BOARD_NAME]["spec"]["template"]["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (BOARD_NAME, True)
    assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["seccompProfile"]) == (
        True,
        {"type": "RuntimeDefault"},
    )
    (container,) = spec["containers"]
    assert container["image"].startswith("mptraining/board:")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert {name for name, each in mounts.items() if not each.get("readOnly")} == {"tmp"}
    assert (mounts["runs-1"]["mountPath"], mounts["runs-1"]["subPath"]) == ("/runs/1", "a")
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert set(volumes) == set(mounts)
    assert volumes["runs-1"]["persistentVolumeClaim"] == {"claimName": "all-runs", "readOnly": True}
    assert (volumes["tls"]["secret"], volumes["google"]["secret"]) == (
        {"secretName": "board-tls"},
        {"secretName": "google"},
    )
    assert container["env"] == [
        {"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/etc/mptraining-google/board.json"}
    ]
    assert {container[f"{each}Probe"]["httpGet"]["scheme"] for each in ("liveness", "readiness", "startup")} == {
        "HTTPS"
    }
    (plain,) = objects({"board": {"enabled": True}})["Deployment", BOARD_NAME]["spec"]["template"]["spec"]["containers"]
    assert "env" not in plain
    assert "scheme" not in plain["readinessProbe"]["httpGet"]


def test_nothing_reaches_the_board_but_what_the_values_name() -> None:
    policy = objects(BOARD)["NetworkPolicy", BOARD_NAME]["spec"]
    assert policy["ingress"] == [
        {
            "from": [{"podSelector": {"matchLabels": {"app": "oauth2-proxy"}}}],
            "ports": [{"protocol": "TCP", "port": "pages"}],
        }
    ]
    closed = objects({"board": {"enabled": True}})
    assert closed["NetworkPolicy", BOARD_NAME]["spec"]["ingress"] == []
    assert closed["Service", BOARD_NAME]["spec"]["type"] == "ClusterIP"
    assert not any(kind in ("Ingress", "HTTPRoute") for kind, _ in closed)
    # No selector of the operator finds the board's pod, nor the other way round.
    labels = closed["Deployment", BOARD_NAME]["spec"]["template"]["metadata"]["labels"].items()
    selectors = [each["spec"].get("selector") or {} for (kind, _), each in closed.items() if kind == "Service"]
    assert sum(each.items() <= labels for each in selectors) == 1
    policies = [
        each["spec"]["podSelector"]["matchLabels"] for (kind, _), each in closed.items() if kind == "NetworkPolicy"
    ]
    assert sum(each.items() <= labels for each in policies) == 1


@pytest.mark.parametrize("namespaces", [[], ["a", "b"]])
def test_the_board_may_review_and_read_what_it_shows_and_nothing_else(namespaces: list[str]) -> None:
    found = _rendered(json.dumps({"board": {"enabled": True}, "settings": {"namespaces": namespaces}}), False)
    mine = [each for each in found if any(one["name"] == BOARD_NAME for one in each.get("subjects") or ())]
    roles = {each["metadata"]["name"]: each["rules"] for each in found if each["kind"] == "ClusterRole"}
    everywhere = {each["roleRef"]["name"] for each in mine if each["kind"] == "ClusterRoleBinding"}
    some = {each["metadata"]["namespace"] for each in mine if each["kind"] == "RoleBinding"}
    jobs = f"{BOARD_NAME}-jobs"
    assert (everywhere, some) == (({BOARD_NAME}, {"a", "b"}) if namespaces else ({BOARD_NAME, jobs}, set()))
    granted = {
        (resource, verb)
        for name in (BOARD_NAME, jobs)
        for rule in roles[name]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {
        ("tokenreviews", "create"), ("subjectaccessreviews", "create"), ("mptrainingjobs", "get"),
        ("mptrainingjobs", "list"), ("mptrainingjobs", "watch"), ("pods", "list"), ("events", "list"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("board", "words"),
    [
        ({"runFolders": [{"namespace": "a", "folder": "/runs"}]}, "claim"),
        ({"runFolders": [{"namespace": "a", "folder": "gs://a", "claim": "b"}]}, "claim"),
        ({"runFolders": [{"folder": "gs://a"}]}, "namespace"),
        ({"runFolders": [{"namespace": "a", "folder": "gs://a/{namespace}"}]}, "namespace"),
        ({"runFolders": [{"namespace": "a", "folder": "s3://a"}]}, "folder"),
        ({"hosts": ["https://board.example"]}, "hosts"),
        ({"reviewSeconds": 3600}, "reviewSeconds"),
        ({"port": 0}, "port"),
        ({"ingress": {}}, "ingress"),
    ],
)
def test_a_wrong_value_of_the_board_is_refused_by_name(board: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        render({"board": {"enabled": True, **board}})


def test_an_older_kubernetes_is_refused() -> None:
    with pytest.raises(Refused, match=r"requires kubeVersion: >=1\.29"):
        render(kubernetes="1.28.9")
