"""`nodeLabels: Auto` through the operator's process: pods ask for the labels of the platform whose nodes there are."""

from __future__ import annotations

from typing import Any

import pytest

T4 = {"type": "nvidia-tesla-t4", "countPerNode": 4}
# By platform: the labels of a node of the cluster, of which GKE's, EKS' and AKS' have no GPU, and those that the pods
# of a job on T4 ask for.
PLATFORMS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "GKE": ({"cloud.google.com/gke-nodepool": "default"}, {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}),
    "EKS": (
        {"eks.amazonaws.com/nodegroup": "default"},
        {
            "eks.amazonaws.com/instance-gpu-name": "t4",
            "karpenter.k8s.aws/instance-gpu-name": "t4",
            "node.kubernetes.io/instance-type": "g4dn.12xlarge",
        },
    ),
    "AKS": ({"kubernetes.azure.com/mode": "system"}, {"node.kubernetes.io/instance-type": "Standard_NC64as_T4_v3"}),
    "NVIDIA": ({"nvidia.com/gpu.product": "Tesla-T4"}, {"nvidia.com/gpu.product": "Tesla-T4"}),
}


def asked_for(pod: dict[str, Any]) -> dict[str, list[str]]:
    """Return the values of each label that a node of the pod may have, of any of the terms of its affinity."""
    found = {key: [value] for key, value in (pod.get("nodeSelector") or {}).items()}
    required = pod.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in required.get("nodeSelectorTerms", ()):
        found |= {each["key"]: each["values"] for each in term["matchExpressions"]}
    return found


@pytest.mark.parametrize("platform", PLATFORMS)
def test_pods_ask_for_the_labels_of_the_nodes_that_there_are(alone: Any, platform: str) -> None:
    node, labels = PLATFORMS[platform]
    name = f"platform-{platform.lower()}"
    alone.control_plane.nodes.create(name, labels=node)
    try:
        alone.operator(nodeLabels="Auto")
        alone.create("t4", accelerator=T4, nodes=1)
        (pod,) = alone.wait(
            lambda: alone.control_plane.pods.of_job(alone.namespace, "t4-1"), lambda pods: len(pods) == 1
        )
    finally:
        alone.control_plane.nodes.remove(name)
    asked = asked_for(pod.whole["spec"])
    assert asked.keys() == labels.keys()
    assert all(value in asked[key] for key, value in labels.items()), asked
    assert platform == "GKE" or f"node labels of {platform}" in alone.operators[0].log
