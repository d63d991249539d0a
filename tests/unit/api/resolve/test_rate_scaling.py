"""The scaling rule of a learning rate, and the advice about it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.resolve.batch_size import scaling_factor, scaling_rule, scaling_suggestion, warmup_steps


def test_the_rule_follows_the_optimizer() -> None:
    rules = {"SGD": "Linear", "Adam": "SquareRoot", "AdamW": "SquareRoot", "RMSprop": "SquareRoot", "Mine": None}
    assert {optimizer: scaling_rule(optimizer) for optimizer in rules} == rules


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_two_changes_are_one(first: int, second: int, third: int) -> None:
    for rule in ("Linear", "SquareRoot"):
        both = scaling_factor(rule, first, second) * scaling_factor(rule, second, third)
        assert math.isclose(both, scaling_factor(rule, first, third))
    assert math.isclose(scaling_factor("SquareRoot", first, second) ** 2, scaling_factor("Linear", first, second))


@pytest.mark.parametrize(
    ("per_epoch", "total", "expected"), [(None, 100, None), (10, None, 50), (10, 1000, 50), (10, 100, 10), (3, 4, 1)]
)
def test_warm_up_is_five_epochs_or_a_tenth(per_epoch: int | None, total: int | None, expected: int | None) -> None:
    assert warmup_steps(per_epoch, total) == expected
    assert "warmupSteps" not in scaling_suggestion("SGD", 256, 64), "a smaller rate needs no warm-up"
    assert "SquareRoot for Adam" in scaling_suggestion(None, 64, 256)
