"""The decisions after numbers that are not finite."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptraining_api.resolved_job import ResolvedJob
from mptraining_trainer.checkpoints.provenance import Origin
from mptraining_trainer.checkpoints.state import CheckpointState, precision_from_checkpoint
from mptraining_trainer.numerics.recovery import (
    NonFinite,
    PrecisionState,
    job_with_policy,
    plan_rollback,
    safer_policy,
    supported_policies,
)
from tests.jobs import resolved_job

EVERYTHING = ("float32", "mixed_bfloat16", "mixed_float16")


def job(accelerator: str = "cpu", **sections: Any) -> ResolvedJob:
    return resolved_job(accelerator={"type": accelerator}, **sections)


@pytest.mark.parametrize(
    ("accelerator", "native", "expected"),
    [
        ("cpu", False, ("float32",)),
        ("cpu", True, ("float32", "mixed_bfloat16")),
        ("v100", False, ("float32", "mixed_float16")),
        ("t4", True, ("float32", "mixed_float16")),
        ("l4", False, EVERYTHING),
        ("a100", False, EVERYTHING),
    ],
)
def test_the_policies_that_a_device_has(accelerator: str, native: bool, expected: tuple[str, ...]) -> None:
    """A CPU emulates float16, so it is never among them."""
    assert supported_policies(job(accelerator), native_bfloat16=native) == expected


@pytest.mark.parametrize(
    ("policy", "available", "expected"),
    [
        ("mixed_float16", EVERYTHING, "mixed_bfloat16"),
        ("mixed_float16", ("float32", "mixed_float16"), "float32"),
        ("mixed_float16", ("float32",), "float32"),
        ("mixed_bfloat16", EVERYTHING, "float32"),
        ("float32", EVERYTHING, None),
    ],
)
def test_the_next_safer_policy(policy: str, available: tuple[str, ...], expected: str | None) -> None:
    assert safer_policy(policy, available) == expected


def incident(step: int = 40) -> NonFinite:
    return NonFinite(step, "the loss became nan, no finite number")


def test_at_first_the_batches_are_skipped_then_the_policy_changes() -> None:
    begun = PrecisionState("mixed_bfloat16", "mixed_bfloat16")
    first = plan_rollback(begun, incident(40), EVERYTHING, "Recover")
    assert first is not None
    assert (first.precision_state.policy, first.precision_state.checked) == ("mixed_bfloat16", True)
    assert "batches are skipped" in first.message
    second = plan_rollback(first.with_recovery(30), incident(60), EVERYTHING, "Recover")
    assert second is not None
    assert (second.precision_state.policy, second.precision_state.checked) == ("float32", True)
    assert "float32 instead of mixed_bfloat16" in second.message
    done = second.with_recovery(50)
    assert [(one.from_step, one.to_step, one.precision) for one in done.recoveries] == [
        (40, 30, "mixed_bfloat16"),
        (60, 50, "float32"),
    ]
    assert plan_rollback(done, incident(90), EVERYTHING, "Recover") is None


def test_float16_skips_steps_anyway_so_that_the_policy_changes_at_once() -> None:
    back = plan_rollback(PrecisionState("mixed_float16", "mixed_float16"), incident(), EVERYTHING, "Recover")
    assert back is not None
    assert (back.precision_state.policy, back.precision_state.checked) == ("mixed_bfloat16", True)


@given(st.sampled_from(EVERYTHING), st.sets(st.sampled_from(EVERYTHING)).map(lambda more: {"float32", *more}))
def test_there_are_never_more_than_three_recoveries(policy: str, available: set[str]) -> None:
    precision_state, count = PrecisionState(policy, policy), 0
    while (back := plan_rollback(precision_state, incident(), sorted(available), "Recover")) is not None:
        risk = ("float32", "mixed_bfloat16", "mixed_float16").index
        assert risk(back.precision_state.policy) <= risk(precision_state.policy), "never a riskier one"
        assert back.precision_state.policy in available | {policy}
        precision_state, count = back.with_recovery(0), count + 1
    assert precision_state.policy == "float32"
    assert 1 <= count <= 3


@pytest.mark.parametrize("policy", EVERYTHING)
def test_with_fail_there_is_no_recovery(policy: str) -> None:
    assert plan_rollback(PrecisionState(policy, policy), incident(), EVERYTHING, "Fail") is None


def state(**fields: Any) -> CheckpointState:
    common: dict[str, Any] = {
        **{"step": 5, "attempt": 1, "incarnation": "a", "seed": 0, "epoch": 0, "examples": 0},
        **{"fingerprint": "f", "policy": "float32", "replicas": 1},
    }
    return CheckpointState(**common | fields)


def test_findings_of_an_attempt_hold_until_another_policy_is_requested() -> None:
    kept = state(asked_policy="Measure", policy="mixed_bfloat16", checked=True)
    asked = job(precision={"policy": "Measure"})
    assert precision_from_checkpoint(asked, kept, available=EVERYTHING) == PrecisionState(
        "Measure", "mixed_bfloat16", True
    )
    assert precision_from_checkpoint(job(), kept, available=EVERYTHING) is None
    assert precision_from_checkpoint(asked, None, available=EVERYTHING) is None
    assert precision_from_checkpoint(job(), state(), available=EVERYTHING) is None, (
        "a checkpoint from before this was kept"
    )


def moved_to(
    type: str, kept: CheckpointState, available: tuple[str, ...] = EVERYTHING, **spec: Any
) -> PrecisionState | None:
    """Return the precision on another machine than the A100 on which `kept` was written."""
    there = Origin(versions={}, hardware={"accelerator": "a100"}, job={})
    kept = kept.model_copy(update={"origin": there})
    return precision_from_checkpoint(job(type, **spec), kept, available=available)


def test_another_machine_computes_under_its_own_policy_and_keeps_what_was_found_about_the_data() -> None:
    kept = state(asked_policy="mixed_float16", policy="mixed_float16", checked=True)
    assert moved_to("cpu", kept) == PrecisionState("float32", "float32", True)


def test_a_policy_of_a_recovery_is_kept_on_another_machine_or_a_safer_one_that_it_can_compute() -> None:
    recovered = state(asked_policy="mixed_float16", policy="mixed_bfloat16", checked=True)
    asked = {"precision": {"policy": "mixed_float16"}}
    l4 = moved_to("l4", recovered, **asked)
    t4 = moved_to("t4", recovered, ("float32", "mixed_float16"), **asked)
    assert (l4 and l4.policy, t4 and t4.policy) == ("mixed_bfloat16", "float32")


def test_what_was_measured_on_another_machine_is_measured_again() -> None:
    kept = state(asked_policy="Measure", policy="mixed_bfloat16")
    assert moved_to("t4", kept, precision={"policy": "Measure"}) is None
    assert moved_to("a100", kept, precision={"policy": "Measure"}) == (PrecisionState("Measure", "mixed_bfloat16"))


def test_a_job_under_another_policy_is_as_if_it_had_asked_for_it() -> None:
    measured = job("a100", precision={"policy": "Measure"})
    for policy in EVERYTHING:
        told = job("a100", precision={"policy": policy})
        under = job_with_policy(measured, policy)
        assert (under.precision, under.jit_compile) == (told.precision, told.jit_compile)
