"""The number of fused steps; boundaries are met exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_trainer.step.steps_per_execution import LIMIT, Boundaries, StepsPerExecution

every = st.none() | st.integers(1, 50)


@given(st.none() | st.integers(1, 5000), st.lists(st.floats(1e-300, 30.0), max_size=20))
def test_a_call_never_takes_more_than_about_a_second(named: int | None, step_seconds: list[float]) -> None:
    """By the last measurement; a step that is slow alone is never fused with another."""
    pace = StepsPerExecution.begin(named)
    assert pace.steps == 1, "nothing is known of a step before the first"
    for seconds in step_seconds:
        before, pace = pace, pace.adjust(seconds)
        assert 1 <= pace.steps <= min(named or LIMIT, before.steps * 8), "few steps are a noisy measurement"
        assert pace.steps == 1 or pace.steps * seconds <= 1.0


def test_the_pace_settles_at_a_quarter_of_a_second() -> None:
    pace = StepsPerExecution.begin(None)
    for _ in range(10):
        pace = pace.adjust(0.001)
    assert pace.steps == 250


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_without_a_measurement_the_pace_is_unchanged(seconds: float) -> None:
    pace = replace(StepsPerExecution.begin(None), steps=8)
    assert pace.adjust(seconds) == pace


@pytest.mark.parametrize(("step_seconds", "steps"), [(0.001, 32), (0.03, 32), (0.1, 10), (10.0, 1)])
def test_a_pace_that_the_job_names_is_kept_up_to_a_second(step_seconds: float, steps: int) -> None:
    pace = StepsPerExecution.begin(32)
    for _ in range(3):
        pace = pace.adjust(step_seconds)
    assert pace.steps == steps
    said = pace.limit_notice(step_seconds)
    assert (said is None) == (steps == 32)
    assert said is None or said.startswith("32 steps, as stepsPerExecution says, take longer than 1 s")
    assert StepsPerExecution.begin(None).limit_notice(step_seconds) is None, "the job sets no number"


pauses = st.lists(st.integers(0, 410), max_size=3).map(tuple)


@given(st.integers(1, 400), st.integers(1, 60), every, every, st.integers(1, 70), st.integers(-90, 90), pauses)
def test_boundaries_are_hit_exactly(
    total: int,
    per_epoch: int,
    validation: int | None,
    checkpoint: int | None,
    fused: int,
    offset: int,
    pauses: tuple[int, ...],
) -> None:
    ends = Boundaries(total, per_epoch, validation, checkpoint, offset, pauses)
    step, stops = 0, []
    while step < total:
        steps = min(fused, ends.steps_until_next(step))
        assert steps >= 1
        step += steps
        stops.append(step)
    assert step == total
    for one in range(1, total + 1):
        if ends.is_save_due(one) or ends.is_validation_due(one) or ends.is_epoch_start(one) or one in pauses:
            assert one in stops
    assert ends.is_save_due(total), "the last step is always saved"
    assert ends.is_validation_due(total) == (validation is not None)


def test_epochs_count_from_one_and_end_with_their_last_step() -> None:
    ends = Boundaries(total_steps=30, steps_per_epoch=10, validation_every=None, checkpoint_every=None)
    assert [ends.epoch(step) for step in (1, 10, 11, 30)] == [1, 1, 2, 3]


def test_after_a_resume_with_another_batch_size_epochs_are_still_passes() -> None:
    """Two passes took 88 steps; with twice the batch size each takes 22, so the third ends with step 110."""
    ends = Boundaries(total_steps=110, steps_per_epoch=22, validation_every=22, checkpoint_every=22, offset=44)
    assert ends.is_epoch_start(88)
    assert ends.steps_until_next(88) == 22
    assert (ends.epoch(88), ends.epoch(89), ends.epoch(110)) == (2, 3, 3)
