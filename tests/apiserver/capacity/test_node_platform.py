"""`nodeLabels: Auto` through the operator's process: pods ask for the labels of the platform whose nodes there are."""

from __future__ import annotations

from typing import Any


def test_pods_ask_for_the_labels_of_the_nodes_that_there_are(alone: Any) -> None:
    alone.control_plane.nodes.create("platform-eks", labels={"eks.amazonaws.com/nodegroup": "default"})
    try:
        alone.operator(nodeLabels="Auto")
        alone.create("t4", accelerator={"type": "t4", "countPerWorker": 4}, workers=1)
        (pod,) = alone.wait(
            lambda: alone.control_plane.pods.of_job(alone.namespace, "t4-1"), lambda pods: len(pods) == 1
        )
    finally:
        alone.control_plane.nodes.remove("platform-eks")
    affinity = pod.whole["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    asked = {each["key"]: each["values"] for term in affinity["nodeSelectorTerms"] for each in term["matchExpressions"]}
    assert asked["eks.amazonaws.com/instance-gpu-name"] == ["t4"]
    assert "g4dn.12xlarge" in asked["node.kubernetes.io/instance-type"]
    assert "node labels of EKS" in alone.operators[0].log
