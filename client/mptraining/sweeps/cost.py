"""Size of a sweep's search and its cost, before it starts."""

from __future__ import annotations

from mptraining.display.text import counted, number
from mptraining.sweeps.view import value_text
from mptraining_api.sweep.early_stopping import job_epochs, rungs
from mptraining_api.sweep.search_space import integers, max_trials
from mptraining_api.sweep.spec import Parameter, SweepSpec


def lines(name: str, spec: SweepSpec) -> list[str]:
    """Return the size of the search of a valid sweep and its cost in epochs as text, from its spec.

    It is the most that the sweep can take: it ends earlier at its target or its time limit.
    """
    trials, parallel = max_trials(spec), spec.trials.parallel if spec.trials else None
    width = max(len(parameter.path) for parameter in spec.parameters)
    texts = [
        f"{name}: {spec.algorithm.name} over {counted(len(spec.parameters), 'parameter')}",
        *(f"  {parameter.path:<{width}}  {parameter_text(parameter)}" for parameter in spec.parameters),
        f"  trials  at most {trials:,}" + (f", {parallel} at a time" if parallel else ""),
    ]
    try:
        full = job_epochs(spec.job)
    except ValueError:
        return [*texts, "  epochs  unknown: the job trains for a number of steps"]
    reached = trials_of_rungs(spec) or ((full, trials),)
    begins = (0, *(end for end, _ in reached))
    epochs = sum((end - begin) * count for begin, (end, count) in zip(begins, reached, strict=False))
    if len(reached) > 1:
        texts.append("  rungs   " + ", ".join(f"{count:,} to epoch {end}" for end, count in reached))
    saved = f"; {full * trials:,} without early stopping" if epochs != full * trials else ""
    return [*texts, f"  epochs  about {epochs:,} over all trials{saved}"]


def trials_of_rungs(spec: SweepSpec) -> tuple[tuple[int, int], ...]:
    """Return (epochs, trials that are expected to reach them) of each rung; empty without early stopping."""
    early = rungs(spec)
    if early is None:
        return ()
    counts = [max_trials(spec)]
    for _ in early.epochs[1:]:
        counts.append(max(1, counts[-1] // early.reduction))
    return tuple(zip(early.epochs, counts, strict=True))


def parameter_text(parameter: Parameter) -> str:
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
