"""Seconds for which each machine of a job with alternatives is tried, and the machine for which no time remains."""

from __future__ import annotations

from collections.abc import Sequence

# Seconds of a job without runPolicy.pendingTimeoutSeconds: longer than a cluster autoscaler needs for a GPU machine.
PENDING_TIMEOUT = 1800


def tried_for(times: Sequence[int | None], limit: int) -> tuple[int, ...]:
    """Return the seconds of each machine: those of `times` (tryForSeconds), or the machine's share of `limit`.

    The share is an equal part of `limit` (pendingTimeoutSeconds), or of what the written times leave if that is less.
    Where they leave nothing, as times in a queue may, which do not count against `limit`, it is the equal part.
    """
    equal, unwritten = limit // len(times), _unwritten(times)
    if unwritten and (left := limit - _written(times)) >= unwritten:
        equal = min(equal, left // unwritten)
    return tuple(max(1, equal) if each is None else each for each in times)


def never_tried(times: Sequence[int | None], limit: int) -> int | None:
    """Return the first machine for which the written times leave no second of `limit`; None if all are tried."""
    if _unwritten(times):
        return None if _written(times) + _unwritten(times) <= limit else times.index(None)
    return next((each for each in range(len(times)) if _written(times[:each]) >= limit), None)


def sufficient(times: Sequence[int | None]) -> int:
    """Return a limit with time for all: the sum of the written times, and their mean for each of the others."""
    written = len(times) - _unwritten(times)
    return -(-_written(times) * len(times) // written) if written else len(times)


def _written(times: Sequence[int | None]) -> int:
    return sum(each or 0 for each in times)


def _unwritten(times: Sequence[int | None]) -> int:
    return sum(each is None for each in times)
