"""Where Kubernetes puts each pod: node selector, accelerator resource, tolerations, from the catalogue."""

from __future__ import annotations

from typing import Any

from mptraining_api import accelerators
from mptraining_api.resolved_job import Placement, ResolvedAccelerator

# GKE puts this label and, on pools made so, a taint of the same key on Spot nodes.
SPOT = "cloud.google.com/gke-spot"


def placement(accelerator: ResolvedAccelerator) -> Placement:
    """Selector, limits and tolerations of one pod; all empty for a CPU of any kind of machine."""
    type = accelerators.lookup(accelerator.type)
    selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    if type.node_label:
        selector[type.node_label] = type.name
    if type.topology_label and accelerator.topology:
        selector[type.topology_label] = accelerator.topology
    if type.taint:
        tolerations.append({"key": type.taint, "operator": "Exists", "effect": "NoSchedule"})
    if accelerator.provisioning == "Spot":
        selector[SPOT] = "true"
        tolerations.append({"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    return Placement(
        node_selector=selector,
        resources={type.resource: accelerator.count_per_node} if type.resource else {},
        tolerations=tuple(tolerations),
    )
