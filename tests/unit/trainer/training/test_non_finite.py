"""The conditions under which an execution's numbers need a recovery, and under which skipped steps are still normal."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from mptraining_records.reading.order import Position
from mptraining_trainer.loop.steps_per_execution import Execution
from mptraining_trainer.numerics.recovery import NonFinite, PrecisionState
from mptraining_trainer.training.non_finite import (
    NOT_FINITE,
    PERSISTENT,
    NonFiniteMonitor,
    is_persistent,
    warnings_of_success,
)

FINE = Execution(
    applied_steps=10, loss=0.5, loss_sum=5.0, loss_weight=10.0, gradient_norm=1.0, finite_steps=10, metrics={},
    loss_scale=None, skipped_steps=0, skipped_in_a_row=0, stop_requests=0, step_seconds=0.1, waited_seconds=None,
)  # fmt: skip
HERE = Position(seed=0, epoch=0, examples=0, fingerprint="f")
FLOAT32 = PrecisionState("float32", "float32")
CHECKED = replace(FLOAT32, checked=True, checked_until=40)
FLOAT16 = PrecisionState("mixed_float16", "mixed_float16")


class Notices:
    def __init__(self) -> None:
        self.topics: list[str] = []

    def __call__(self, topic: str, message: str, **more: Any) -> None:
        self.topics.append(topic)


def position(steps: int) -> Position:
    return replace(HERE, examples=32 * steps)


def incident(precision_state: PrecisionState, execution: Execution, step: int = 50, **more: Any) -> NonFinite | None:
    """Return the incident of ten steps up to `step`, or None."""
    available = more.pop("available", ("float32",))
    try:
        NonFiniteMonitor(precision_state, available, Notices(), **more).check(execution, step - 10, 10, position)
    except NonFinite as found:
        return found
    return None


def outcome(precision_state: PrecisionState, execution: Execution, step: int = 50, **more: Any) -> str | None:
    found = incident(precision_state, execution, step, **more)
    return found and found.found


def test_the_first_bad_step_and_its_place_in_the_data_are_known() -> None:
    found = incident(FLOAT32, replace(FINE, finite_steps=7, loss=math.nan, gradient_norm=math.nan))
    assert found is not None
    assert (found.step, found.position) == (48, position(7))
    last = incident(FLOAT32, replace(FINE, loss=math.inf))
    assert last is not None
    assert (last.step, last.position) == (50, position(9))


@pytest.mark.parametrize(
    ("precision_state", "change", "step", "expected"),
    [
        (FLOAT32, {}, 50, None),
        (FLOAT32, {"loss": math.nan}, 50, "the loss is nan"),
        (FLOAT32, {"loss": math.inf}, 50, "the loss is inf"),
        (FLOAT32, {"finite_steps": 9, "gradient_norm": math.inf}, 50, "the norm of the gradients is infinite"),
        (FLOAT32, {"finite_steps": 3}, 50, "the norm of the gradients is infinite"),
        (FLOAT32, {"non_finite_workers": 1}, 50, "the weights are no longer finite"),
        (CHECKED, {"non_finite_workers": 1}, 50, "the weights are no longer finite"),
        (CHECKED, {"gradient_norm": math.nan, "skipped_steps": 1, "skipped_in_a_row": 1}, 50, None),
        (CHECKED, {"skipped_steps": PERSISTENT, "skipped_in_a_row": PERSISTENT}, 50, "100 steps in a row"),
        (FLOAT16, {"loss_scale": 512.0, "skipped_steps": 120, "skipped_in_a_row": 120}, 50, None),
        (FLOAT16, {"loss_scale": 1.0, "skipped_steps": 3, "skipped_in_a_row": 3}, 50, None),
        (FLOAT16, {"loss_scale": 1.0, "skipped_steps": 120, "skipped_in_a_row": 120}, 50, "at its floor 1"),
        (FLOAT16, {"loss_scale": 1.0, "applied_steps": 0, "loss": math.nan}, 50, None),
    ],
)
def test_conditions_for_a_recovery(
    precision_state: PrecisionState, change: dict[str, Any], step: int, expected: str | None
) -> None:
    found = outcome(precision_state, replace(FINE, **change), step)
    assert found is None if expected is None else expected in (found or "")


def test_a_fixed_scale_that_is_too_high_is_a_divergence() -> None:
    """It never falls: without this check, a run would skip every step to its end and succeed."""
    stuck = replace(FINE, loss_scale=1024.0, skipped_steps=PERSISTENT, skipped_in_a_row=PERSISTENT)
    assert "with the loss scale at a fixed 1024" in (outcome(FLOAT16, stuck, dynamic=False) or "")
    assert outcome(FLOAT16, stuck, dynamic=True) is None


def test_again_is_after_the_step_at_which_it_happened() -> None:
    bad = replace(FINE, skipped_steps=1, skipped_in_a_row=1)
    precision_state = PrecisionState("mixed_bfloat16", "mixed_bfloat16", checked=True, checked_until=40)
    both = ("float32", "mixed_bfloat16")
    assert outcome(precision_state, bad, 40, available=both) is None
    assert "again" in (outcome(precision_state, bad, 41, available=both) or "")
    assert outcome(CHECKED, bad, 41, available=both) is None, "no safer policy: bad batches go on being left out"


def test_executions_end_where_it_happened_and_the_search_runs_step_by_step() -> None:
    watch = NonFiniteMonitor(CHECKED, (), Notices())
    assert [watch.limit_steps(step, 16) for step in (0, 30, 39, 40, 41)] == [16, 10, 1, 16, 16]
    assert NonFiniteMonitor(CHECKED, (), Notices(), locate=True).limit_steps(0, 16) == 1
    assert NonFiniteMonitor(FLOAT32, (), Notices()).limit_steps(0, 16) == 16


def test_the_search_ends_with_the_first_bad_step_or_its_expected_place() -> None:
    bad = replace(FINE, skipped_steps=1, skipped_in_a_row=1)
    assert "infinite or NaN" in (outcome(CHECKED, bad, 12, locate=True) or "")
    assert outcome(CHECKED, FINE, 39, locate=True) is None
    assert "stayed finite" in (outcome(CHECKED, FINE, 40, locate=True) or "")


def test_steps_that_were_skipped_before_this_session_do_not_count() -> None:
    assert outcome(CHECKED, replace(FINE, skipped_steps=500), skipped=500) is None


@pytest.mark.parametrize(
    ("skipped", "steps", "in_a_row", "expected"),
    [
        (99, 100, 99, False),
        (100, 100, 100, True),
        (100, 1000, 100, True),
        (100, 200, 1, True),
        (100, 201, 1, False),
        (99, 150, 0, False),
    ],
)
def test_when_most_steps_are_skipped(skipped: int, steps: int, in_a_row: int, expected: bool) -> None:
    assert is_persistent(skipped=skipped, steps=steps, in_a_row=in_a_row) is expected


def test_a_skipped_batch_is_reported_once_and_frequent_overflow_too() -> None:
    told = Notices()
    watch = NonFiniteMonitor(CHECKED, (), told)
    for count in (1, 2, 3):
        watch.check(replace(FINE, skipped_steps=count), 50, 10, position)
    assert told.topics == ["BatchLeftOut"]
    told = Notices()
    watch = NonFiniteMonitor(FLOAT16, (), told)
    for tens in range(1, 11):
        watch.check(replace(FINE, loss_scale=64.0, skipped_steps=2 * tens), 10 * tens, 10, position)
    assert told.topics == ["StepsSkipped"]


@pytest.mark.parametrize(("skipped", "ends"), [(0, False), (10, False), (11, True)])
def test_a_training_that_ends_has_applied_half_of_its_steps(skipped: int, ends: bool) -> None:
    execution = replace(FINE, loss_scale=64.0, skipped_steps=skipped)
    found = outcome(FLOAT16, execution, step=20, total_steps=20)
    assert found == (f"11 of 20 steps were skipped under mixed_float16: {NOT_FINITE}" if ends else None)
    assert outcome(FLOAT16, execution, step=20, total_steps=21) is None


def test_a_success_says_what_it_lacks() -> None:
    assert warnings_of_success({"loss": 0.5}, skipped=2, steps=20) == ()
    assert warnings_of_success({"loss": 0.5, "val_loss": math.nan, "val_auc": math.inf}, skipped=3, steps=20) == (
        f"3 of 20 steps were skipped: {NOT_FINITE}",
        "val_loss, val_auc at the end: NaN or infinite",
    )
