"""The conditions under which an execution's numbers need a recovery, and under which skipped steps are still normal."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from mptraining_records.reading.order import Position
from mptraining_trainer.numerics.recovery import NonFinite
from mptraining_trainer.session.non_finite import (
    NOT_FINITE,
    PERSISTENT,
    NonFiniteMonitor,
    is_persistent,
    warnings_of_success,
)
from mptraining_trainer.step.steps_per_execution import Execution

FINE = Execution(
    applied_steps=10, loss=0.5, loss_sum=5.0, loss_weight=10.0, gradient_norm=1.0, finite_steps=10,
    failed_replica=None, failed_step=None, forward_failed=False, seeks_scale=False, metrics={}, loss_scale=None,
    skipped_steps=0, skipped_in_a_row=0, stop_requests=0, step_seconds=0.1, waited_seconds=None,
)  # fmt: skip
BACKWARD: dict[str, Any] = {
    "finite_steps": 7,
    "failed_replica": 1,
    "failed_step": 7,
    "skipped_steps": 1,
    "skipped_in_a_row": 1,
}
FORWARD = BACKWARD | {"forward_failed": True}
SCALED = BACKWARD | {"seeks_scale": True}


class Notices:
    def __init__(self) -> None:
        self.topics: list[str] = []
        self.messages: list[str] = []

    def __call__(self, topic: str, message: str, **more: Any) -> None:
        self.topics.append(topic)
        self.messages.append(message)


def position(done: int) -> Position:
    return Position(seed=0, epoch=0, examples=done, fingerprint="f")


def describe(there: Position) -> str:
    return f"records of step {there.examples}"


def monitor(policy: str = "float32", notices: Notices | None = None, *, fails: bool = False, **more: Any) -> Any:
    return NonFiniteMonitor(policy, "Fail" if fails else "Recover", notices or Notices(), describe, **more)


def incident(policy: str, change: dict[str, Any], step: int = 50, **more: Any) -> tuple[int, str] | None:
    """Return the step and the text of the incident in ten steps up to `step`, or None."""
    try:
        monitor(policy, **more).check(replace(FINE, **change), step - 10, 10, position)
    except NonFinite as found:
        return found.step, found.found
    return None


@pytest.mark.parametrize(
    ("policy", "change", "expected"),
    [
        ("float32", {}, None),
        ("float32", {"finite_steps": 7}, (48, "loss or gradients are infinite or NaN (records of step 7)")),
        ("float32", {"loss": math.nan}, (50, "the loss is nan, no finite number")),
        ("float32", {"non_finite_workers": 1}, (50, "the weights are no longer finite numbers")),
        ("mixed_float16", {"non_finite_workers": 1}, (50, "the weights are no longer finite numbers")),
        ("float32", FORWARD, None),
        ("float32", {"skipped_steps": PERSISTENT, "skipped_in_a_row": PERSISTENT}, (50, f"{NOT_FINITE} in 100 steps")),
        ("mixed_float16", SCALED | {"loss_scale": 512.0, "skipped_steps": 30, "skipped_in_a_row": 30}, None),
        (
            "mixed_float16",
            {"loss_scale": 1.0, "skipped_steps": 120, "skipped_in_a_row": 120},
            (50, "the loss scale at 1"),
        ),
        ("mixed_float16", {"loss_scale": 1.0, "applied_steps": 0, "loss": math.nan}, None),
    ],
)
def test_conditions_for_a_recovery(policy: str, change: dict[str, Any], expected: tuple[int, str] | None) -> None:
    found = incident(policy, change)
    if found is None or expected is None:
        assert found is expected
    else:
        assert (found[0], expected[1] in found[1]) == (expected[0], True), found


@pytest.mark.parametrize(
    ("policy", "change", "expected"),
    [
        ("float32", FORWARD, "loss or moving statistics of replica 1 are infinite or NaN (records of step 7)"),
        ("float32", BACKWARD, "gradients of replica 1 are infinite or NaN (records of step 7)"),
        (
            "float32",
            BACKWARD | {"failed_replica": None, "failed_step": None},
            "gradients are infinite or NaN (records of step 7)",
        ),
        (
            "mixed_float16",
            FORWARD | {"loss_scale": 512.0},
            "loss or moving statistics of replica 1 are infinite or NaN",
        ),
        ("mixed_float16", SCALED | {"loss_scale": 1.0}, None),
        ("mixed_float16", BACKWARD | {"loss_scale": 1.0}, "gradients of replica 1 are infinite or NaN"),
    ],
)
def test_with_fail_the_first_skipped_step_ends_the_run_unless_the_loss_scale_can_fall(
    policy: str, change: dict[str, Any], expected: str | None
) -> None:
    found = incident(policy, change, fails=True)
    assert (
        found is None
        if expected is None
        else found is not None
        and (found[0], found[1][: len(expected)])
        == (
            48,
            expected,
        )
    )


def test_a_forward_pass_that_fails_after_an_overflow_is_named() -> None:
    found = incident("mixed_float16", FORWARD | {"finite_steps": 2, "loss_scale": 512.0}, fails=True)
    assert found is not None
    assert (found[0], "records of step 7" in found[1]) == (48, True)


def test_steps_that_were_skipped_before_this_session_do_not_count() -> None:
    assert incident("float32", {"skipped_steps": 500}, skipped=500) is None


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


def test_the_first_skipped_batches_are_reported_and_frequent_overflow() -> None:
    told = Notices()
    watch = monitor("float32", told)
    for count in range(1, 13):
        watch.check(replace(FINE, **FORWARD | {"skipped_steps": count}), 10 * count, 10, position)
    assert told.topics == ["StepSkipped"] * 10 + ["StepsSkipped"]
    assert told.messages[0].startswith("step 18 is skipped: loss or moving statistics of replica 1 are infinite")
    told = Notices()
    watch = monitor("mixed_float16", told)
    for tens in range(1, 11):
        watch.check(replace(FINE, **SCALED | {"skipped_steps": 2 * tens}), 10 * tens, 10, position)
    assert told.topics == ["StepsSkipped"]


@pytest.mark.parametrize(("skipped", "ends"), [(0, False), (10, False), (11, True)])
def test_a_training_that_ends_has_applied_half_of_its_steps(skipped: int, ends: bool) -> None:
    change = {"seeks_scale": True, "skipped_steps": skipped}
    found = incident("mixed_float16", change, step=20, total_steps=20)
    assert found == ((20, f"11 of 20 steps were skipped under mixed_float16: {NOT_FINITE}") if ends else None)
    assert incident("mixed_float16", change, step=20, total_steps=21) is None


def test_a_success_says_what_it_lacks() -> None:
    assert warnings_of_success({"loss": 0.5}, skipped=2, steps=20) == ()
    assert warnings_of_success({"loss": 0.5, "val_loss": math.nan, "val_auc": math.inf}, skipped=3, steps=20) == (
        f"3 of 20 steps were skipped: {NOT_FINITE}",
        "val_loss, val_auc at the end: NaN or infinite",
    )
