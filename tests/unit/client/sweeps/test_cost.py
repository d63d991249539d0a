"""The size of a search and its cost before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from mptraining.sweeps.cost import cost, lines, measured_from
from mptraining_api.sweep.spec import SweepSpec
from tests.testbed.sweep_files import view_of

SPEC = view_of([]).sweep.spec


def spec_with(**changes: Any) -> SweepSpec:
    return SweepSpec.parse(SPEC.to_document() | changes)


def text(spec: SweepSpec, trials: list[tuple[int, float]] | None = None, *, parallel: int = 1) -> str:
    measured = measured_from(trials or [])
    return "\n".join(lines("flowers", spec, devices=2, device="NVIDIA T4", parallel=parallel, measured=measured))


GRID = [{"path": "a", "values": [1, 2, 3]}, {"path": "b", "int": {"low": 0, "high": 10, "step": 5}}]
CONDITIONAL = [*GRID, {"path": "c", "values": [7, 8], "when": {"path": "a", "values": [1]}}]


@pytest.mark.parametrize(("parameters", "trials"), [(GRID, 9), (CONDITIONAL, 12)])
def test_a_grid_has_as_many_trials_as_combinations(parameters: list[dict[str, Any]], trials: int) -> None:
    found = cost(spec_with(algorithm={"name": "Grid"}, parameters=parameters, trials={}))
    assert (found.trials, found.combinations, found.epochs) == (trials, trials, 4 * trials)


@pytest.mark.parametrize(
    ("digits", "size"), [("abcdefg", "11,000,000 combinations"), ("abcdefghi", "more than 1,000,000,000 combinations")]
)
def test_a_search_with_conditions_is_not_counted_one_by_one(digits: str, size: str) -> None:
    # A billion combinations would take hours. One of the first digit's ten values has two values of `j`.
    many = [{"path": name, "values": list(range(10))} for name in digits]
    found = spec_with(parameters=[*many, {"path": "j", "values": [0, 1], "when": {"path": "a", "values": [1]}}])
    assert f"  search        {size}" in text(found).splitlines()


def test_dependent_parameters_are_counted_up_to_a_limit() -> None:
    chain: list[dict[str, Any]] = [{"path": "a", "values": list(range(10))}]
    for before, name in zip("abcd", "bcde", strict=True):
        when = {"path": before, "values": list(range(10))}
        chain.append({"path": name, "values": list(range(10)), "when": when})
    assert "  search        more than 10,000 combinations" in text(spec_with(parameters=chain)).splitlines()


def test_early_stopping_trains_fewer_epochs() -> None:
    found = cost(spec_with(algorithm={"name": "Hyperband"}, trials={"max": 9}))
    assert found.rungs == ((1, 9), (3, 3), (4, 1))
    assert found.epochs == 9 * 1 + 3 * 2 + 1 * 1
    assert found.full_epochs == 36


def test_the_text_says_unknown_before_a_trial_has_ended() -> None:
    assert text(SPEC).splitlines() == [
        "flowers: TPE over 2 parameters",
        "  training.optimizer.config.learning_rate  0.0001 to 0.1, uniform in the logarithm",
        "  training.batchSize.global                32, 64",
        "  search        no finite number of combinations: 1 range of real numbers",
        "  trials        at most 20, 1 at a time",
        "  epochs        about 80 over all trials",
        "  device hours  unknown until a trial has ended: run the sweep, stop it with Ctrl-C, and ask again",
    ]


def test_measured_trials_give_the_device_hours() -> None:
    # 10 epochs in 450 s: 45 s an epoch, 80 epochs, 2 devices.
    found = text(SPEC, [(4, 180.0), (6, 270.0), (0, 5.0)], parallel=2).splitlines()
    assert found[-2:] == [
        "  device hours  about 2 on 2 x NVIDIA T4 for each trial (2 trials, 45 s for an epoch)",
        "  time          about 30 min 0 s",
    ]
