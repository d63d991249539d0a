"""Search spaces of any size: what is asked of them takes neither time nor memory by their size."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from mptraining_api.sweep.search_space import choices, grid_size, is_choice, max_trials
from mptraining_api.sweep.spec import Parameter
from tests.unit.api.sweep.sweeps import document, sweep

MOST = 2**53
WHERE = "training.optimizer.config.seed"
HUGE = {"path": WHERE, "int": {"low": 1, "high": MOST}}
FEW = {"path": "training.epochs", "values": [1, 2]}
# The address space of a program with Optuna's numpy is below 1 GiB; a list of so many integers is not.
PROGRAM = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
from mptraining_api.resolve.resolve import ClusterSettings
from mptraining_api.sweep.check import sweep_problems
from mptraining_api.sweep.plan import plan
from mptraining_api.sweep.spec import MPTrainingSweep
document = json.loads(sys.argv[1])
problems = [str(each) for each in sweep_problems(document, ClusterSettings()).problems]
found = plan(MPTrainingSweep.parse_document(document), None, {}, 0.0)
print(json.dumps([problems, [each.parameters for each in found.status.trials]]))
"""


@pytest.mark.parametrize(
    ("algorithm", "parameters"),
    [
        ("Random", [HUGE, FEW | {"when": {"path": WHERE, "values": [MOST]}}]),
        ("Grid", [HUGE]),
        ("Grid", [HUGE, FEW | {"when": {"path": WHERE, "values": [2, MOST]}}]),
    ],
)
def test_a_huge_range_of_integers_is_checked_and_searched_within_little_memory(
    algorithm: str, parameters: list[dict[str, Any]]
) -> None:
    searched = document(algorithm={"name": algorithm}, parameters=parameters, trials={"max": 2, "parallel": 2})
    given = [sys.executable, "-c", PROGRAM, json.dumps(searched)]
    done = subprocess.run(given, capture_output=True, text=True, check=True, timeout=60)
    problems, trials = json.loads(done.stdout)
    assert problems == []
    assert len(trials) == 2
    if algorithm == "Grid":
        assert [trial[WHERE] for trial in trials] == [1, 2]


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (1, True),
        (7, True),
        (7.0, True),
        (2, False),
        (10, False),
        (1.5, False),
        (True, False),
        ("1", False),
        ([], False),
    ],
)
def test_a_value_of_a_range_of_integers(value: object, known: bool) -> None:
    options = choices(Parameter.parse({"path": "a", "int": {"low": 1, "high": 9, "step": 3}}))
    assert options is not None
    assert is_choice(value, options) is known


def test_an_empty_list_of_values_ends_the_count() -> None:
    """The mistake is reported with the others, of which one asks for the size of the grid."""
    empty = FEW | {"values": [], "when": {"path": WHERE, "values": [1]}}
    searched = sweep(algorithm={"name": "Grid"}, parameters=[HUGE, empty], trials=None).spec
    assert grid_size(searched.parameters, most=MOST) == 0
    assert max_trials(searched) == 1000
