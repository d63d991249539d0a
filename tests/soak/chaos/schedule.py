"""The schedule of faults: a pure function of the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kinds of faults, by their names in the report."""

    KILL = "operator killed (SIGKILL)"
    SWITCH = "leader told to stop, the other replica leads"
    CUT = "watches cut"
    API = "API server killed and started again"
    DELETE = "pod deleted"


# The faults of the other kinds for one kill; seconds between two faults, and those that an outage lasts.
_FOR_A_KILL = {Kind.SWITCH: 0.2, Kind.CUT: 0.2, Kind.API: 0.1, Kind.DELETE: 0.4}
_WAIT, _LASTS = (0.1, 0.8), (0.2, 1.5)


@dataclass(frozen=True)
class Fault:
    """One planned fault: `wait` seconds after the previous one was injected.

    `pick` in [0, 1) selects one of the possible targets at that moment. Faults with an end last `seconds`.
    """

    wait: float
    kind: Kind
    pick: float
    seconds: float


def draw(seed: int, kills: int) -> tuple[Fault, ...]:
    """Return so many kills, and beside them at least one fault of each other kind, in an order and at times that the
    seed decides.
    """
    chance = random.Random(f"chaos {seed}")
    counts = {Kind.KILL: kills, **{kind: max(1, round(share * kills)) for kind, share in _FOR_A_KILL.items()}}
    kinds = [kind for kind in Kind for _ in range(counts[kind])]
    chance.shuffle(kinds)
    return tuple(
        Fault(
            wait=round(chance.uniform(*_WAIT), 3),
            kind=kind,
            pick=chance.random(),
            seconds=round(chance.uniform(*_LASTS), 3),
        )
        for kind in kinds
    )
