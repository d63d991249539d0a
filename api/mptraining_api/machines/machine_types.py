"""Machine types of accelerators by platform, and the CPU and memory that a job requests by default.

The data is in `machine_types.toml`, which is read once, on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

# Steps that defaults are rounded down to: CPU in thousandths, memory in MiB.
_CPU_STEP = 100
_MEMORY_STEP = 256
# The least for a part of a device. A process has 0.6 GiB after the import of TensorFlow and Keras, and 1 GiB after the
# first steps of a ResNet50, both measured on a CPU; CUDA's libraries add to it.
_PART_CPUS = 1.0
_PART_MEMORY = 2.0


@dataclass(frozen=True, slots=True)
class MachineType:
    """One machine type; `memory` is in GiB, before the reserves of kubelet and system."""

    name: str
    devices: int
    cpus: float
    memory: float


@cache
def _document() -> Mapping[str, Any]:
    import tomllib

    return tomllib.loads(Path(__file__).with_name("machine_types.toml").read_text(encoding="utf-8"))


@cache
def machine_types(accelerator: str) -> Mapping[str, tuple[MachineType, ...]]:
    """Return the machine types that have the accelerator, by platform; empty for cpu."""
    by_platform: Mapping[str, Mapping[str, list[float]]] = _document().get(accelerator, {})
    return MappingProxyType(
        {
            platform: tuple(
                MachineType(name, int(devices), cpus, memory) for name, (devices, cpus, memory) in machines.items()
            )
            for platform, machines in by_platform.items()
        }
    )


def default_requests(accelerator: str, devices: int, platform: str, *, part: float = 1.0) -> dict[str, str] | None:
    """Return the default requests of a pod with so many devices, as Kubernetes quantities; None for cpu.

    They are a fixed share of the smallest machine of the platform with that many devices. If the machines are unknown,
    as under labels of GPU feature discovery, they are the least that any platform has. `part` is the part of a device
    that the pod gets, for slices; it requests what TensorFlow needs, if the machine has that for a
    whole device.
    """
    known = machine_types(accelerator)
    sizes = [_smallest(machines, devices) for machines in ([known[platform]] if platform in known else known.values())]
    if not sizes:
        return None
    share = _document()["share"]
    cpus = min(cpus for cpus, _ in sizes) * share["cpu"]
    memory = min(memory for _, memory in sizes) * share["memory"]
    if part < 1:
        cpus = max(cpus * part, min(cpus, _PART_CPUS))
        memory = max(memory * part, min(memory, _PART_MEMORY))
    # A step is the least, so that no request becomes 0.
    millis = max(round(cpus * 1000) // _CPU_STEP, 1) * _CPU_STEP
    mebibytes = max(round(memory * 1024) // _MEMORY_STEP, 1) * _MEMORY_STEP
    return {
        "cpu": f"{millis}m" if millis % 1000 else str(millis // 1000),
        "memory": f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes // 1024}Gi",
    }


def _smallest(machines: tuple[MachineType, ...], devices: int) -> tuple[float, float]:
    """Return CPUs and memory that go with so many devices of the smallest machine that has them."""
    large_enough = [machine for machine in machines if machine.devices >= devices] or list(machines)
    chosen = min(large_enough, key=lambda machine: (machine.devices, machine.cpus, machine.memory))
    share = min(devices / chosen.devices, 1.0)
    return chosen.cpus * share, chosen.memory * share
