"""The platform that nodes show, and the accelerator of a node by the labels of each platform."""

from __future__ import annotations

from typing import get_args

import pytest

from mptraining_api.accelerators import catalogue, lookup
from mptraining_api.machines.node_labels import NodeLabels, accelerator_of, accelerator_terms, platforms, recognize

GKE = {"cloud.google.com/gke-nodepool": "cpus", "kubernetes.io/os": "linux"}
EKS = {"eks.amazonaws.com/nodegroup": "cpus"}
KARPENTER = {"karpenter.k8s.aws/instance-family": "m7i"}
AKS = {"kubernetes.azure.com/agentpool": "cpus"}
DISCOVERED = {"nvidia.com/gpu.product": "NVIDIA-L4"}
KIND = {"kubernetes.io/hostname": "kind-worker"}


@pytest.mark.parametrize(
    ("nodes", "platform"),
    [
        ([GKE], "GKE"),
        ([KIND, EKS], "EKS"),
        ([KARPENTER], "EKS"),
        ([AKS], "AKS"),
        ([KIND, DISCOVERED], "NVIDIA"),
        # NVIDIA's GPU operator on a cluster of a provider: its labels say more.
        ([EKS | DISCOVERED], "EKS"),
        ([GKE | DISCOVERED], "GKE"),
        # Nodes that an administrator has labelled as GKE's.
        ([{"cloud.google.com/gke-accelerator": "nvidia-l4"}, DISCOVERED], "GKE"),
        ([KIND], None),
        ([{"cloud.google.com/other": "x", "nvidia.com/gpu.present": "true"}], None),
        ([], None),
    ],
)
def test_nodes_show_their_platform_even_without_accelerators(nodes: list[dict[str, str]], platform: str | None) -> None:
    assert recognize(nodes)[0] == platform


def test_nodes_show_their_mig_strategy_and_tpus_are_gke_s_alone() -> None:
    for strategies, found in (([], None), (["single"], "Single"), (["single", "mixed"], "Mixed")):
        assert recognize([KIND, *({"nvidia.com/mig.strategy": strategy} for strategy in strategies)])[1] == found
    tpu = lookup("v7x")
    assert [name for name, platform in platforms().items() if accelerator_terms(tpu, platform)] == ["GKE"]
    assert {"Auto", *platforms()} == set(get_args(NodeLabels))


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"cloud.google.com/gke-accelerator": "nvidia-b200"}, "b200"),
        ({"cloud.google.com/gke-tpu-accelerator": "tpu7x"}, "v7x"),
        ({"eks.amazonaws.com/instance-gpu-name": "h200"}, "h200"),
        ({"karpenter.k8s.aws/instance-gpu-name": "a100", "karpenter.k8s.aws/instance-gpu-memory": "81920"},
         "a100-80gb"),
        ({"node.kubernetes.io/instance-type": "g4dn.12xlarge"}, "t4"),
        ({"node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4"}, "a100-80gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "h100"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"}, "a100"),
        ({"nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-3070"}, "NVIDIA-GeForce-RTX-3070"),
        ({"node.kubernetes.io/instance-type": "n2-standard-4"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_a_node_s_labels_name_its_accelerator(labels: dict[str, str], name: str | None) -> None:
    assert accelerator_of(labels) == name


def test_one_label_value_names_one_accelerator_of_a_platform() -> None:
    for platform in platforms().values():
        seen: dict[tuple[tuple[str, str], ...], str] = {}
        for accelerator in catalogue().values():
            for term in accelerator_terms(accelerator, platform, suffixes=True) if accelerator.kind != "cpu" else ():
                key, *others = term
                for value in term[key]:
                    found = ((key, value), *((other, term[other][0]) for other in others))
                    assert seen.setdefault(found, accelerator.name) == accelerator.name
