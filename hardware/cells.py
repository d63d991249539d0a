"""The measurements: one frozen cell for each measurement, and the order of their turns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal, get_args

from hardware.machine import Machine

Scale = Literal["full", "small"]
Section = Literal["policies", "overflow", "resume", "determinism", "scaling", "memory"]
Policy = Literal["float32", "tf32", "mixed_float16", "mixed_bfloat16"]
ModelName = Literal["resnet50", "efficientnetb0", "vit", "transformer", "mlp"]
Source = Literal["synthetic", "streamed"]

MODELS: tuple[ModelName, ...] = get_args(ModelName)
POLICIES: tuple[Policy, ...] = get_args(Policy)
SOURCES: tuple[Source, ...] = get_args(Source)
HEADLINE: ModelName = "resnet50"
# Numbers of GPUs of which the book states speedups.
COUNTS = (1, 2, 4, 8)
# Compute capabilities from which a GPU has Tensor Cores for the format (NVIDIA's CUDA programming guide).
_CAPABILITY = {"mixed_float16": 7.0, "tf32": 8.0, "mixed_bfloat16": 8.0}
_TITLE = {"mixed_float16": "float16", "tf32": "TF32", "mixed_bfloat16": "bfloat16"}


@dataclass(frozen=True)
class Size:
    """The shape of one example, the examples of a step on one device, and the examples in the data set."""

    shape: tuple[int, ...]
    batch: int
    examples: int


SIZES: dict[Scale, dict[ModelName, Size]] = {
    "full": {
        "resnet50": Size((224, 224, 3), 128, 2048),
        "efficientnetb0": Size((224, 224, 3), 128, 2048),
        "vit": Size((224, 224, 3), 128, 2048),
        "transformer": Size((256,), 64, 2048),
        "mlp": Size((1024,), 2048, 16_384),
    },
    "small": {
        "resnet50": Size((16, 16, 3), 16, 128),
        "efficientnetb0": Size((16, 16, 3), 16, 128),
        "vit": Size((16, 16, 3), 16, 128),
        "transformer": Size((16,), 16, 128),
        "mlp": Size((32,), 32, 128),
    },
}
MEMORY_BATCHES: dict[Scale, tuple[int, ...]] = {"full": (64, 128, 256, 512, 1024, 2048), "small": (16, 64, 128)}
# Rounds of the goals, and of the other speeds.
_ROUNDS: dict[Scale, tuple[int, int]] = {"full": (7, 3), "small": (3, 1)}


@dataclass(frozen=True)
class Cell:
    """One measurement, which has a process of its own. `batch` is the examples of a step on one device."""

    section: Section
    model: ModelName
    policy: Policy
    batch: int
    xla: bool = False
    source: Source = "synthetic"
    devices: int = 1
    deterministic: bool = False
    # Why this machine cannot measure it.
    needs: str | None = None

    @property
    def key(self) -> str:
        xla, repeatable = "xla" if self.xla else "plain", "deterministic" if self.deterministic else "free"
        parts = (self.section, self.model, self.policy, xla, self.source, repeatable, f"{self.devices}x{self.batch}")
        return "/".join(parts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Turn:
    """A cell's measurement in one round."""

    cell: Cell
    round: int


def mixed_policy(machine: Machine) -> Policy:
    """Return the policy that the project's goals are about: float16 on GPUs, bfloat16 on TPUs and CPUs."""
    return "mixed_float16" if machine.kind == "gpu" else "mixed_bfloat16"


@cache
def turns(machine: Machine, scale: Scale) -> tuple[Turn, ...]:
    """Return all turns, the most important first, so that a short hour leaves out the least important.

    The goals come first and get further rounds last, far apart in time, so that a machine that slows down disturbs
    all rounds alike. Cells that this machine cannot measure are among them, with `needs`.
    """
    headline, mixed = SIZES[scale][HEADLINE], mixed_policy(machine)
    goals = [_policy(machine, scale, HEADLINE, policy, True, "synthetic") for policy in _first(mixed)]
    one = [Cell("overflow", "mlp", "mixed_float16", 8, needs=_needs(machine, "mixed_float16"))]
    one += [Cell("resume", HEADLINE, mixed, headline.batch, deterministic=True)]
    repeatable = [Cell("determinism", HEADLINE, mixed, headline.batch, deterministic=on) for on in (False, True)]
    scaling = [
        Cell("scaling", HEADLINE, mixed, headline.batch, machine.kind != "cpu", devices=n, needs=_devices(machine, n))
        for n in COUNTS
    ]
    memory = [
        Cell("memory", HEADLINE, policy, batch, needs=_needs(machine, policy))
        for batch in MEMORY_BATCHES[scale]
        for policy in ("float32", mixed)
    ]
    speeds = [
        _policy(machine, scale, model, policy, xla, source)
        for source in SOURCES
        for xla in (True, False)
        for policy in _first(mixed)
        for model in MODELS
    ]
    others = [cell for cell in speeds if cell not in goals]
    many, few = _ROUNDS[scale]
    if machine.kind == "tpu":
        # It computes only what XLA compiled.
        one, repeatable, scaling, memory = (
            [replace(cell, xla=True) for cell in cells] for cells in (one, repeatable, scaling, memory)
        )
    found = list(_rounds([*goals, *one], 1))
    found += _rounds(repeatable, 2)
    found += _rounds([*scaling, *memory, *others], 1)
    for number in range(1, many):
        found += [Turn(cell, number) for cell in (*goals, *scaling, *(others if number < few else ()))]
    return tuple(found)


def _first(mixed: Policy) -> tuple[Policy, ...]:
    """Return all policies, the goal's two first."""
    return ("float32", mixed, *(policy for policy in POLICIES if policy not in ("float32", mixed)))


def _rounds(cells: Sequence[Cell], rounds: int) -> Iterator[Turn]:
    for number in range(rounds):
        for cell in cells:
            yield Turn(cell, number)


def _policy(machine: Machine, scale: Scale, model: ModelName, policy: Policy, xla: bool, source: Source) -> Cell:
    batch = SIZES[scale][model].batch
    needs = _needs(machine, policy)
    if machine.kind == "tpu" and not xla:
        needs = "a TPU always compiles with XLA"
    return Cell("policies", model, policy, batch, xla, source, needs=needs)


def _needs(machine: Machine, policy: Policy) -> str | None:
    """Return why this machine does not compute the policy; a CPU emulates both 16-bit formats."""
    if policy == "float32":
        return None
    if machine.kind == "tpu":
        return None if policy == "mixed_bfloat16" else f"{_TITLE[policy]}: needs a GPU"
    if machine.kind == "cpu":
        return "needs a GPU" if policy == "tf32" else None
    least = _CAPABILITY[policy]
    if machine.capability is not None and machine.capability < least:
        return f"needs compute capability {least}, and this GPU has {machine.capability}"
    return None


def _devices(machine: Machine, count: int) -> str | None:
    if machine.kind == "tpu" and count != machine.count:
        return f"a job takes all chips of this machine, {machine.count}"
    if count <= machine.count:
        return None
    return f"needs {count} GPUs, and this machine has {machine.count if machine.kind == 'gpu' else 0}"
