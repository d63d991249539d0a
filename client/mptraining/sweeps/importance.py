"""Importance of a sweep's parameters, by Optuna's PED-ANOVA over the trials that have trained to their end."""

from __future__ import annotations

import warnings

from mptraining.sweeps.view import SweepView
from mptraining_api.problems import InvalidProgram
from mptraining_api.sweep.proposals import rebuilt_study
from mptraining_api.sweep.status import TrialState

# With fewer trials the figures are noise.
FEWEST = 8


def importance(view: SweepView) -> dict[str, float]:
    """Return the share of each parameter, by its path, the largest first; the shares add up to 1.

    A share is how much the parameter decides whether a trial is among the best. Empty with fewer than `FEWEST`
    succeeded trials. Raises InvalidProgram if Optuna is not installed.
    """
    if sum(trial.state is TrialState.SUCCEEDED for trial in view.trials) < FEWEST:
        return {}
    try:
        import optuna
    except ModuleNotFoundError:
        step = "Run pip install 'mptraining[sweep]'."
        raise InvalidProgram("importance", "Optuna is not installed", next_step=step) from None
    # Only a study of TPE gets every trial unchanged; the sampler has no influence on the importance.
    algorithm = view.sweep.spec.algorithm.model_copy(update={"name": "TPE", "reproducible": None})
    spec = view.sweep.spec.model_copy(update={"algorithm": algorithm})
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return dict(optuna.importance.get_param_importances(rebuilt_study(spec, view.trials)))
    finally:
        optuna.logging.set_verbosity(verbosity)
