"""The size of a sweep's search and its cost, before it starts. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mptraining.display.text import counted, duration, number
from mptraining.sweeps.view import value_text
from mptraining_api.sweep.early_stopping import Rungs, job_epochs, rungs
from mptraining_api.sweep.search_space import choices, grid_size, integers, max_trials
from mptraining_api.sweep.spec import Parameter, SweepSpec

# Combinations are counted no further.
_MOST_COMBINATIONS = 1_000_000_000
# Those of parameters with conditions are counted one by one.
_MOST_CONDITIONAL = 10_000


@dataclass(frozen=True, slots=True)
class Measured:
    """What earlier trials took: seconds of one epoch, from this many trials, on `devices` devices each."""

    seconds_per_epoch: float
    trials: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The most that a sweep can take; it ends earlier at its target or its time limit.

    `combinations` is None for a search over real numbers; there are more than that if `more_combinations`. `rungs` has
    (epochs, trials that reach them), one entry without early stopping; `epochs` is the sum over all trials,
    `full_epochs` what it were without early stopping; both are None if the job trains for a number of steps.
    """

    trials: int
    combinations: int | None
    more_combinations: bool
    rungs: tuple[tuple[int, int], ...]
    epochs: int | None
    full_epochs: int | None


def cost(spec: SweepSpec) -> Cost:
    """Return the cost of a valid sweep."""
    trials = max_trials(spec)
    combinations, more = _combinations(spec.parameters)
    try:
        whole = job_epochs(spec.job)
    except ValueError:
        return Cost(trials, combinations, more, (), None, None)
    found = rungs(spec)
    reached = _reached(trials, found) if found else ((whole, trials),)
    before = 0
    epochs = 0
    for end, count in reached:
        epochs += (end - before) * count
        before = end
    return Cost(trials, combinations, more, reached, epochs, whole * trials)


def _combinations(parameters: Sequence[Parameter]) -> tuple[int | None, bool]:
    """Return the number of combinations, None for infinitely many, and whether there are more than that."""
    deciding = {each.when.path for each in parameters if each.when}
    conditional = [each for each in parameters if each.when or each.path in deciding]
    others = [each for each in parameters if each not in conditional]
    some, rest = grid_size(conditional, most=_MOST_CONDITIONAL + 1), grid_size(others, most=_MOST_COMBINATIONS + 1)
    if some is None or rest is None:
        return None, False
    counted = min(some, _MOST_CONDITIONAL) * rest
    return min(counted, _MOST_COMBINATIONS), some > _MOST_CONDITIONAL or counted > _MOST_COMBINATIONS


def _reached(trials: int, rungs: Rungs) -> tuple[tuple[int, int], ...]:
    counts = [trials]
    for _ in rungs.epochs[1:]:
        counts.append(max(1, counts[-1] // rungs.reduction))
    return tuple(zip(rungs.epochs, counts, strict=True))


def parameter_text(parameter: Parameter) -> str:
    """Return the values of a parameter in words."""
    if parameter.values is not None:
        shown = ", ".join(value_text(each) for each in parameter.values[:6])
        found = shown + (f", … ({len(parameter.values)} values)" if len(parameter.values) > 6 else "")
    elif parameter.int_ is not None:
        numbers = integers(parameter.int_)
        step = f" in steps of {numbers.step}" if numbers.step != 1 else ""
        found = f"{numbers[0]} to {numbers[-1]}{step} ({len(numbers)} values)"
    else:
        bounds = parameter.log_uniform or parameter.uniform
        assert bounds is not None
        scale = ", uniform in the logarithm" if parameter.log_uniform else ", uniform"
        found = f"{number(bounds.low)} to {number(bounds.high)}{scale}"
    when = parameter.when
    return found if when is None else f"{found}, when {when.path} is {' or '.join(map(value_text, when.values))}"


def lines(
    name: str, spec: SweepSpec, *, devices: int, device: str, parallel: int, measured: Measured | None
) -> Iterator[str]:
    """Return the text of `mptj sweep FILE --explain`; a trial uses `devices` devices of the name `device`."""
    found = cost(spec)
    yield f"{name}: {spec.algorithm.name} over {counted(len(spec.parameters), 'parameter')}"
    wide = max(len(each.path) for each in spec.parameters)
    for each in spec.parameters:
        yield f"  {each.path:<{wide}}  {parameter_text(each)}"
    yield from _rows(_size_rows(spec, found, parallel))
    yield from _rows(_time_rows(found, devices, device, parallel, measured))


def _size_rows(spec: SweepSpec, found: Cost, parallel: int) -> Iterator[tuple[str, str]]:
    if found.combinations is None:
        real = sum(choices(each) is None for each in spec.parameters)
        yield "search", f"no finite number of combinations: {counted(real, 'range')} of real numbers"
    else:
        more = "more than " if found.more_combinations else ""
        yield "search", f"{more}{counted(found.combinations, 'combination')}"
    yield "trials", f"at most {found.trials:,}, {parallel} at a time"
    if len(found.rungs) > 1:
        yield "rungs", ", ".join(f"{trials:,} to epoch {epochs}" for epochs, trials in found.rungs)
    if found.epochs is not None and found.full_epochs is not None:
        saved = f"; {found.full_epochs:,} without early stopping" if found.epochs != found.full_epochs else ""
        yield "epochs", f"about {found.epochs:,} over all trials{saved}"


def _time_rows(
    found: Cost, devices: int, device: str, parallel: int, measured: Measured | None
) -> Iterator[tuple[str, str]]:
    if found.epochs is None:
        yield "device hours", "unknown: the job trains for a number of steps, not of epochs"
    elif measured is None:
        yield "device hours", "unknown until a trial has ended: run the sweep, stop it with Ctrl-C, and ask again"
    else:
        seconds = measured.seconds_per_epoch * found.epochs
        basis = f"{counted(measured.trials, 'trial')}, {duration(measured.seconds_per_epoch)} for an epoch"
        hours = number(seconds * devices / 3600)
        yield "device hours", f"about {hours} on {devices} x {device} for each trial ({basis})"
        yield "time", f"about {duration(seconds / parallel)}"


def _rows(rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    for title, text in rows:
        yield f"  {title:<12}  {text}"


def measured_from(trials: Sequence[tuple[int, float]]) -> Measured | None:
    """Return what trials took, each as (epochs, seconds); None without any."""
    known = [(epochs, seconds) for epochs, seconds in trials if epochs > 0 and seconds > 0]
    if not known:
        return None
    return Measured(sum(seconds for _, seconds in known) / sum(epochs for epochs, _ in known), len(known))
