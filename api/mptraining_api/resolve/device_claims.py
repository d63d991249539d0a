"""Accelerators by dynamic resource allocation: a ResourceClaim for devices of a DeviceClass, in place of an extended
resource such as nvidia.com/gpu.
"""

from __future__ import annotations

from collections.abc import Mapping

from mptraining_api import accelerators
from mptraining_api.resolved_job import Placement, ResolvedAccelerator


def with_claim(placement: Placement, accelerator: ResolvedAccelerator, classes: Mapping[str, str]) -> Placement:
    """Return the placement of a pod that claims its devices, if `classes` names a DeviceClass for the accelerator.

    The class selects the devices, so that the nodes need no label with the accelerator's name.
    """
    device_class = classes.get(accelerator.type)
    if device_class is None:
        return placement
    label = accelerators.lookup(accelerator.type).node_label
    selector = {name: value for name, value in placement.node_selector.items() if name != label}
    return placement.model_copy(
        update={"node_selector": selector, "resources": {}, "device_class": device_class},
    )
