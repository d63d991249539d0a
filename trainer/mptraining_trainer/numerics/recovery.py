"""Recovery from non-finite values: pure decisions from the job's settings and its device's precision policies.

    first incident   restore the last checkpoint; from then on check every update before it is applied and skip each
                     batch that is not finite
    next incident    when skipped steps persist, restore again and continue under the next safer policy of float16,
                     bfloat16 and float32 that the device supports
    no safer policy  the run has diverged

Under mixed_float16, and with `Fail`, every update is checked from the start. With `Fail` the run has diverged at the
first incident.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mptraining_api.events import Recovery, Trial
from mptraining_api.problems import Diverged
from mptraining_api.resolved_job import ResolvedJob

# Tensor Cores multiply float16 from Volta on, bfloat16 from Ampere on (NVIDIA, CUDA C++ Programming Guide).
_FLOAT16_CAPABILITY, _BFLOAT16_CAPABILITY = 7.0, 8.0
# The fastest policy first, which is also the least safe.
_BY_RISK = ("mixed_float16", "mixed_bfloat16", "float32")

WEIGHTS_NOT_FINITE = "the weights are no longer finite numbers"


class NonFinite(Diverged):
    """Non-finite values in or before step `step`, with which the run cannot continue under this policy."""

    def __init__(self, step: int, mistake: str) -> None:
        super().__init__(
            f"step {step}",
            mistake,
            next_step="Lower the learning rate, clip gradients (optimizer clipnorm), or look for infinite inputs.",
        )
        self.step = step


@dataclass(frozen=True)
class PrecisionState:
    """The precision of the training at present; `requested_policy` is the job's own policy.

    `checked`: every update is checked before it is applied, because of an incident. (Under mixed_float16, and with
    `Fail`, updates are checked without one.)
    """

    requested_policy: str
    policy: str
    checked: bool = False
    recoveries: tuple[Recovery, ...] = ()
    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class Rollback:
    """Restore the last checkpoint and continue under `precision_state`."""

    precision_state: PrecisionState
    from_step: int
    message: str
    # Seconds of training before the rollback.
    seconds: float = 0.0

    def with_recovery(self, to_step: int) -> PrecisionState:
        """Return `precision_state` with this rollback among its recoveries."""
        state = self.precision_state
        recovery = Recovery(from_step=self.from_step, to_step=to_step, precision=state.policy, message=self.message)
        return replace(state, recoveries=(*state.recoveries, recovery))


def supported_policies(job: ResolvedJob, *, native_bfloat16: bool) -> tuple[str, ...]:
    """Return the policies that this job's device supports without emulation, the safest first.

    `native_bfloat16` is this processor's.
    """
    kind, capability = job.accelerator.kind, job.accelerator.compute_capability or 0.0
    supported = {
        "float32": True,
        "mixed_bfloat16": {"cpu": native_bfloat16, "tpu": True, "gpu": capability >= _BFLOAT16_CAPABILITY}[kind],
        "mixed_float16": kind == "gpu" and capability >= _FLOAT16_CAPABILITY,
    }
    return tuple(policy for policy in reversed(_BY_RISK) if supported[policy])


def safer_policy(policy: str, available: Sequence[str]) -> str | None:
    """Return the next safer policy that the device supports, or None."""
    return next((candidate for candidate in _BY_RISK[_BY_RISK.index(policy) + 1 :] if candidate in available), None)


def policy_without_scaling(job: ResolvedJob, *, native_bfloat16: bool) -> str:
    """Return the policy in place of mixed_float16 for a training step whose loss is not scaled.

    `native_bfloat16` is this processor's.
    """
    available = supported_policies(job, native_bfloat16=native_bfloat16)
    return safer_policy("mixed_float16", available) or "float32"


def plan_rollback(
    state: PrecisionState, incident: NonFinite, available: Sequence[str], on_non_finite: Literal["Recover", "Fail"]
) -> Rollback | None:
    """Return the rollback for the incident; None if the run has diverged."""
    if on_non_finite == "Fail":
        return None
    if not state.checked and state.policy != "mixed_float16":
        message = f"{incident.found}; such batches are skipped from here on"
        return Rollback(replace(state, checked=True), incident.step, message)
    policy = safer_policy(state.policy, available)
    if policy is None:
        return None
    message = f"{incident.found}; {policy} instead of {state.policy}"
    return Rollback(replace(state, policy=policy, checked=True), incident.step, message)


def job_with_policy(job: ResolvedJob, policy: str) -> ResolvedJob:
    """Return the job with this policy, and with XLA as `resolve` would decide it."""
    compiled = job.jit_compile
    if compiled == "WherePossible" and job.accelerator.kind == "gpu" and policy == "float32":
        compiled = "Never"
    precision = type(job.precision).read(job.precision.model_copy(update={"policy": policy}).to_json())
    return job.model_copy(update={"precision": precision, "jit_compile": compiled})
