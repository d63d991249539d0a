"""When what goes wrong: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# An operator's clock is wrong by these, in seconds; half of all that start have the right time.
OFFSETS = (-60, 0, 0, 60)


class Kind(StrEnum):
    """What is done, as the report names it."""

    KILL = "operator killed (SIGKILL)"
    SWITCH = "leader told to stop, the other replica leads"
    CUT = "watches cut"
    API = "API server killed and started again"
    DELETE = "pod deleted"
    DRAIN = "node drained"
    PAUSE = "node paused"


@dataclass(frozen=True)
class Stroke:
    """One fault: `wait` seconds after the one before was carried out.

    `pick` in [0, 1) chooses among what there is to strike at that moment. What has an end lasts `seconds`; the clock
    of an operator that is started in the place of a stopped one is wrong by `offset` seconds.
    """

    wait: float
    kind: Kind
    pick: float
    seconds: float
    offset: int


@dataclass(frozen=True)
class Pace:
    """How a place is struck: seconds between two faults, and how long outages, drains and pauses last (from, to)."""

    wait: tuple[float, float]
    lasts: tuple[float, float]


def draw(seed: int, counts: Mapping[Kind, int], pace: Pace) -> tuple[Stroke, ...]:
    """So many faults of each kind, in an order and at moments that the seed decides."""
    chance = random.Random(f"chaos {seed}")
    kinds = [kind for kind in Kind for _ in range(counts.get(kind, 0))]
    chance.shuffle(kinds)
    return tuple(
        Stroke(
            wait=round(chance.uniform(*pace.wait), 3),
            kind=kind,
            pick=chance.random(),
            seconds=round(chance.uniform(*pace.lasts), 3),
            offset=chance.choice(OFFSETS),
        )
        for kind in kinds
    )
