"""Catalogue of accelerators: types, topologies, slices, the names that platforms give them, precision policies.

All differences between accelerators are data in `accelerators.toml`; the file is read once, on first use.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from mptraining_api.problems import InvalidSpec

TYPE = "spec.accelerator.type"
TOPOLOGY = "spec.accelerator.topology"
COUNT = "spec.accelerator.countPerWorker"
PROVISIONING = "spec.accelerator.provisioning"
PARTITION = "spec.accelerator.partition"

# GKE: slices of up to 64 chips have sides of 2 or 4, except for the smallest, 2x2x1 on one machine.
_SMALL_CUBOIDS = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorType:
    """One accelerator. `memory_gib` is that of one device. Batch size, layer widths and channels should be multiples
    of `multiple`.
    """

    name: str
    title: str
    kind: Literal["cpu", "gpu", "tpu"]
    # Other names that people write.
    aliases: tuple[str, ...] = ()
    # The value of GKE's node label, which a job may name too.
    gke: str
    policies: tuple[str, ...]
    multiple: int
    # Possible numbers of devices per machine; empty for cpu, and for TPUs, where the topology determines the number.
    counts: tuple[int, ...] = ()
    # Topology -> chips per pod, the default first; empty for cpu and GPUs.
    topologies: Mapping[str, tuple[int, ...]]
    replicas_per_device: int = 1
    compute_capability: float | None = None
    memory_gib: int | None = None
    resource: str | None = None
    # Products that GPU feature discovery reports; the GPU's name and memory (MiB) in the labels of EKS and Karpenter.
    products: tuple[str, ...] = ()
    aws_name: str | None = None
    aws_memory: str | None = None
    # MIG profiles, the smallest first.
    partitions: tuple[str, ...] = ()
    # That of the machine's CPU, as in the label kubernetes.io/arch.
    architecture: str = "amd64"


@cache
def catalogue() -> Mapping[str, AcceleratorType]:
    """Return the accelerators by canonical name, in the order of the file."""
    import tomllib

    document = tomllib.loads(Path(__file__).with_name("accelerators.toml").read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            name: _accelerator(name, document["kind"][block["kind"]] | block)
            for name, block in document["accelerator"].items()
        }
    )


def _accelerator(name: str, block: dict[str, Any]) -> AcceleratorType:
    cuboid, topologies = block.pop("cuboid", None), block.pop("topologies", {})
    if cuboid is not None:
        topologies = _cuboids(**cuboid)
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in block.items()}
    fields["topologies"] = MappingProxyType({topology: tuple(chips) for topology, chips in topologies.items()})
    return AcceleratorType(name=name, **{"gke": name, **fields})


def _cuboids(chips_per_pod: int, most_chips: int, single_chip: str | None = None) -> dict[str, tuple[int, ...]]:
    """Return the chips per pod of every topology that GKE defines by a rule instead of a list, ordered by size.

    Up to 64 chips, sides of 2 or 4 with A<=B<=C; above that, multiples of 4 (GKE, "Plan TPUs on GKE"). `single_chip` is
    the topology of a machine with one chip, if there is one.
    """
    most = most_chips // 64
    large = [
        (4 * a, 4 * b, 4 * c)
        for a in range(1, most + 1)
        for b in range(a, most // a + 1)
        for c in range(b, most // (a * b) + 1)
        if a * b * c > 1
    ]
    names = [*_SMALL_CUBOIDS, *("x".join(map(str, sides)) for sides in sorted(large, key=math.prod))]
    several: dict[str, tuple[int, ...]] = dict.fromkeys(names, (chips_per_pod,))
    return several if single_chip is None else {single_chip: (1,), **several}


def canonical_name(alias: str) -> str:
    """Return the canonical name for any name of an accelerator, in any case.

    Raises InvalidSpec with the nearest name.
    """
    word = alias.strip().lower()
    for accelerator in catalogue().values():
        if word in (accelerator.name, accelerator.gke, *accelerator.aliases):
            return accelerator.name
    raise _unknown(alias)


@cache
def _names_by_gke() -> Mapping[str, str]:
    return {accelerator.gke: name for name, accelerator in catalogue().items()}


def canonical_type(spelling: str) -> str:
    """Return the canonical name if `spelling` is the value of GKE's node label, else `spelling`."""
    return _names_by_gke().get(spelling, spelling)


