"""Size of a sweep's search and its cost, before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mptraining.display.text import counted, number
from mptraining.sweeps.view import value_text
from mptraining_api.sweep.early_stopping import Rungs, job_epochs, rungs
from mptraining_api.sweep.search_space import integers, max_trials
from mptraining_api.sweep.spec import MPTrainingSweep, Parameter, SweepSpec


@dataclass(frozen=True, slots=True)
class Cost:
    """The most that a sweep can take; it ends earlier at its target or its time limit.

    `rungs` has (epochs, trials that reach them), one entry without early stopping; `epochs` is the sum over all trials,
    `full_epochs` what it were without early stopping; both are None if the job trains for a number of steps.
    """

    trials: int
    rungs: tuple[tuple[int, int], ...] = ()
    epochs: int | None = None
    full_epochs: int | None = None


def explain_search(sweep: MPTrainingSweep, *, parallel: int = 1) -> list[str]:
    """Return the size of the search of a valid sweep and its cost in epochs as text, from the sweep alone."""
    whole, parameters = cost(sweep.spec), sweep.spec.parameters
    width = max(len(parameter.path) for parameter in parameters)
    return [
        f"{sweep.metadata.name}: {sweep.spec.algorithm.name} over {counted(len(parameters), 'parameter')}",
        *(f"  {parameter.path:<{width}}  {parameter_text(parameter)}" for parameter in parameters),
        *(f"  {title:<6}  {text}" for title, text in _rows(whole, parallel)),
    ]


def cost(spec: SweepSpec) -> Cost:
    """Return the cost of a valid sweep."""
    trials, early = max_trials(spec), rungs(spec)
    try:
        full = job_epochs(spec.job)
    except ValueError:
        return Cost(trials)
    reached = _reached(trials, early) if early else ((full, trials),)
    begins = (0, *(end for end, _ in reached))
    epochs = sum((end - begin) * count for begin, (end, count) in zip(begins, reached, strict=False))
    return Cost(trials, reached, epochs, full * trials)


def _reached(trials: int, early: Rungs) -> tuple[tuple[int, int], ...]:
    counts = [trials]
    for _ in early.epochs[1:]:
        counts.append(max(1, counts[-1] // early.reduction))
    return tuple(zip(early.epochs, counts, strict=True))


def parameter_text(parameter: Parameter) -> str:
    """Return the values of a parameter in words."""
    if parameter.values is not None:
        text = ", ".join(map(value_text, parameter.values[:6]))
        text += f", … ({len(parameter.values)} values)" if len(parameter.values) > 6 else ""
    elif parameter.int_ is not None:
        numbers = integers(parameter.int_)
        step = f" in steps of {numbers.step}" if numbers.step != 1 else ""
        text = f"{numbers[0]} to {numbers[-1]}{step} ({len(numbers)} values)"
    else:
        bounds = parameter.log_uniform or parameter.uniform
        assert bounds is not None
        scale = "uniform in the logarithm" if parameter.log_uniform else "uniform"
        text = f"{number(bounds.low)} to {number(bounds.high)}, {scale}"
    when = parameter.when
    return text if when is None else f"{text}, when {when.path} is {' or '.join(map(value_text, when.values))}"


def _rows(whole: Cost, parallel: int) -> Iterator[tuple[str, str]]:
    yield "trials", f"at most {whole.trials:,}, {parallel} at a time"
    if len(whole.rungs) > 1:
        yield "rungs", ", ".join(f"{trials:,} to epoch {epochs}" for epochs, trials in whole.rungs)
    if whole.epochs is None:
        yield "epochs", "unknown: the job trains for a number of steps"
    else:
        saved = f"; {whole.full_epochs:,} without early stopping" if whole.epochs != whole.full_epochs else ""
        yield "epochs", f"about {whole.epochs:,} over all trials{saved}"
