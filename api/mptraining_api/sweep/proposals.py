"""Parameters of the next trial, by Optuna's samplers in ask and tell.

The study is rebuilt from the trials in their order of numbers, and the sampler is seeded from the sweep's seed and the
trial's number: the same seed and the same finished trials give the same next trial in any process.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mptraining_api.problems import Problem
from mptraining_api.sweep import defaults
from mptraining_api.sweep.search_space import grid, integers, is_active, same_value
from mptraining_api.sweep.spec import Parameter, SweepSpec
from mptraining_api.sweep.status import Trial, TrialState

if TYPE_CHECKING:
    import optuna

# The parameters of trial number len(trials) + 1; None if the search space is exhausted.
Propose = Callable[[SweepSpec, Sequence[Trial]], dict[str, Any] | None]


def propose(spec: SweepSpec, trials: Sequence[Trial]) -> dict[str, Any] | None:
    """Return the parameters of trial number `len(trials) + 1`, by path; None if a grid is exhausted.

    `trials` are all trials so far, in the order of numbers. Raises Problem if Optuna is not installed.
    """
    if spec.algorithm.name == "Grid":
        return next(itertools.islice(grid(spec.parameters), len(trials), None), None)
    with _quiet_optuna():
        study = rebuilt_study(spec, trials)
        study.sampler = sampler(spec, len(trials) + 1)
        return _suggest(study.ask(), spec.parameters)


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of the sampler for one trial, below 2**32."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")


def known_trials(spec: SweepSpec, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials whose values the next proposal may depend on."""
    if spec.algorithm.reproducible:
        oldest = len(trials) + 1 - defaults.parallel(spec)
        return [trial for trial in trials if trial.number <= oldest]
    return list(trials)


def require_optuna(spec: SweepSpec) -> None:
    """Raise Problem if the algorithm of the sweep needs Optuna, and it is not installed."""
    if spec.algorithm.name != "Grid":
        with _quiet_optuna():
            pass


@contextmanager
def _quiet_optuna() -> Iterator[None]:
    """Keep Optuna from logging each rebuilt study. Raises Problem if it is not installed."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise Problem(
            "spec.algorithm.name",
            f"the package {error.name} is not installed",
            expected="Optuna, which proposes the trials",
            next_step="Run pip install 'mptraining[sweep]', or use the algorithm Grid.",
        ) from None
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def sampler(spec: SweepSpec, number: int) -> optuna.samplers.BaseSampler:
    import optuna

    seed = trial_seed(defaults.seed(spec), number)
    match spec.algorithm.name:
        case "TPE":
            return optuna.samplers.TPESampler(seed=seed)
        case "CMA-ES":
            return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        case _:
            return optuna.samplers.RandomSampler(seed=seed)


def rebuilt_study(spec: SweepSpec, trials: Sequence[Trial]) -> optuna.Study:
    """Return a study with the results of the trials; in it, those without a result are running."""
    import optuna

    study = optuna.create_study(direction="maximize" if spec.objective.direction == "Maximize" else "minimize")
    if spec.algorithm.name in ("Random", "Hyperband"):
        # Random values depend on no trial, and a study of a thousand trials takes time to build.
        return study
    known = {trial.number for trial in known_trials(spec, trials)}
    if spec.algorithm.name == "CMA-ES":
        # The state of the evolution is not in the trials: it follows from asking for each of them again.
        for trial in trials:
            study.sampler = sampler(spec, trial.number)
            study.enqueue_trial(_internal(spec.parameters, trial))
            asked = study.ask()
            # Optuna would not sample for a trial with given parameters, and the evolution advances as it samples.
            _ = asked.relative_params
            _suggest(asked, spec.parameters)
            if trial.number in known and trial.state == TrialState.SUCCEEDED:
                study.tell(asked, trial.objective)
            elif trial.number in known and trial.state == TrialState.FAILED:
                study.tell(asked, state=optuna.trial.TrialState.FAIL)
        return study
    for trial in trials:
        study.add_trial(_frozen(spec.parameters, trial, known=trial.number in known))
    return study


def _frozen(parameters: Sequence[Parameter], trial: Trial, *, known: bool) -> optuna.trial.FrozenTrial:
    import optuna

    states = optuna.trial.TrialState
    state = states.RUNNING
    if known and trial.state == TrialState.SUCCEEDED:
        state = states.COMPLETE
    elif known and trial.state == TrialState.FAILED:
        state = states.FAIL
    elif known and trial.values:
        # Also while it trains on in a higher rung: what is known of it is worth telling.
        state = states.PRUNED
    active = [parameter for parameter in parameters if parameter.path in trial.parameters]
    return optuna.trial.create_trial(
        state=state,
        value=trial.objective if state == states.COMPLETE else None,
        params=_internal(active, trial),
        distributions={parameter.path: distribution(parameter) for parameter in active},
        intermediate_values={measured.epoch: measured.value for measured in trial.values or ()},
    )


def _internal(parameters: Sequence[Parameter], trial: Trial) -> dict[str, Any]:
    """Return the trial's parameters as Optuna knows them: a choice by its index."""
    return {
        parameter.path: _to_optuna(parameter, trial.parameters[parameter.path])
        for parameter in parameters
        if parameter.path in trial.parameters
    }


def _to_optuna(parameter: Parameter, value: Any) -> int | float:
    if parameter.values is not None:
        return next(index for index, choice in enumerate(parameter.values) if same_value(choice, value))
    return int(value) if parameter.int_ is not None else float(value)


def distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    """Return the parameter's distribution. The index stands for a value: to Optuna 1 equals true."""
    import optuna

    if parameter.values is not None:
        return optuna.distributions.CategoricalDistribution(range(len(parameter.values)))
    if parameter.int_ is not None:
        numbers = integers(parameter.int_)
        return optuna.distributions.IntDistribution(numbers[0], numbers[-1], step=numbers.step)
    bounds = parameter.log_uniform or parameter.uniform
    assert bounds is not None
    return optuna.distributions.FloatDistribution(bounds.low, bounds.high, log=parameter.log_uniform is not None)


def _suggest(trial: optuna.Trial, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Ask the trial for the value of each active parameter."""
    values: dict[str, Any] = {}
    for parameter in parameters:
        if is_active(parameter, values):
            values[parameter.path] = _suggest_one(trial, parameter)
    return values


def _suggest_one(trial: optuna.Trial, parameter: Parameter) -> Any:
    if parameter.values is not None:
        return parameter.values[trial.suggest_categorical(parameter.path, range(len(parameter.values)))]
    if parameter.int_ is not None:
        numbers = integers(parameter.int_)
        return trial.suggest_int(parameter.path, numbers[0], numbers[-1], step=numbers.step)
    bounds = parameter.log_uniform or parameter.uniform
    assert bounds is not None
    return trial.suggest_float(parameter.path, bounds.low, bounds.high, log=parameter.log_uniform is not None)
