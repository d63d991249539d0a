"""Proposals against plain Optuna: an ask-and-tell study that lives as long as its search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import optuna
import pytest

from mptraining_api.sweep.proposals import propose, trial_seed
from mptraining_api.sweep.spec import SweepSpec
from mptraining_api.sweep.status import RungValue, Trial, TrialState
from tests.unit.api.sweep.sweeps import sweep

RATE, WIDTH, DROPOUT, POLICY = "training.rate", "program.width", "program.dropout", "precision.policy"
PARAMETERS: list[dict[str, Any]] = [
    {"path": RATE, "logUniform": {"low": 1e-5, "high": 1e-1}},
    # 512 is no multiple of 48 above 32: Optuna would warn.
    {"path": WIDTH, "int": {"low": 32, "high": 512, "step": 48}},
    {"path": DROPOUT, "uniform": {"low": 0, "high": 0.5}},
    {"path": POLICY, "values": ["float32", "mixed_bfloat16", True, 1]},
]
POLICIES = PARAMETERS[3]["values"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(optuna.logging.INFO)


def spec(name: str, **more: Any) -> SweepSpec:
    return sweep(algorithm={"name": name, "seed": 5}, **{"parameters": PARAMETERS} | more).spec


def value(parameters: dict[str, Any]) -> float:
    return -abs(math.log10(parameters[RATE]) + 3) - abs(parameters[WIDTH] - 224) / 200 - parameters[DROPOUT]


SAMPLERS: dict[str, Any] = {
    "Random": optuna.samplers.RandomSampler,
    "TPE": optuna.samplers.TPESampler,
    "CMA-ES": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
}


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_the_rebuilt_study_proposes_what_a_living_one_does(name: str) -> None:
    """Some trials fail, some are stopped after a rung. CMA-ES, which needs whole values, gets none that is stopped."""
    study = optuna.create_study(direction="maximize")
    trials: list[Trial] = []
    for number in range(1, 41):
        study.sampler = SAMPLERS[name](seed=trial_seed(5, number))
        asked = study.ask()
        theirs = {
            RATE: asked.suggest_float(RATE, 1e-5, 1e-1, log=True),
            WIDTH: asked.suggest_int(WIDTH, 32, 512 - (512 - 32) % 48, step=48),
            DROPOUT: asked.suggest_float(DROPOUT, 0, 0.5),
            POLICY: POLICIES[asked.suggest_categorical(POLICY, range(4))],
        }
        ours = propose(spec(name), trials)
        assert ours == theirs
        trial = Trial(number=number, job=f"digits-{number}", state=TrialState.SUCCEEDED, parameters=theirs)
        if number % 7 == 0:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            trials.append(trial.model_copy(update={"state": TrialState.FAILED}))
        elif number % 3 == 0 and name != "CMA-ES":
            asked.report(value(theirs) - 1, 3)
            study.tell(asked, state=optuna.trial.TrialState.PRUNED)
            values = [RungValue(epoch=3, value=value(theirs) - 1)]
            update = {"state": TrialState.STOPPED, "values": values, "objective": value(theirs) - 1}
            trials.append(trial.model_copy(update=update))
        else:
            study.tell(asked, value(theirs))
            trials.append(trial.model_copy(update={"objective": value(theirs)}))
        # As the API server stores it.
        trials[-1] = Trial.read(trials[-1].to_json())


def test_the_seed_decides_and_every_trial_has_its_own() -> None:
    one, other = (
        [propose(sweep(algorithm={"name": "Random", "seed": seed}, parameters=PARAMETERS).spec, told(number))
         for number in range(6)]
        for seed in (1, 2)
    )  # fmt: skip
    assert all(first != second for first, second in itertools.combinations([*one, *other], 2))
    assert one[3] == propose(sweep(algorithm={"name": "Random", "seed": 1}, parameters=PARAMETERS).spec, told(3))


def told(number: int) -> list[Trial]:
    parameters = {RATE: 0.1, WIDTH: 32, DROPOUT: 0.0, POLICY: "float32"}
    return [
        Trial(number=index, job=f"a-{index}", state=TrialState.SUCCEEDED, parameters=parameters, objective=0.5)
        for index in range(1, number + 1)
    ]


def test_hyperband_proposes_at_random() -> None:
    assert propose(spec("Hyperband"), told(4)) == propose(spec("Random"), told(4))


def test_trials_that_run_have_no_say() -> None:
    running = told(12)[-1].model_copy(update={"state": TrialState.RUNNING, "objective": None})
    other = running.model_copy(update={"parameters": running.parameters | {RATE: 0.00002}})
    assert propose(spec("TPE"), [*told(11), running]) == propose(spec("TPE"), [*told(11), other])


def test_a_reproducible_search_uses_the_trials_that_must_have_ended() -> None:
    """With three at a time, trial 15 is proposed from the first 12."""
    searched = sweep(
        algorithm={"name": "TPE", "reproducible": True}, parameters=PARAMETERS, trials={"max": 50, "parallel": 3}
    ).spec
    late = [each.model_copy(update={"objective": 0.5 + each.number / 100}) for each in told(14)]
    changed = [*late[:12], *(each.model_copy(update={"objective": 0.0}) for each in late[12:])]
    assert propose(searched, late) == propose(searched, changed)
    earlier = [
        late[0].model_copy(update={"objective": 9.0, "parameters": late[0].parameters | {WIDTH: 512}}),
        *late[1:],
    ]
    assert propose(searched, late) != propose(searched, earlier)


def test_a_conditional_parameter_is_proposed_where_its_condition_holds() -> None:
    parameters = [
        {"path": POLICY, "values": ["float32", "mixed_float16"]},
        {
            "path": "precision.lossScale.value",
            "values": [1.0, 1024.0],
            "when": {"path": POLICY, "values": ["mixed_float16"]},
        },
    ]
    for name in ("Random", "TPE", "CMA-ES"):
        searched = spec(name, parameters=[*parameters, *PARAMETERS[:2]])
        trials: list[Trial] = []
        for number in range(1, 14):
            found = propose(searched, trials)
            assert ("precision.lossScale.value" in found) == (found[POLICY] == "mixed_float16")
            trials.append(
                told(1)[0].model_copy(update={"number": number, "parameters": found, "objective": number % 5})
            )
        assert len({trial.parameters[POLICY] for trial in trials}) == 2


def test_a_grid_is_every_combination_and_ends() -> None:
    searched = spec(
        "Grid", parameters=[{"path": "a", "values": [1, 2]}, {"path": "b", "int": {"low": 0, "high": 4, "step": 2}}]
    )
    found = [propose(searched, told(number)) for number in range(7)]
    assert found[:6] == [{"a": a, "b": b} for a, b in itertools.product([1, 2], [0, 2, 4])]
    assert found[6] is None
