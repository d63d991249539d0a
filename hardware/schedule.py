"""The next measurement under a time budget. Pure."""

from __future__ import annotations

import statistics

from hardware.cells import Cell, Scale, Turn
from hardware.results import Results, Round

# Seconds of one process until something was measured here: start of TensorFlow, compilation and the steps. They decide
# only what is left out at the end of the time; with each measurement the guess is corrected.
_FIRST_GUESS: dict[Scale, float] = {"full": 40.0, "small": 10.0}
# XLA compiles a deep network for minutes.
_XLA: dict[Scale, float] = {"full": 2.0, "small": 1.0}
_PROCESSES = {"overflow": 2, "resume": 3}
# A process that takes so many times its estimate hangs.
_HANGS = 6.0
_LEAST_LIMIT = 180.0


def next_turn(results: Results, remaining: float) -> Turn | None:
    """Return the first turn that is neither done nor useless and that fits into the remaining seconds.

    A turn that is too long is passed over for a shorter one. A cell that failed gets no further round.
    """
    done = {(one.key, one.number) for one in results.rounds}
    failed = {one.key for one in results.rounds if one.outcome != "measured"}
    for turn in results.turns():
        if turn.cell.needs or turn.cell.key in failed or (turn.cell.key, turn.round) in done:
            continue
        if not too_large(turn.cell, results) and estimate(turn.cell, results) <= remaining:
            return turn
    return None


def estimate(cell: Cell, results: Results) -> float:
    """Return the seconds that the cell will take: its own last time, else the guess times this machine's factor."""
    own = [one.seconds for one in results.of(cell)]
    if own:
        return own[-1]
    guesses = {turn.cell.key: _guess(turn.cell, results.scale) for turn in results.turns()}
    factors = [one.seconds / guesses[one.key] for one in results.rounds if one.key in guesses]
    return _guess(cell, results.scale) * (statistics.median(factors) if factors else 1.0)


def limit(cell: Cell, results: Results) -> float:
    """Return the seconds after which the cell's processes are ended."""
    return max(_LEAST_LIMIT, _HANGS * estimate(cell, results))


def too_large(cell: Cell, results: Results) -> Round | None:
    """Return the round in which a smaller batch of the same series ran out of memory."""
    if cell.section != "memory":
        return None
    smaller = {
        turn.cell.key
        for turn in results.turns()
        if turn.cell.section == "memory" and turn.cell.policy == cell.policy and turn.cell.batch < cell.batch
    }
    return next((one for one in results.rounds if one.key in smaller and one.outcome == "out of memory"), None)


def _guess(cell: Cell, scale: Scale) -> float:
    return _FIRST_GUESS[scale] * (_XLA[scale] if cell.xla else 1.0) * _PROCESSES.get(cell.section, 1)
