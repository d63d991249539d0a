"""Recovery from non-finite values: pure decisions from the job's settings and its device's precision policies.

    first incident   restore the last checkpoint; from then on check every update before it is applied and skip each
                     batch that is not finite
    next incident    restore again and continue under the next safer policy of float16, bfloat16 and float32 that the
                     device supports
    no safer policy  continue to skip bad batches; when they persist, the run has diverged

Under every policy, a record that makes a batch non-finite by itself is excluded, see `training.bad_rows`.

Under mixed_float16 every update is checked from the start and loss scaling skips a few, so only persistent skips are an
incident, and the next policy follows immediately. A run therefore has at most three recoveries. With `Fail` there is
one, which runs step by step to find the first non-finite value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from mptraining_api.events import ExcludedRecord, Recovery, Trial
from mptraining_api.problems import Diverged
from mptraining_api.resolved_job import ResolvedJob

if TYPE_CHECKING:
    from mptraining_records.reading.order import Position

# Tensor Cores multiply float16 from Volta on, bfloat16 from Ampere on (NVIDIA, CUDA C++ Programming Guide).
_FLOAT16_CAPABILITY, _BFLOAT16_CAPABILITY = 7.0, 8.0
# The fastest policy first, which is also the least safe.
_BY_RISK = ("mixed_float16", "mixed_bfloat16", "float32")

BROKEN = "the weights are no longer finite numbers"


class NonFinite(Diverged):
    """Non-finite values in or before step `step`.

    `position` is the data's position before that step, None if unknown.
    """

    def __init__(self, step: int, found: str, *, position: Position | None = None) -> None:
        super().__init__(
            f"step {step}",
            found,
            next_step="Lower the learning rate, clip gradients (optimizer clipnorm), or look for infinite inputs.",
        )
        self.step = step
        self.position = position


@dataclass(frozen=True)
class PrecisionState:
    """The precision of the training at present; `asked` is the job's own policy.

    `checked`: every update is checked before it is applied, because of an incident in or before the step `until`.
    """

    asked: str
    policy: str
    checked: bool = False
    until: int = 0
    recoveries: tuple[Recovery, ...] = ()
    measured: tuple[Trial, ...] = ()
    excluded: tuple[ExcludedRecord, ...] = ()

    @property
    def looks(self) -> bool:
        """True if non-finite updates are skipped, by loss scaling or because they are checked."""
        return self.checked or self.policy == "mixed_float16"


@dataclass(frozen=True)
class Rollback:
    """Restore the last checkpoint and continue under `numbers`, or only to find the first bad value (`locate`)."""

    numbers: PrecisionState
    from_step: int
    message: str
    locate: bool = False
    # Seconds of training before the rollback.
    seconds: float = 0.0

    def recorded(self, to_step: int) -> PrecisionState:
        """Return `numbers` with this rollback among their recoveries."""
        numbers = self.numbers
        done = Recovery(from_step=self.from_step, to_step=to_step, precision=numbers.policy, message=self.message)
        return replace(numbers, recoveries=(*numbers.recoveries, done))


def policies(job: ResolvedJob, *, native_bfloat16: bool) -> tuple[str, ...]:
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


def safer(policy: str, available: Sequence[str]) -> str | None:
    """Return the next safer policy that the device supports, or None."""
    return next((each for each in _BY_RISK[_BY_RISK.index(policy) + 1 :] if each in available), None)


def way_back(
    numbers: PrecisionState, incident: NonFinite, available: Sequence[str], on_non_finite: Literal["Recover", "Fail"]
) -> Rollback | None:
    """Return the rollback for the incident; None if the run has diverged."""
    if on_non_finite == "Fail":
        if numbers.looks:
            return None
        return Rollback(replace(numbers, checked=True, until=incident.step), incident.step, incident.found, locate=True)
    if not numbers.looks:
        message = f"{incident.found}; batches that do this are left out from here on"
        return Rollback(replace(numbers, checked=True, until=incident.step), incident.step, message)
    policy = safer(numbers.policy, available)
    if policy is None:
        return None
    message = f"{incident.found}; {policy} instead of {numbers.policy}"
    return Rollback(replace(numbers, policy=policy, checked=True, until=incident.step), incident.step, message)


def job_under(job: ResolvedJob, policy: str) -> ResolvedJob:
    """Return the job with this policy, and with XLA as `resolve` would decide it."""
    compiled = job.jit_compile
    if compiled == "WherePossible" and job.accelerator.kind == "gpu" and policy == "float32":
        compiled = "Never"
    precision = type(job.precision).read(job.precision.model_copy(update={"policy": policy}).to_json())
    return job.model_copy(update={"precision": precision, "jit_compile": compiled})
