"""The measurements: one frozen cell for each measurement, and the order of their turns. Pure."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal, get_args

from hardware.machine import COUNTS, Machine

Scale = Literal["full", "small"]
Section = Literal["policies", "overflow", "resume", "determinism", "scaling", "memory"]
Policy = Literal["float32", "tf32", "mixed_float16", "mixed_bfloat16"]
ModelName = Literal["resnet50", "efficientnetb0", "vit", "transformer", "mlp"]
Source = Literal["synthetic", "streamed"]

MODELS: tuple[ModelName, ...] = get_args(ModelName)
POLICIES: tuple[Policy, ...] = get_args(Policy)
SOURCES: tuple[Source, ...] = get_args(Source)
HEADLINE: ModelName = "resnet50"
# The two for what is measured of two models: XLA off, TF32 and the other 16-bit format on convolutions and on products
# of matrices; streamed records with JPEG to decode and with the most examples a second.
TWO_MODELS: tuple[ModelName, ...] = (HEADLINE, "transformer")
STREAMED_MODELS: tuple[ModelName, ...] = (HEADLINE, "mlp")
# Compute capabilities from which a GPU has Tensor Cores for the format (NVIDIA's CUDA programming guide).
_CAPABILITY = {"mixed_float16": 7.0, "tf32": 8.0, "mixed_bfloat16": 8.0}
_TITLE = {"mixed_float16": "float16", "tf32": "TF32", "mixed_bfloat16": "bfloat16"}


@dataclass(frozen=True)
class Size:
    """The shape of one example, the examples of a step on one device, and the examples in the data set."""

    shape: tuple[int, ...]
    batch: int
    examples: int


# The small models are not the named ones, so tables and pictures do not call them so.
_SMALL_TITLES: dict[ModelName, str] = {
    "resnet50": "small residual net",
    "efficientnetb0": "small MBConv net",
    "vit": "small image encoder",
    "transformer": "small text encoder",
    "mlp": "small dense net",
}
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
MEMORY_BATCHES: dict[Scale, tuple[int, ...]] = {"full": (64, 128, 256, 512, 1024), "small": (16, 64, 128)}
# Eighths of the larger of two of them, from the middle: the largest batch is known to a quarter or better.
_BETWEEN = (6, 5, 7)
# Rounds of what decides a goal in the first pass; at most, and of the other speeds at most.
GOAL_ROUNDS = 3
_ROUNDS: dict[Scale, tuple[int, int]] = {"full": (7, 3), "small": (3, 1)}


@dataclass(frozen=True)
class Cell:
    """One measurement. `batch` is the examples of a step on one device."""

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

    @property
    def decides_goal(self) -> bool:
        """Whether a goal about speed rests on it, or it is in the same row as one: it gets more steps."""
        headline = self.section == "policies" and self.model == HEADLINE and self.xla and self.source == "synthetic"
        return headline or self.section == "scaling"

    @property
    def shares_process(self) -> bool:
        """Whether other cells may have run in its process before: not where memory, weights or a goal are compared."""
        return self.section == "policies" and self.model != HEADLINE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def title(model: ModelName, scale: Scale) -> str:
    """Return the model's name in tables and pictures."""
    return _SMALL_TITLES[model] if scale == "small" else model


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

    After the first pass the cells about speed get further rounds. Cells that this machine cannot measure are among
    them, with `needs`.
    """
    first = first_pass(machine, scale)
    goals = [turn.cell for turn in first if turn.round == GOAL_ROUNDS - 1]
    speeds = dict.fromkeys(turn.cell for turn in first if turn.cell.section in ("policies", "scaling"))
    many, few = _ROUNDS[scale]
    further = [
        Turn(cell, number)
        for number in range(1, many)
        for cell in (*goals, *(cell for cell in speeds if number < few and cell not in goals))
    ]
    return tuple(dict.fromkeys((*first, *further)))


@cache
def first_pass(machine: Machine, scale: Scale) -> tuple[Turn, ...]:
    """Return the turns of one pass: each cell once, and what decides a goal GOAL_ROUNDS times.

    Other sections are between these rounds: a machine that slows down then disturbs all of them alike.
    """
    headline, mixed = SIZES[scale][HEADLINE], mixed_policy(machine)
    # A TPU computes only what XLA compiled.
    always, xla = machine.kind == "tpu", machine.kind != "cpu"
    pair: tuple[Policy, Policy] = ("float32", mixed)
    rest = [policy for policy in POLICIES if policy not in pair]
    goals = [_policy(machine, scale, HEADLINE, policy, True, "synthetic") for policy in pair]
    scaling = {
        count: Cell("scaling", HEADLINE, mixed, headline.batch, xla, devices=count, needs=_devices(machine, count))
        for count in COUNTS[1:]
    }
    goals += [scaling[count] for count in (4, 8)]
    usable: Policy = "float32" if _needs(machine, mixed) else mixed
    exact = [Cell("overflow", "mlp", "mixed_float16", 8, needs=_needs(machine, "mixed_float16"))]
    exact += [Cell("resume", HEADLINE, usable, headline.batch, always, deterministic=True)]
    repeatable = [
        _policy(machine, scale, HEADLINE, usable, always, "synthetic"),
        Cell("determinism", HEADLINE, usable, headline.batch, always, deterministic=True),
    ]
    memory = [
        Cell("memory", HEADLINE, policy, batch, always, needs=_needs(machine, policy))
        for batch in (*MEMORY_BATCHES[scale], *_between(scale))
        for policy in pair
    ]
    others = [_policy(machine, scale, model, policy, True, "synthetic") for policy in pair for model in MODELS]
    others += [_policy(machine, scale, model, policy, True, "synthetic") for policy in rest for model in TWO_MODELS]
    others += [_policy(machine, scale, model, policy, False, "synthetic") for policy in pair for model in TWO_MODELS]
    others += [_policy(machine, scale, model, policy, True, "streamed") for policy in pair for model in STREAMED_MODELS]
    others = sorted((cell for cell in (*others, scaling[2]) if cell not in goals), key=_place)
    found = [Turn(cell, 0) for cell in (*goals, *exact)]
    found += [Turn(cell, number) for number in range(2) for cell in repeatable]
    found += [Turn(cell, 1) for cell in goals]
    found += [Turn(cell, 0) for cell in memory]
    found += [Turn(cell, GOAL_ROUNDS - 1) for cell in goals]
    return tuple(dict.fromkeys((*found, *(Turn(cell, 0) for cell in others))))


def _place(cell: Cell) -> int:
    """Return the order of the other speeds: those that share a process, by its TF32 setting, follow each other."""
    if not cell.shares_process:
        return 4 if cell.source == "streamed" else 0
    if cell.policy != "float32":
        return 2
    return 1 if cell.xla and cell.source == "synthetic" else 3


def _between(scale: Scale) -> list[int]:
    ends = MEMORY_BATCHES[scale]
    return [low * eighths // 4 for low, high in itertools.pairwise(ends) if high == 2 * low for eighths in _BETWEEN]


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
    if machine.kind == "tpu":
        return f"a job takes all chips of this machine, {machine.count}"
    if count <= machine.count:
        return None
    return f"needs {count} GPUs, and this machine has {machine.count if machine.kind == 'gpu' else 0}"
