"""Size of a sweep's search and its cost, before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mptraining.display.text import counted, duration, number
from mptraining.local.run import machine_settings, this_machine
from mptraining.sweeps.view import value_text
from mptraining_api.resolve.resolve import resolve
from mptraining_api.spec import MPTrainingJob
from mptraining_api.sweep.check import first_values
from mptraining_api.sweep.early_stopping import Rungs, job_epochs, rungs
from mptraining_api.sweep.search_space import integers, max_trials
from mptraining_api.sweep.spec import MPTrainingSweep, Parameter, SweepSpec
from mptraining_api.sweep.status import Trial, TrialState
from mptraining_api.sweep.trial_job import job_document


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


def explain_search(
    sweep: MPTrainingSweep, *, parallel: int = 1, measured: Sequence[tuple[int, float]] = ()
) -> list[str]:
    """Return the size of the search of a valid sweep and its cost as text, from the sweep alone.

    `measured` has (epochs, seconds) of trials that have ended.
    """
    # A field that is searched may be absent in the job.
    values = first_values(sweep.spec.parameters, {})
    trial = Trial(number=1, job=f"{sweep.metadata.name}-1", state=TrialState.PROPOSED, parameters=values)
    parsed = MPTrainingJob.parse(job_document(sweep, trial))
    job = resolve(parsed, machine_settings(this_machine())(parsed.spec.accelerator.type))
    devices = job.workers if job.accelerator.kind == "cpu" else job.workers * job.accelerator.count_per_worker
    whole = cost(sweep.spec)
    rows = [
        *_size_rows(whole, parallel),
        *_time_rows(whole.epochs, devices, job.accelerator.title, parallel, measured),
    ]
    parameters = sweep.spec.parameters
    width = max(len(parameter.path) for parameter in parameters)
    return [
        f"{sweep.metadata.name}: {sweep.spec.algorithm.name} over {counted(len(parameters), 'parameter')}",
        *(f"  {parameter.path:<{width}}  {parameter_text(parameter)}" for parameter in parameters),
        *(f"  {title:<12}  {text}" for title, text in rows),
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


def _size_rows(whole: Cost, parallel: int) -> Iterator[tuple[str, str]]:
    yield "trials", f"at most {whole.trials:,}, {parallel} at a time"
    if len(whole.rungs) > 1:
        yield "rungs", ", ".join(f"{trials:,} to epoch {epochs}" for epochs, trials in whole.rungs)
    if whole.epochs is not None:
        saved = f"; {whole.full_epochs:,} without early stopping" if whole.epochs != whole.full_epochs else ""
        yield "epochs", f"about {whole.epochs:,} over all trials{saved}"


def _time_rows(
    epochs: int | None, devices: int, device: str, parallel: int, measured: Sequence[tuple[int, float]]
) -> Iterator[tuple[str, str]]:
    ended = [(trained, seconds) for trained, seconds in measured if trained > 0 and seconds > 0]
    if epochs is None:
        yield "device hours", "unknown: the job trains for a number of steps, not of epochs"
    elif not ended:
        yield "device hours", "unknown until a trial has ended: run the sweep, stop it with Ctrl-C, and ask again"
    else:
        for_epoch = sum(seconds for _, seconds in ended) / sum(trained for trained, _ in ended)
        hours = number(for_epoch * epochs * devices / 3600)
        basis = f"{counted(len(ended), 'trial')}, {duration(for_epoch)} for an epoch"
        yield "device hours", f"about {hours} on {devices} x {device} for each trial ({basis})"
        yield "time", f"about {duration(for_epoch * epochs / parallel)}"
