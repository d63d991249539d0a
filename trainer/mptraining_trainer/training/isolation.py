"""Group testing: the few rows that make a batch bad, found by trying parts of it. No TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Keep = NDArray[np.bool_]
# See `isolated`.
Tried = Callable[[Keep, int], bool]

# Rows of a replica's batch that are tried as the one that takes the places of the others.
_FILLERS = 4


def isolated(rows: int, is_good: Tried, *, replicas: int, workers: int, most: int) -> list[int] | None:
    """The rows, at most `most` of `rows`, of which each makes a batch bad, and without which this one is good.

    `is_good(keep, filler)` tries the batch with the rows that are not kept replaced by row `filler` of the same
    replica's batch. A row is tried among good ones and not alone, since a moving variance is that of a whole batch.
    Worker r of n has the rows that are r modulo n and deals them to its replicas in equal pieces.

    None when there are no such rows: the batch is bad as a whole, or more than `most` rows are. Tries at most about
    8 * most * log2(rows) batches.
    """
    if rows == 1:
        return [0]
    size = rows // replicas
    for filler in sorted({size * part // _FILLERS for part in range(_FILLERS)}):

        def only(kept: Sequence[int], filler: int = filler) -> bool:
            return is_good(_only(rows, kept), filler)

        if not only(()):
            # One of the rows that would take the others' places is bad itself.
            continue
        found = _search(np.arange(rows), only, most)
        if found and is_good(~_only(rows, found), filler):
            owners = [(row % workers, row // workers // size) for row in found]
            # The odd one of a replica's batch is the bad one, unless it is bad without any other too.
            few = all(2 * count < size for count in Counter(owners).values())
            if few or not any(is_good(_only(rows, ()), row // workers % size) for row in found):
                return found
    return None


def _search(rows: NDArray[np.int64], is_good: Callable[[Sequence[int]], bool], most: int) -> list[int] | None:
    """Every row that is bad among good ones; None when a part is bad and no half of it, or when there are too many."""
    found: list[int] = []
    left = [rows]
    while left:
        part = left.pop()
        if len(part) == 1:
            found.append(int(part[0]))
            if len(found) > most:
                return None
            continue
        bad = [half for half in np.array_split(part, 2) if not is_good(half.tolist())]
        if not bad:
            return None
        left += bad[::-1]
    return sorted(found)


def _only(rows: int, kept: Sequence[int]) -> Keep:
    keep = np.zeros(rows, np.bool_)
    keep[list(kept)] = True
    return keep
