"""The schedule of faults: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# Errors of an operator's clock, in seconds; half of the replicas have the right time.
OFFSETS = (-60, 0, 0, 60)


class Kind(StrEnum):
    """The kinds of faults, by their names in the report."""

    KILL = "operator killed (SIGKILL)"
    SWITCH = "leader told to stop, the other replica leads"
    CUT = "watches cut"
    API = "API server killed and started again"
    DELETE = "pod deleted"


@dataclass(frozen=True)
class Fault:
    """One planned fault: `wait` seconds after the previous one was injected.

    `pick` in [0, 1) selects one of the possible targets at that moment. Faults with an end last `seconds`; the clock
    of an operator that replaces a stopped one is wrong by `offset` seconds.
    """

    wait: float
    kind: Kind
    pick: float
    seconds: float
    offset: int


@dataclass(frozen=True)
class Pace:
    """The seconds between two faults, and the duration of outages (from, to)."""

    wait: tuple[float, float]
    lasts: tuple[float, float]


def draw(seed: int, counts: Mapping[Kind, int], pace: Pace) -> tuple[Fault, ...]:
    """Return so many faults of each kind, in an order and at times that the seed decides."""
    chance = random.Random(f"chaos {seed}")
    kinds = [kind for kind in Kind for _ in range(counts.get(kind, 0))]
    chance.shuffle(kinds)
    return tuple(
        Fault(
            wait=round(chance.uniform(*pace.wait), 3),
            kind=kind,
            pick=chance.random(),
            seconds=round(chance.uniform(*pace.lasts), 3),
            offset=chance.choice(OFFSETS),
        )
        for kind in kinds
    )
