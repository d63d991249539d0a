"""The platform of the nodes: read where the settings say Auto, kept where the nodes cannot be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from mptraining_api.kubernetes_api import NODES, ApiProblem, Resource
from mptraining_operator.jobs.watch.node_platform import NodePlatform
from mptraining_operator.settings import OperatorSettings


class Nodes:
    """A cluster that has these labels on its nodes, or refuses to list them."""

    def __init__(self, *labels: dict[str, str]) -> None:
        self.labels = labels
        self.lists = 0
        self.refuses = False
        self.openshift = False

    def serves(self, resource: Resource) -> bool:
        if self.refuses:
            raise ApiProblem(0, "NoAnswer", "Read timed out")
        return self.openshift and resource.group == "security.openshift.io"

    def pages(
        self, resource: Resource, namespace: str | None, **selectors: str
    ) -> Iterator[tuple[list[msgspec.Raw], int]]:
        assert resource == NODES
        self.lists += 1
        if self.refuses:
            raise ApiProblem(403, "Forbidden", "nodes is forbidden")
        wanted = selectors.get("labelSelector", "")
        found = [label for label in self.labels if not wanted or wanted in label]
        yield [msgspec.Raw(json.dumps({"metadata": {"labels": each}}).encode()) for each in found], 1


EKS = {"eks.amazonaws.com/nodegroup": "gpus", "nvidia.com/mig.strategy": "single"}


def platform(nodes: Nodes, **settings: Any) -> NodePlatform:
    platform = NodePlatform(nodes, OperatorSettings.parse(settings))  # type: ignore[arg-type]
    platform.read()
    return platform


def test_openshift_assigns_users() -> None:
    nodes = Nodes(EKS)
    found = platform(nodes)
    for openshift in (False, True):
        nodes.openshift = openshift
        found.read()
        assert found.assigns_users is openshift
    nodes.refuses = True
    found.read()
    assert found.assigns_users


def test_nodes_that_show_nothing_are_gke_s() -> None:
    found = platform(Nodes({"kubernetes.io/hostname": "kind-worker"})).settings
    assert (found.node_labels, found.mig_strategy) == ("GKE", "Mixed")


def test_a_setting_wins_and_reads_no_nodes() -> None:
    nodes = Nodes(EKS)
    found = platform(nodes, nodeLabels="NVIDIA", migStrategy="Mixed").settings
    assert (found.node_labels, found.mig_strategy, nodes.lists) == ("NVIDIA", "Mixed", 0)


def test_what_was_found_stays_while_nodes_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    nodes = Nodes(EKS)
    reader = platform(nodes)
    before = reader.settings
    nodes.refuses = True
    reader.read()
    assert reader.settings == before
    assert "the nodes cannot be read" in caplog.text
    nodes.refuses, nodes.labels = False, ({},)
    reader.read()
    assert reader.settings == before
