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


def test_the_text_of_a_search() -> None:
    sweep = SWEEP.model_copy(update={"spec": spec_with(algorithm={"name": "Hyperband"}, trials={"max": 9})})
    assert explain_search(sweep, parallel=2) == [
        "flowers: Hyperband over 2 parameters",
        "  training.optimizer.config.learning_rate  0.0001 to 0.1, uniform in the logarithm",
        "  training.batchSize.global                32, 64",
        "  trials  at most 9, 2 at a time",
        "  rungs   9 to epoch 1, 3 to epoch 3, 1 to epoch 4",
        "  epochs  about 16 over all trials; 36 without early stopping",
    ]
