"""Default requests: a share of the smallest machine with the devices, which the kubelet's reserves leave free."""

from __future__ import annotations

import pytest

from mptraining_api.accelerators import catalogue
from mptraining_api.machines.machine_types import default_requests, machine_types
from mptraining_api.machines.node_labels import accelerator_terms, platforms

MACHINES = [
    (accelerator, platform, machine)
    for accelerator in catalogue()
    for platform, machines in machine_types(accelerator).items()
    for machine in machines
]
# Allocatable of instance types in Karpenter's reference (kubelet defaults of EKS), in millicores and MiB.
KARPENTER = {
    "g4dn.xlarge": (3920, 14481),
    "g6.xlarge": (3920, 14162),
    "g6.12xlarge": (47810, 178933),
    "p4d.24xlarge": (95690, 1082712),
    "p5.4xlarge": (15890, 240830),
    "p5.48xlarge": (191450, 1938410),
    "p6-b200.48xlarge": (191450, 1937332),
    "g7e.2xlarge": (7910, 57471),
}


def millicores(quantity: str) -> int:
    return int(quantity[:-1]) if quantity.endswith("m") else int(quantity) * 1000


def mebibytes(quantity: str) -> int:
    return int(quantity[:-2]) * (1024 if quantity.endswith("Gi") else 1)


def allocatable(cpus: float, memory: float) -> tuple[float, float]:
    """Return what GKE leaves of a machine (GKE, "Plan node sizes"), in millicores and MiB."""
    steps = ((1, 0.06), (1, 0.01), (2, 0.005), (cpus, 0.0025))
    reserved, left = 0.0, cpus
    for most, share in steps:
        taken = min(left, most)
        reserved, left = reserved + taken * share, left - taken
    kept, rest = 0.0, memory
    for size, share in ((4, 0.25), (4, 0.20), (8, 0.10), (112, 0.06), (memory, 0.02)):
        taken = min(rest, size)
        kept, rest = kept + taken * share, rest - taken
    return (cpus - reserved) * 1000, (memory - kept) * 1024 - 100


def test_the_requests_leave_room_for_the_platform_s_own_pods() -> None:
    for accelerator, platform, machine in MACHINES:
        requests = default_requests(accelerator, machine.devices, platform)
        cpu, memory = KARPENTER.get(machine.name) or allocatable(machine.cpus, machine.memory)
        assert millicores(requests["cpu"]) <= cpu - 400, machine
        assert mebibytes(requests["memory"]) <= memory - 768, machine
    assert default_requests("cpu", 1, "GKE") is None


@pytest.mark.parametrize(
    ("accelerator", "devices", "platform", "cpu", "memory"),
    [
        ("h100", 8, "GKE", "145600m", "1123Gi"),
        ("h100", 8, "AKS", "67200m", "1140Gi"),
        ("t4", 1, "GKE", "1400m", "4608Mi"),
        # A part of a machine: EKS has no machine with two L4.
        ("l4", 2, "EKS", "16800m", "58880Mi"),
        ("a100", 1, "EKS", "8400m", "88320Mi"),
        # The machine is not known: the least of GKE, EKS and AKS.
        ("h200", 8, "NVIDIA", "67200m", "1110Gi"),
        ("v7x", 4, "GKE", "156800m", "576Gi"),
    ],
)
def test_the_requests_are_a_share_of_the_smallest_machine(
    accelerator: str, devices: int, platform: str, cpu: str, memory: str
) -> None:
    assert default_requests(accelerator, devices, platform) == {"cpu": cpu, "memory": memory}


@pytest.mark.parametrize(
    ("accelerator", "devices", "part", "expected"),
    [
        # n1-standard-2 has 2 CPUs and 7.5 GiB, g2-standard-4 4 and 16, a2-highgpu-1g 12 and 85.
        ("t4", 1, 1 / 4, {"cpu": "1", "memory": "2Gi"}),
        ("l4", 1, 1 / 48, {"cpu": "1", "memory": "2Gi"}),
        ("a100", 1, 1 / 7, {"cpu": "1200m", "memory": "7424Mi"}),
        ("a100", 1, 3 / 7, {"cpu": "3600m", "memory": "22272Mi"}),
        # Whole devices as before.
        ("t4", 1, 1.0, {"cpu": "1400m", "memory": "4608Mi"}),
    ],
)
def test_a_part_of_a_device_gets_what_tensorflow_needs(
    accelerator: str, devices: int, part: float, expected: dict[str, str]
) -> None:
    assert default_requests(accelerator, devices, "GKE", part=part) == expected


def test_every_accelerator_has_machines_where_it_has_nodes() -> None:
    for accelerator in catalogue().values():
        for platform in platforms().values():
            if platform.name != "NVIDIA" and accelerator.kind != "cpu" and accelerator_terms(accelerator, platform):
                assert platform.name in machine_types(accelerator.name)
                if platform.name == "GKE" and accelerator.kind == "gpu":
                    counts = {each.devices for each in machine_types(accelerator.name)["GKE"]}
                    assert counts == set(accelerator.counts), accelerator.name
