"""Node labels and taints by platform (GKE, EKS, AKS, NVIDIA's GPU feature discovery).

The data is in `node_labels.toml`, which is read once, on first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

from mptraining_api.accelerators import AcceleratorType, catalogue
from mptraining_api.machines.machine_types import machine_types

PlatformName = Literal["GKE", "EKS", "AKS", "NVIDIA"]
NodeLabels = Literal["Auto", "GKE", "EKS", "AKS", "NVIDIA"]
MIGStrategy = Literal["Single", "Mixed"]
# The platform where the nodes show none.
DEFAULT_PLATFORM: Literal["GKE"] = "GKE"
# Set by GPU feature discovery on nodes with slices: single or mixed.
MIG_STRATEGY = "nvidia.com/mig.strategy"

Labels = Mapping[str, str]
# Label -> values, one of which a node must have.
Term = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class NodeKind:
    """One kind of nodes of a platform: labels of accelerators by kind (gpu, tpu), labels by provisioning."""

    accelerators: Mapping[str, Mapping[str, str]]
    provisioning: Mapping[str, Labels]
    # The label of the project of a reservation, if the platform has it.
    reservation_project: str | None


@dataclass(frozen=True, slots=True)
class Platform:
    """One platform. `taints` are by kind of accelerator and by provisioning, as `key` or `key=value`."""

    name: str
    title: str
    recognized_by: tuple[str, ...]
    topology: tuple[str, ...]
    arm_taint: bool
    # The node label of a MIG slice; None: the slice is a resource of its own.
    partition_label: str | None
    nodes: tuple[NodeKind, ...]
    taints: Mapping[str, tuple[str, ...]]

    def provisionings(self) -> list[str]:
        """Return the provisionings that nodes of the platform have labels for, and OnDemand, which needs none."""
        return ["OnDemand", *dict.fromkeys(name for kind in self.nodes for name in kind.provisioning)]


@cache
def platforms() -> Mapping[PlatformName, Platform]:
    """Return the platforms by name, in the order in which they are recognized."""
    import tomllib

    document = tomllib.loads(Path(__file__).with_name("node_labels.toml").read_text(encoding="utf-8"))
    # The file has exactly these names (a test).
    return MappingProxyType({cast(PlatformName, name): _platform(name, block) for name, block in document.items()})


def _platform(name: str, block: Mapping[str, Any]) -> Platform:
    partitions = block["partitions"]
    return Platform(
        name=name,
        title=block["title"],
        recognized_by=tuple(block["recognized_by"]),
        topology=tuple(block["topology"]),
        arm_taint=block.get("arm_taint", False),
        partition_label=None if partitions == "resource" else partitions,
        nodes=tuple(
            NodeKind(
                accelerators=MappingProxyType({kind: node[kind] for kind in ("gpu", "tpu") if kind in node}),
                provisioning=MappingProxyType(
                    {key: node[key] for key in ("Spot", "FlexStart", "Reservation") if key in node}
                ),
                reservation_project=node.get("reservation_project"),
            )
            for node in block["nodes"]
        ),
        taints=MappingProxyType({key: tuple(values) for key, values in block["taints"].items()}),
    )


def recognize(nodes: Iterable[Labels]) -> tuple[PlatformName | None, MIGStrategy | None]:
    """Return the platform and the MIG strategy that the labels of a cluster's nodes show; None for what they do not.

    Nodes without accelerators count, too: a cluster may add the others only when a job waits for them.
    """
    recognized: set[PlatformName] = set()
    strategies: set[str] = set()
    for labels in nodes:
        recognized.update(name for name, platform in platforms().items() if _shows(labels, platform))
        strategies.add(labels.get(MIG_STRATEGY, ""))
    platform = next((name for name in platforms() if name in recognized), None)
    strategy: MIGStrategy | None = "Mixed" if "mixed" in strategies else "Single" if "single" in strategies else None
    return platform, strategy


def _shows(labels: Labels, platform: Platform) -> bool:
    prefixes = tuple(mark for mark in platform.recognized_by if mark.endswith(("/", "-")))
    return any(key in platform.recognized_by or (prefixes and key.startswith(prefixes)) for key in labels)


def accelerator_of(labels: Labels) -> str | None:
    """Return the accelerator of a node with these labels, by the labels of any platform; None if they name none.

    The value of a label that the catalogue does not know is returned as it is.
    """
    unknown = None
    for platform in platforms().values():
        for kind in platform.nodes:
            for names in kind.accelerators.values():
                value = labels.get(names["label"])
                if value is None:
                    continue
                for accelerator in catalogue().values():
                    for term in accelerator_terms(accelerator, platform, suffixes=True):
                        if term and all(labels.get(key) in values for key, values in term.items()):
                            return accelerator.name
                unknown = unknown or (value if names["values"] != "machines" else None)
    return unknown


def accelerator_terms(
    accelerator: AcceleratorType,
    platform: Platform,
    *,
    suffix: str = "",
    suffixes: bool = False,
    provisioning: str = "OnDemand",
) -> list[Term]:
    """Return the labels of nodes with the accelerator and the provisioning, one term for each kind of nodes.

    The list is empty if the platform has no such nodes. `suffix` is that of the GPU's product (a slice);
    `suffixes` includes the products with every one. For cpu, a term has the labels of the provisioning alone.
    """
    terms: list[Term] = []
    for kind in platform.nodes:
        term: dict[str, tuple[str, ...]] = {}
        if accelerator.kind != "cpu":
            names = kind.accelerators.get(accelerator.kind, {})
            values = _values(accelerator, platform, names.get("values", ""), suffix, suffixes=suffixes)
            if not values:
                continue
            term[names["label"]] = values
            if "memory" in names and accelerator.aws_memory is not None:
                term[names["memory"]] = (accelerator.aws_memory,)
        if provisioning != "OnDemand":
            if provisioning not in kind.provisioning:
                continue
            term |= {key: (value,) for key, value in kind.provisioning[provisioning].items()}
        if term not in terms:
            terms.append(term)
    return terms


def _values(
    accelerator: AcceleratorType, platform: Platform, values: str, suffix: str, *, suffixes: bool
) -> tuple[str, ...]:
    """Return the values of a label for the accelerator; empty if the platform does not have it."""
    if values == "products":
        endings = [suffix]
        if suffixes:
            endings = ["", *(f"-MIG-{partition}" for partition in accelerator.partitions)]
        return tuple(f"{product}{ending}" for product in accelerator.products for ending in endings)
    if values == "aws_name":
        return (accelerator.aws_name,) if accelerator.aws_name else ()
    machines = machine_types(accelerator.name).get(platform.name, ())
    if values == "machines":
        return tuple(machine.name for machine in machines)
    return (accelerator.gke,) if values == "gke" else ()
