"""Accelerators by dynamic resource allocation: a ResourceClaim for devices of a DeviceClass, in place of an extended
resource such as nvidia.com/gpu.
"""

from __future__ import annotations

from collections.abc import Mapping

from mptraining_api import accelerators
from mptraining_api.machines.node_labels import accelerator_terms, platforms
from mptraining_api.resolved_job import Placement, ResolvedAccelerator


def with_claim(placement: Placement, accelerator: ResolvedAccelerator, classes: Mapping[str, str]) -> Placement:
    """Return the placement of a pod that claims its devices, if `classes` names a DeviceClass for the accelerator.

    The class selects the devices, so that the nodes need no label with the accelerator's name.
    """
    device_class = classes.get(accelerator.type)
    # A class has whole devices: slices stay resources of the node.
    if device_class is None or accelerator.partition:
        return placement
    kind = accelerators.lookup(accelerator.type)
    labels = {label for each in platforms().values() for term in accelerator_terms(kind, each) for label in term}
    selector = {name: value for name, value in placement.node_selector.items() if name not in labels}
    kept = [
        [each for each in term.get("matchExpressions", ()) if each["key"] not in labels]
        for term in placement.node_affinity or ()
    ]
    # A term without requirements holds for every node.
    affinity = tuple({"matchExpressions": each} for each in kept) if kept and all(kept) else None
    return placement.model_copy(
        update={"node_selector": selector, "node_affinity": affinity, "resources": {}, "device_class": device_class}
    )
