"""Exit code, budget and reason agree."""

from __future__ import annotations

import pytest

from mptraining_api import problems
from mptraining_api.outcomes import OUTCOMES, PROGRAM_FAILED, Budget, Outcome, by_exit_code, by_reason


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.reason)
def test_a_reason_finds_its_outcome(outcome: Outcome) -> None:
    assert by_reason(outcome.reason) == outcome
    assert by_exit_code(outcome.exit_code).budget == outcome.budget, "one exit code, one budget"


def test_an_exit_code_is_charged_to_one_budget() -> None:
    budgets = {
        0: Budget.NONE, 1: Budget.BACKOFF_LIMIT, 2: Budget.NEVER_RETRY, 3: Budget.NEVER_RETRY,
        75: Budget.INFRASTRUCTURE_RETRIES, 76: Budget.UNDECIDED, 137: Budget.BACKOFF_LIMIT, -9: Budget.BACKOFF_LIMIT,
    }  # fmt: skip
    assert {code: by_exit_code(code).budget for code in budgets} == budgets
    assert by_reason("MeteorStrike") == PROGRAM_FAILED, "a reason of a newer version"


def test_every_problem_has_an_outcome() -> None:
    for problem in problems.Problem.__subclasses__():
        assert by_reason(problem.reason).reason == problem.reason
