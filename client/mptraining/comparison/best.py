"""Best values of several runs; values within 3 % of the best one are ties.

The board marks values by the same rule (`bestValues` in board/static/runs_table.js).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mptraining.comparison.values import Better, Value

# The same job run twice differs by as much in speed and memory.
TIE = 0.03


def best(values: Sequence[Value], direction: Better, *, able: Sequence[int]) -> tuple[int, ...]:
    """Return the indices of the best value and of its ties; empty if all runs that are `able` to be best are ties."""
    numbers = {at: float(value) for at in able if isinstance(value := values[at], int | float) and math.isfinite(value)}
    if direction is None or len(numbers) < 2:
        return ()
    top = (max if direction == "higher" else min)(numbers.values())
    ties = tuple(at for at, value in numbers.items() if abs(value - top) <= TIE * max(abs(value), abs(top)))
    return () if len(ties) == len(numbers) else ties
