"""The gang of an attempt: chosen by job, settings and cluster; its PodGroup and the pods that name it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from mptraining_api.resolve.resolve import ClusterSettings, resolve
from mptraining_api.spec import Scheduling
from mptraining_operator.jobs.resources.environment import PodSettings
from mptraining_operator.jobs.resources.indexed_job import indexed_job
from mptraining_operator.jobs.resources.job_objects import Owner
from mptraining_operator.jobs.resources.pod_groups import (
    APIS,
    COSCHEDULING,
    VOLCANO,
    Gang,
    GangNotServed,
    PodGroupApi,
    by_api_version,
    choose,
    pod_group,
)
from tests.fakes import with_image
from tests.jobs import two_workers

OWNER = Owner("team", "flowers", "uid-1", "2026-11-23T10:00:00Z")
ALL = frozenset(APIS)
KNOWN = {"coscheduling": "gangs", "volcano": "volcano"}
NOTHING: dict[str, str | None] = {"coscheduling": None, "volcano": None}


def chosen(
    scheduling: dict[str, Any], served: frozenset[PodGroupApi] = ALL, known: dict[str, Any] = KNOWN, workers: int = 2
) -> Gang | None:
    return choose(Scheduling.parse(scheduling), workers, serves=served.__contains__, **known)


@pytest.mark.parametrize(
    ("scheduling", "served", "known", "gang"),
    [
        # Auto takes the first that is served and whose scheduler is known.
        ({}, ALL, KNOWN, Gang(COSCHEDULING, "gangs")),
        ({"gang": "Auto"}, ALL - {COSCHEDULING}, KNOWN, Gang(VOLCANO, "volcano")),
        ({}, frozenset(), KNOWN, None),
        ({}, ALL, NOTHING, None),
        ({"schedulerName": "volcano"}, ALL, KNOWN, Gang(VOLCANO, "volcano")),
        # It is not known what a scheduler of the user's reads.
        ({"schedulerName": "bin-packing"}, ALL, KNOWN, None),
        # The user names the gang, and may name its scheduler.
        ({"gang": "Coscheduling"}, ALL, NOTHING, Gang(COSCHEDULING, None)),
        ({"gang": "Coscheduling", "schedulerName": "mine"}, ALL, KNOWN, Gang(COSCHEDULING, "mine")),
        ({"gang": "Volcano"}, ALL, NOTHING, Gang(VOLCANO, "volcano")),
        ({"gang": "Volcano"}, ALL, {**KNOWN, "volcano": "vc"}, Gang(VOLCANO, "vc")),
        ({"gang": "None"}, ALL, KNOWN, None),
        ({"queueName": "gpus"}, ALL, KNOWN, None),
    ],
)
def test_the_gang_of(scheduling: dict[str, Any], served: Any, known: dict[str, Any], gang: Gang | None) -> None:
    assert chosen(scheduling, frozenset(served), known) == gang


def test_one_worker_is_no_gang() -> None:
    assert chosen({"gang": "Volcano"}, workers=1) is None


@pytest.mark.parametrize(
    ("gang", "missing"),
    [
        ("Coscheduling", "podgroups.scheduling.x-k8s.io/v1alpha1"),
        ("Volcano", "podgroups.scheduling.volcano.sh/v1beta1"),
    ],
)
def test_a_gang_that_the_cluster_does_not_serve(gang: str, missing: str) -> None:
    with pytest.raises(GangNotServed) as refused:
        chosen({"gang": gang}, frozenset())
    assert str(refused.value) == f"spec.scheduling.gang: {gang}: this cluster does not serve {missing}"


def test_discovery_is_asked_only_for_what_can_be_used() -> None:
    asked: list[PodGroupApi] = []
    choose(Scheduling(), 2, serves=lambda api: bool(asked.append(api)), coscheduling=None, volcano=None)
    assert asked == []


GROUPS: dict[PodGroupApi, str] = {
    COSCHEDULING: """
        group: {apiVersion: scheduling.x-k8s.io/v1alpha1, kind: PodGroup, spec: {minMember: 2}}
        pod: {labels: {scheduling.x-k8s.io/pod-group: flowers-3}, spec: {schedulerName: gangs}}
    """,
    VOLCANO: """
        group:
          apiVersion: scheduling.volcano.sh/v1beta1
          kind: PodGroup
          spec: {minMember: 2, queue: research, priorityClassName: high}
        pod: {annotations: {scheduling.k8s.io/group-name: flowers-3}, spec: {schedulerName: gangs}}
    """,
}


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.api_version)
def test_the_pod_group_and_the_pods_that_name_it(api: PodGroupApi) -> None:
    expected = yaml.safe_load(GROUPS[api])
    group = pod_group(OWNER, api, "flowers-3", "uid-3", 3, workers=2, queue="research", priority="high")
    metadata = group.pop("metadata")
    assert group == expected["group"]
    assert (metadata["name"], metadata["namespace"]) == ("flowers-3", "team")
    assert metadata["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "flowers-3", "uid": "uid-3", "controller": True}
    ]
    with_gang, without = (built(gang) for gang in (Gang(api, "gangs"), None))
    assert by_api_version(with_gang["metadata"]["annotations"]["mptraining.dev/gang"]) == api
    pods, plain = (each["spec"]["template"] for each in (with_gang, without))
    for part in ("labels", "annotations"):
        more = {key: value for key, value in pods["metadata"][part].items() if key not in plain["metadata"][part]}
        assert more == expected["pod"].get(part, {})
    assert {key: value for key, value in pods["spec"].items() if key not in plain["spec"]} == expected["pod"]["spec"]
    assert "mptraining.dev/gang" not in without["metadata"]["annotations"]


def built(gang: Gang | None) -> dict[str, Any]:
    job = two_workers()
    resolved = resolve(job, ClusterSettings(runtimes=with_image("trainer:1")))
    return indexed_job(OWNER, resolved, attempt=3, settings=PodSettings(), gang=gang)
