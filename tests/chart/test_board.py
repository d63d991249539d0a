"""The board of the cluster: settings, pod, network, rights, and which of its values are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from mptraining.board.in_cluster.run_folders import FolderOwners, Place
from mptraining.board.in_cluster.settings import BoardSettings
from tests.chart.rendered import objects, rendered
from tests.testbed.kubernetes.chart import Refused, render

pytestmark = pytest.mark.integration


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
    assert container["image"].startswith("registry.invalid/mptraining/board:")
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
    found = rendered(json.dumps({"board": {"enabled": True}, "settings": {"namespaces": namespaces}}), False)
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
