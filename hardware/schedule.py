"""The next measurement under a time budget. Pure."""

from __future__ import annotations

import statistics

from hardware.cells import GOAL_ROUNDS, MEMORY_BATCHES, SIZES, Cell, ModelName, Policy, Scale, Turn, first_pass
from hardware.jobs import steps
from hardware.machine import Machine
from hardware.results import Results

# Guesses in seconds, until something was measured here. They decide only what is left out at the end of the time; with
# each measurement they are corrected. The start of TensorFlow, of the device and of the job, and its export:
_START: dict[Scale, float] = {"full": 20.0, "small": 6.0}
# Four cells and more share a process.
_SHARE = 0.25
# Building, tracing and the choice of algorithms.
_BUILD: dict[Scale, float] = {"full": 10.0, "small": 2.0}
# XLA's compilation.
_XLA: dict[ModelName, float] = {"resnet50": 60.0, "efficientnetb0": 80.0, "vit": 40.0, "transformer": 40.0, "mlp": 10.0}
_XLA_SMALL = 2.0
# A step of resnet50 in float32: on a TPU; on a GPU of a data centre such as V100, A100 and H100; on others such as the
# T4; of the small net on a CPU. The other models' batches are chosen so that their steps take about as long.
_STEP_TPU, _STEP_FAST, _STEP_SLOW, _STEP_SMALL = 0.3, 0.4, 1.0, 0.01
_FAST = 9.0
# The share of that step under a 16-bit format or TF32.
_GAIN = 0.5
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
        if is_useful(turn.cell, results) and estimate(turn.cell, results) <= remaining:
            return turn
    return None


def estimate(cell: Cell, results: Results) -> float:
    """Return the seconds that the cell will take: its own last time, else the guess times this machine's factor."""
    own = [one.seconds for one in results.of(cell)]
    if own:
        return own[-1]
    guesses = {turn.cell.key: guess(turn.cell, results.machine, results.scale) for turn in results.turns()}
    # A failure ends early or late, which shows nothing of the others.
    measured = [one for one in results.rounds if one.key in guesses and one.outcome == "measured"]
    factors = [one.seconds / guesses[one.key] for one in measured]
    return guess(cell, results.machine, results.scale) * (statistics.median(factors) if factors else 1.0)


def limit(cell: Cell, results: Results) -> float:
    """Return the seconds after which the cell's processes are ended."""
    return max(_LEAST_LIMIT, _HANGS * estimate(cell, results))


def is_useful(cell: Cell, results: Results) -> bool:
    """Return whether the cell tells something that the rounds so far do not.

    A batch larger than one that ran out of memory does not; one between two powers of two only if it is in the middle
    between the largest that fits and the smallest that does not.
    """
    if cell.section != "memory" or results.of(cell):
        return True
    fits, full = memory_limits(results, cell.policy)
    if full is None:
        return cell.batch in MEMORY_BATCHES[results.scale]
    return cell.batch < full and (cell.batch in MEMORY_BATCHES[results.scale] or 2 * cell.batch == fits + full)


def memory_limits(results: Results, policy: Policy) -> tuple[int, int | None]:
    """Return the largest batch that was trained, 0 if none was, and the smallest that ran out of memory."""
    cells = {turn.cell for turn in results.turns() if turn.cell.section == "memory" and turn.cell.policy == policy}
    full = [cell.batch for cell in cells if any(one.outcome == "out of memory" for one in results.of(cell))]
    return max((cell.batch for cell in cells if results.measured(cell)), default=0), min(full, default=None)


def left_out(results: Results) -> list[Cell]:
    """Return the cells that this machine could measure and for which no time was left."""
    cells = dict.fromkeys(turn.cell for turn in results.turns())
    return [cell for cell in cells if not cell.needs and not results.of(cell) and is_useful(cell, results)]


def goal_rounds(results: Results) -> int:
    """Return the least number of rounds of the cells that decide goals, but for those that failed."""
    first = first_pass(results.machine, results.scale)
    cells = {turn.cell for turn in first if turn.round == GOAL_ROUNDS - 1 and not turn.cell.needs}
    rounds = [results.of(cell) for cell in cells]
    return min((len(own) for own in rounds if all(one.outcome == "measured" for one in own)), default=0)


def guess(cell: Cell, machine: Machine, scale: Scale) -> float:
    """Return the seconds that the cell takes on a machine of this kind, before anything was measured."""
    processes = _PROCESSES.get(cell.section, 1)
    build = _BUILD[scale]
    if cell.xla:
        build += _XLA[cell.model] if scale == "full" else _XLA_SMALL
    start = _START[scale] * (_SHARE if cell.shares_process and machine.kind != "tpu" else 1.0)
    step = _step(machine, scale) * (1.0 if cell.policy == "float32" else _GAIN)
    if cell.section == "memory":
        step *= cell.batch / SIZES[scale][cell.model].batch
    # Of a resumed run both halves, and the straight one.
    trained = steps(cell, scale) * (2 if cell.section == "resume" else 1)
    return processes * (start + build) + (0.0 if cell.section == "overflow" else trained * step)


def _step(machine: Machine, scale: Scale) -> float:
    if scale == "small":
        return _STEP_SMALL
    if machine.kind == "tpu":
        return _STEP_TPU
    capability = machine.capability or 0.0
    return _STEP_FAST if capability in (7.0, 8.0) or capability >= _FAST else _STEP_SLOW
