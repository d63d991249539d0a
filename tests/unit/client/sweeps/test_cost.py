"""The size of a search and its cost before it starts."""

from __future__ import annotations

from typing import Any

from mptraining.sweeps.cost import cost, explain_search
from mptraining_api.sweep.spec import SweepSpec
from tests.testbed.sweep_files import view_of

SWEEP = view_of([]).sweep


def spec_with(**changes: Any) -> SweepSpec:
    return SweepSpec.parse(SWEEP.spec.to_document() | changes)


def test_a_grid_has_as_many_trials_as_combinations() -> None:
    grid = [
        {"path": "a", "values": [1, 2, 3]},
        {"path": "b", "int": {"low": 0, "high": 10, "step": 5}},
        {"path": "c", "values": [7, 8], "when": {"path": "a", "values": [1]}},
    ]
    whole = cost(spec_with(algorithm={"name": "Grid"}, parameters=grid, trials={}))
    assert (whole.trials, whole.epochs) == (12, 4 * 12)


def test_early_stopping_trains_fewer_epochs() -> None:
    whole = cost(spec_with(algorithm={"name": "Hyperband"}, trials={"max": 9}))
    assert whole.rungs == ((1, 9), (3, 3), (4, 1))
    assert whole.epochs == 9 * 1 + 3 * 2 + 1 * 1
    assert whole.full_epochs == 36


def test_the_text_has_the_time_when_trials_have_ended() -> None:
    known = [
        "flowers: TPE over 2 parameters",
        "  training.optimizer.config.learning_rate  0.0001 to 0.1, uniform in the logarithm",
        "  training.batchSize.global                32, 64",
        "  trials        at most 20, 2 at a time",
        "  epochs        about 80 over all trials",
    ]
    unknown = "  device hours  unknown until a trial has ended: run the sweep, stop it with Ctrl-C, and ask again"
    assert explain_search(SWEEP, parallel=2) == [*known, unknown]
    job = SWEEP.spec.job | {"workers": 2}
    sweep = SWEEP.model_copy(update={"spec": SWEEP.spec.model_copy(update={"job": job})})
    # 10 epochs in 450 s: 45 s an epoch, 80 epochs, 2 devices.
    assert explain_search(sweep, parallel=2, measured=[(4, 180.0), (6, 270.0), (0, 5.0)]) == [
        *known,
        "  device hours  about 2 on 2 x CPU for each trial (2 trials, 45 s for an epoch)",
        "  time          about 30 min 0 s",
    ]
