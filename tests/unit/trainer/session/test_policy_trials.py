"""The policy that Measure selects, by the results of its trials."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.events import Trial
from mptraining_trainer.session.policy_trials import choose_policy, describe_trials, evaluate_trial

FLOAT32 = evaluate_trial("float32", 0.010, [2.0, 1.0], [2.0, 1.0])


@pytest.mark.parametrize(
    ("seconds", "losses", "expected"),
    [
        (0.005, [2.0, 1.0], "mixed_bfloat16"),
        (0.005, [2.01, 1.02], "mixed_bfloat16"),
        (0.0098, [2.0, 1.0], "float32"),  # less than the margin does not justify 16 bits
        (0.020, [2.0, 1.0], "float32"),
        (0.005, [2.0, 1.4], "float32"),  # a training with other results
        (0.005, [2.0, math.nan], "float32"),
        (0.005, [], "float32"),  # no step could be applied
    ],
)
def test_the_fastest_that_agrees(seconds: float, losses: list[float], expected: str) -> None:
    trial = evaluate_trial("mixed_bfloat16", seconds, losses, [2.0, 1.0])
    assert choose_policy([FLOAT32, trial]) == expected
    # The record must be valid JSON for any loss.
    assert Trial.read(trial.to_json()) == trial


def test_a_step_that_loss_scaling_skipped_is_compared_with_none() -> None:
    """Two steps were skipped, then the losses equal float32's first ones: the weights were the initial ones."""
    assert evaluate_trial("mixed_float16", 0.005, [2.0, 1.0], [2.0, 1.0, 0.5, 0.25]).agrees


@given(st.lists(st.tuples(st.floats(1e-6, 10), st.booleans()), max_size=2))
def test_no_policy_that_is_slower_than_float32_or_disagrees_is_selected(others: list[tuple[float, bool]]) -> None:
    names = ("mixed_bfloat16", "mixed_float16")
    trials = [
        Trial(policy=name, step_seconds=seconds, loss=1.0, agrees=agrees)
        for name, (seconds, agrees) in zip(names, others, strict=False)
    ]
    taken = next(trial for trial in [FLOAT32, *trials] if trial.policy == choose_policy([FLOAT32, *trials]))
    assert taken.agrees
    assert taken.step_seconds <= FLOAT32.step_seconds
    assert all(taken.step_seconds <= trial.step_seconds for trial in trials if trial.agrees) or taken is FLOAT32


def test_the_evidence_in_words() -> None:
    slow = evaluate_trial("mixed_bfloat16", 0.005, [3.0], [2.0])
    assert describe_trials([FLOAT32, slow]) == (
        "float32 10 ms a step (loss 1.5), mixed_bfloat16 5 ms a step (loss 3, more than 5% from float32)"
    )
    assert "nothing was timed" in describe_trials([])