def lookup(spelling: str) -> AcceleratorType:
    """Return the accelerator with this canonical name or label value. Raises InvalidSpec with the nearest name."""
    accelerator = catalogue().get(canonical_type(spelling))
    if accelerator is None:
        raise _unknown(spelling)
    return accelerator


def _unknown(word: str) -> InvalidSpec:
    spellings = {name: name for name in catalogue()}
    for name, accelerator in catalogue().items():
        spellings |= dict.fromkeys((accelerator.gke, *accelerator.aliases), name)
    lower = word.strip().lower()
    if lower in spellings:
        written = lower in catalogue() or lower in _names_by_gke()
        why = "is not in small letters" if written else "is a name of the command line alone"
        return InvalidSpec(TYPE, f"{word!r} {why}; write {spellings[lower]!r}")
    suggested = next((spellings[part] for part in lower.split("-") if part in spellings), None)
    # "gpu" and "tpu" name a kind, however close they are to "cpu" and "tpu7x".
    if suggested is None and lower.rstrip("s") not in ("gpu", "tpu"):
        close = difflib.get_close_matches(lower, spellings, n=1, cutoff=0.5)
        suggested = spellings[close[0]] if close else None
    hint = f"Did you mean {suggested!r}? " if suggested else ""
    return InvalidSpec(TYPE, f"unknown accelerator {word!r}", next_step=f"{hint}{_known(lower)}")


# Parts of names that people give to GPUs which the catalogue does not have.
_GPU_WORDS = ("gpu", "rtx", "gtx", "geforce", "quadro", "nvidia", "cuda")


def _known(word: str) -> str:
    """Return the known names, of one kind if `word` is of that kind, and the command that explains them."""
    gpu, tpu = any(part in word for part in _GPU_WORDS), "tpu" in word
    kinds = {"gpu"} if gpu else {"tpu"} if tpu else {"cpu", "gpu", "tpu"}
    title = "GPUs" if gpu else "TPUs" if tpu else "Known"
    names = ", ".join(accelerator.name for accelerator in catalogue().values() if accelerator.kind in kinds)
    return f"{title}: {names}. `mptj accelerators` describes them."


def chips(topology: str) -> int:
    """Return the number of chips of a whole slice: the product of its sides."""
    return math.prod(int(side) for side in topology.split("x"))


def pods(topology: str, chips_per_pod: int) -> int:
    """Return the number of pods of a slice, one per machine. Raises InvalidSpec if they would not use all chips."""
    total = chips(topology)
    if chips_per_pod < 1 or total % chips_per_pod or total == 0:
        raise InvalidSpec(
            COUNT,
            f"{chips_per_pod} chips per worker",
            expected=f"a number that divides the {total} chips of {topology}",
        )
    return total // chips_per_pod


def chips_per_pod(accelerator: AcceleratorType, topology: str) -> tuple[int, ...]:
    """Return the possible chips per pod of this topology, the default first; only 2x4 has several.

    Raises InvalidSpec with the nearest topologies.
    """
    per_pod = accelerator.topologies.get(topology)
    if per_pod is None:
        raise InvalidSpec(
            TOPOLOGY,
            f"{accelerator.name} has no topology {topology!r}",
            expected=f"such as {', '.join(_nearest_topologies(accelerator, topology))}",
            next_step=_topology_instead(accelerator, topology),
        )
    return per_pod


def _topology_instead(accelerator: AcceleratorType, topology: str) -> str:
    """Return the same sides in the order of the catalogue, else the next larger topology, else the largest one."""
    sides = sorted(topology.split("x"))
    same = [name for name in accelerator.topologies if sorted(name.split("x")) == sides]
    larger = [name for name in accelerator.topologies if chips(name) > chips(topology)]
    if same:
        return f"Write {same[0]}."
    if larger:
        return f"The next larger one is {min(larger, key=chips)}."
    return f"The largest one is {max(accelerator.topologies, key=chips)}."


def _nearest_topologies(accelerator: AcceleratorType, topology: str) -> list[str]:
    """Return eight topologies of the accelerator, nearest in number of chips, in the catalogue's order."""
    total = chips(topology)
    close = sorted(accelerator.topologies, key=lambda name: abs(math.log(chips(name) / max(total, 1))))[:8]
    return [name for name in accelerator.topologies if name in close]
