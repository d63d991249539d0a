"""Placement of a job's pods: node labels, taints, resources and requests, by the platform of the cluster's nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mptraining_api import accelerators
from mptraining_api.accelerators import AcceleratorType
from mptraining_api.machines.machine_types import default_requests
from mptraining_api.machines.node_labels import (
    DEFAULT_PLATFORM,
    MIGStrategy,
    NodeLabels,
    Platform,
    Term,
    accelerator_terms,
    platforms,
)
from mptraining_api.problems import InvalidSpec
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
    labels = {
        label for platform in platforms().values() for term in accelerator_terms(kind, platform) for label in term
    }
    selector = {name: value for name, value in placement.node_selector.items() if name not in labels}
    kept = [
        [expression for expression in term.get("matchExpressions", ()) if expression["key"] not in labels]
        for term in placement.node_affinity or ()
    ]
    # A term without requirements holds for every node.
    affinity = tuple({"matchExpressions": expressions} for expressions in kept) if kept and all(kept) else None
    return placement.model_copy(
        update={"node_selector": selector, "node_affinity": affinity, "resources": {}, "device_class": device_class}
    )


_SETTING = "The operator's setting nodeLabels names the platform, as does mptj check --node-labels."
_ARCHITECTURE = "kubernetes.io/arch"
# Slices of compute of a whole GPU that MIG divides (NVIDIA, MIG user guide).
_SLICES = 7


def placement(
    accelerator: ResolvedAccelerator,
    node_labels: NodeLabels = "GKE",
    mig_strategy: MIGStrategy = "Mixed",
    *,
    pack: bool = False,
) -> Placement:
    """Return the placement of one pod; it has no constraints for an on-demand CPU job.

    `node_labels`: the platform; with Auto, for a cluster that is not known, the default one, which has all machines.
    `pack`: whether the pods should be near one another. Raises InvalidSpec if the platform has no nodes with the
    accelerator or provisioning.
    """
    platform = platforms()[DEFAULT_PLATFORM if node_labels == "Auto" else node_labels]
    device = accelerators.lookup(accelerator.type)
    single = accelerator.partition is not None and platform.partition_label is None and mig_strategy == "Single"
    common = dict(_common_labels(accelerator, device, platform))
    # Under the strategy Single every GPU of a node has the same slices, which its product names.
    suffix = f"-MIG-{accelerator.partition}" if single else ""
    always: Term = {key: (value,) for key, value in common.items()}
    if single:
        # Nodes with whole GPUs have the same resource: only GPU feature discovery tells them apart.
        discovered = platforms()["NVIDIA"]
        discovery = accelerator_terms(device, discovered, suffix=suffix)
        always = {**always, **(discovery[0] if discovery else {})}
    terms: list[Term] = [{**term, **always} for term in _terms(accelerator, device, platform, suffix=suffix)]
    selector, affinity = _selector(terms)
    resource = device.resource
    if accelerator.partition and platform.partition_label is None and not single:
        resource = f"nvidia.com/mig-{accelerator.partition}"
    return Placement(
        node_selector=selector,
        node_affinity=affinity,
        resources={resource: accelerator.count_per_worker} if resource else {},
        requests=default_requests(device.name, accelerator.count_per_worker, platform.name, part=_part(accelerator)),
        tolerations=tuple(_tolerations(accelerator, device, platform)),
        pack_by=platform.topology if pack else None,
    )


def _terms(accelerator: ResolvedAccelerator, device: AcceleratorType, platform: Platform, *, suffix: str) -> list[Term]:
    if not accelerator_terms(device, platform) and device.kind != "cpu":
        known = [entry.name for entry in accelerators.catalogue().values() if accelerator_terms(entry, platform)]
        raise InvalidSpec(
            accelerators.TYPE,
            f"the node labels of {platform.title} know no {device.name}",
            expected=", ".join(known),
            next_step=_SETTING,
        )
    provisioning = accelerator.provisioning
    terms = accelerator_terms(device, platform, suffix=suffix, provisioning=provisioning)
    if not terms and provisioning != "OnDemand":
        raise InvalidSpec(
            accelerators.PROVISIONING,
            f"{provisioning!r}, which the node labels of {platform.title} do not show",
            expected=", ".join(platform.provisionings()),
            next_step=f"Label such nodes yourself and name the label in podTemplate.nodeSelector. {_SETTING}",
        )
    return [_with_reservation(term, accelerator, platform) for term in terms]


def _with_reservation(term: Term, accelerator: ResolvedAccelerator, platform: Platform) -> Term:
    project, _, name = (accelerator.reservation or "").rpartition("/reservations/")
    filled = {key: tuple(value.format(reservation=name) for value in values) for key, values in term.items()}
    label = next((kind.reservation_project for kind in platform.nodes if kind.reservation_project), None)
    if project:
        if label is None:
            raise InvalidSpec(
                "spec.accelerator.reservation",
                f"{accelerator.reservation!r}",
                expected=f"the id of a capacity reservation, as {platform.title} has no projects",
            )
        filled[label] = (project.removeprefix("projects/"),)
    return filled


def _common_labels(
    accelerator: ResolvedAccelerator, device: AcceleratorType, platform: Platform
) -> Iterator[tuple[str, str]]:
    """Yield the labels that every node of the pods has, whatever kind of node it is."""
    for kind in platform.nodes:
        topology = kind.accelerators.get(device.kind, {}).get("topology")
        if topology and accelerator.topology:
            yield topology, accelerator.topology
    if device.architecture != "amd64":
        yield _ARCHITECTURE, device.architecture
    if accelerator.partition and platform.partition_label:
        yield platform.partition_label, accelerator.partition


def _selector(terms: list[Term]) -> tuple[dict[str, str], tuple[dict[str, Any], ...] | None]:
    """Return the terms as a node selector, if there is one with single values, else as terms of a node affinity."""
    if not terms:
        return {}, None
    # The selector has what all terms require: kubectl and autoscalers show it at one glance.
    shared = {
        key: values[0]
        for key, values in terms[0].items()
        if len(values) == 1 and all(term.get(key) == values for term in terms)
    }
    return shared, _affinity([{key: values for key, values in term.items() if key not in shared} for term in terms])


def _affinity(terms: list[Term]) -> tuple[dict[str, Any], ...] | None:
    expressions = [
        [{"key": key, "operator": "In", "values": list(values)} for key, values in term.items()] for term in terms
    ]
    # A term without expressions would match no node; all of its labels are in the selector.
    return tuple({"matchExpressions": requirements} for requirements in expressions) if all(expressions) else None


def _part(accelerator: ResolvedAccelerator) -> float:
    return int(accelerator.partition.partition("g")[0]) / _SLICES if accelerator.partition else 1.0


def _tolerations(
    accelerator: ResolvedAccelerator, device: AcceleratorType, platform: Platform
) -> Iterator[dict[str, Any]]:
    taints = [*platform.taints.get(device.kind, ()), *platform.taints.get(accelerator.provisioning, ())]
    if platform.arm_taint and device.architecture != "amd64":
        taints.append(f"{_ARCHITECTURE}={device.architecture}")
    for taint in taints:
        key, _, value = taint.partition("=")
        if value:
            yield {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
        else:
            yield {"key": key, "operator": "Exists", "effect": "NoSchedule"}
