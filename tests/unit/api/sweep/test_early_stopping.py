"""Rungs, and the trials that continue, against Optuna's own rule of asynchronous successive halving."""

from __future__ import annotations

import random

import pytest
from optuna.pruners._successive_halving import _is_trial_promotable_to_next_rung
from optuna.study import StudyDirection

from mptraining_api.sweep.early_stopping import Rungs, promotable, rung_epochs, rungs
from mptraining_api.sweep.status import RungValue, Trial, TrialState
from tests.unit.api.sweep.sweeps import sweep


@pytest.mark.parametrize(
    ("minimum", "maximum", "reduction", "epochs"),
    [(1, 9, 3, (1, 3, 9)), (1, 10, 3, (1, 3, 9, 10)), (2, 20, 4, (2, 8, 20)), (5, 5, 3, (5,)), (1, 1, 2, (1,))],
)
def test_rungs_multiply_up_to_the_jobs_epochs(
    minimum: int, maximum: int, reduction: int, epochs: tuple[int, ...]
) -> None:
    assert rung_epochs(minimum, maximum, reduction) == epochs


def test_hyperband_has_rungs_by_itself_and_others_where_they_are_asked_for() -> None:
    assert rungs(sweep().spec) is None
    assert rungs(sweep(algorithm={"name": "Hyperband"}).spec) == Rungs((1, 3, 9), 3, maximize=True)
    stop = {"earlyStopping": {"rule": "Hyperband", "minEpochs": 2, "reduction": 2}}
    assert rungs(sweep(algorithm={"name": "TPE"}, stop=stop).spec) == Rungs((2, 4, 8, 9), 2, maximize=True)


def ended(values: list[float], epoch: int = 1) -> list[Trial]:
    return [
        Trial(number=number, job=f"a-{number}", state=TrialState.STOPPED, parameters={},
              values=[RungValue(epoch=epoch, value=value)])
        for number, value in enumerate(values, start=1)
    ]  # fmt: skip


def promoted(trials: list[Trial], rungs: Rungs, *, at_least: int = 0) -> set[int]:
    """Return the numbers of the trials that continue, one after the other, from rung 0."""
    found: set[int] = set()
    trials = list(trials)
    while (trial := promotable(trials, rungs, at_least=at_least)) is not None:
        assert trial.number not in found
        found.add(trial.number)
        trials[trial.number - 1] = trial.model_copy(update={"rung": 1, "state": TrialState.RUNNING})
    return found


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize("reduction", [2, 3, 4])
def test_optuna_promotes_the_same_trials(reduction: int, maximize: bool) -> None:
    direction = StudyDirection.MAXIMIZE if maximize else StudyDirection.MINIMIZE
    chance = random.Random(reduction)
    for count in range(1, 25):
        values = [chance.random() for _ in range(count)]
        # Optuna's rule promotes the best of fewer than `reduction` trials, because it cannot continue one later.
        at_least = 1 if count < reduction else 0
        theirs = {
            number
            for number, value in enumerate(values, start=1)
            if _is_trial_promotable_to_next_rung(value, list(values), reduction, direction)
        }
        assert promoted(ended(values), Rungs((1, 3), reduction, maximize), at_least=at_least) == theirs


def test_a_higher_rung_comes_first() -> None:
    rungs = Rungs((1, 3, 9), 3, maximize=True)
    low, high = ended([0.1, 0.2, 0.9]), ended([0.5, 0.4, 0.3], epoch=3)
    third = [each.model_copy(update={"number": number, "rung": 1}) for number, each in enumerate(high, start=4)]
    found = promotable([*low, *third], rungs)
    assert found.number == 4


def test_a_trial_continues_later_when_others_turn_out_worse() -> None:
    rungs = Rungs((1, 3), 3, maximize=True)
    assert promotable(ended([0.9, 0.8]), rungs) is None
    assert promoted(ended([0.9, 0.8, 0.1]), rungs) == {1}
    assert promoted(ended([0.9, 0.8, 0.1, 0.2, 0.3, 0.4]), rungs) == {1, 2}
    assert promoted(ended([0.5, 0.5, 0.5]), rungs) == {1}, "of equal values the first"
    first, *others = ended([0.9, 0.2, 0.1])
    failed = first.model_copy(update={"state": TrialState.FAILED, "rung": 1})
    assert promotable([failed, *others], rungs) is None, "a failed trial keeps its place"
