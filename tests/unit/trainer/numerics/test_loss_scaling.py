"""The loss scale and its counters after each step; what the loop does with them is in test_train_loop."""

from __future__ import annotations

import pytest
import tensorflow as tf

from mptraining_api.resolved_job import ResolvedPrecision
from mptraining_trainer.numerics.loss_scaling import CEILING, FLOOR, GROWTH_STEPS, LossScaler, ScalerState, make_scaler

FINITE, NOT_FINITE = tf.constant(True), tf.constant(False)


def after(scaler: LossScaler, *, scale: float = 64.0, good_steps: int = 0, finite: bool = True) -> ScalerState:
    scaler.restore(ScalerState(scale, good_steps, 0, 0))
    scaler.update(FINITE if finite else NOT_FINITE, FINITE)
    return scaler.state()


@pytest.mark.parametrize(
    ("scale", "good_steps", "finite", "expected"),
    [
        (64.0, 5, True, (64.0, 6)),
        (64.0, 5, False, (32.0, 0)),
        (64.0, GROWTH_STEPS - 2, True, (64.0, GROWTH_STEPS - 1)),
        (64.0, GROWTH_STEPS - 1, True, (128.0, 0)),
        (CEILING, GROWTH_STEPS - 1, True, (CEILING, 0)),
        (FLOOR, 5, False, (FLOOR, 0)),
    ],
)
def test_a_dynamic_scale(scale: float, good_steps: int, finite: bool, expected: tuple[float, int]) -> None:
    state = after(LossScaler(dynamic=True), scale=scale, good_steps=good_steps, finite=finite)
    assert (state.scale, state.good_steps) == expected


@pytest.mark.parametrize("scaler", [{"dynamic": False}, {"dynamic": True, "scales": False}])
def test_a_fixed_scale_and_one_that_is_not_used_never_change(scaler: dict[str, bool]) -> None:
    assert after(LossScaler(**scaler), good_steps=GROWTH_STEPS - 1).scale == 64.0
    assert after(LossScaler(**scaler), finite=False).scale == 64.0


def test_skipped_steps_are_counted_in_all_and_in_a_row() -> None:
    scaler = LossScaler(initial=64.0, dynamic=True)
    seen = []
    for finite in (NOT_FINITE, NOT_FINITE, FINITE, NOT_FINITE):
        scaler.update(finite, FINITE)
        seen.append([float(value) for value in scaler.readings()])
    assert seen == [[32.0, 1.0, 1.0], [16.0, 2.0, 2.0], [16.0, 2.0, 0.0], [8.0, 3.0, 1.0]]


def test_a_forward_pass_that_is_not_finite_does_not_change_the_scale() -> None:
    scaler = LossScaler(initial=64.0, dynamic=True)
    scaler.update(FINITE, FINITE)
    scaler.update(NOT_FINITE, NOT_FINITE)
    assert scaler.state() == ScalerState(64.0, 0, 1, 1)


def test_a_state_is_restored_as_it_was() -> None:
    state = ScalerState(scale=256.0, good_steps=7, skipped_steps=5, skipped_in_a_row=3)
    scaler = LossScaler(dynamic=True)
    scaler.restore(state)
    assert scaler.state() == state
    assert [variable.dtype for variable in scaler.readings()] == [tf.float32] * 3


def test_the_policy_decides_whether_there_is_a_scaler() -> None:
    def scaler(policy: str, mode: str = "Dynamic", *, checked: bool = False) -> LossScaler | None:
        return make_scaler(ResolvedPrecision(policy=policy, loss_scale_mode=mode, loss_scale=512.0), checked=checked)

    dynamic, fixed = scaler("mixed_float16"), scaler("mixed_float16", "Fixed")
    assert dynamic is not None
    assert fixed is not None
    assert (dynamic.scales, dynamic.dynamic, dynamic.state().scale) == (True, True, 512.0)
    assert (fixed.scales, fixed.dynamic, fixed.state().scale) == (True, False, 512.0)
    checked = scaler("float32", checked=True)
    assert checked is not None
    assert (checked.scales, checked.dynamic, checked.state().scale) == (False, False, 1.0)
    assert scaler("mixed_bfloat16") is None
