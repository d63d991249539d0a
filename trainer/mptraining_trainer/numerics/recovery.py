"""What follows when numbers stop being finite: pure decisions over what a job asked for and what its device can do.

    the first time   back to the last checkpoint, and from now on every update is looked at before it is applied, so
                     that the batches that did it are left out, each alone
    again            back once more, under the next safer policy: float16, bfloat16, float32, those the device has
    no safer policy  bad batches go on being left out; when that becomes persistent, the run has diverged

Whichever policy, a record that makes a batch bad by itself is left out from then on, see `training.exclusion`.

Under mixed_float16 every update is looked at from the start and a few are left out by nature, so there only persistence
counts, and the next policy follows at once. At most three ways back, therefore, whatever happens. With `Fail` there is
one, step by step, to see where it began.
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
# The fastest first, which is also the riskiest.
_BY_RISK = ("mixed_float16", "mixed_bfloat16", "float32")

BROKEN = "the weights are no longer finite numbers"


class NonFinite(Diverged):
    """Numbers stopped being finite in or before step `step`.

    `position` is the data's before that step, None where nobody knows it.
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
    """How training computes now; `asked` is the job's own policy.

    `checked`: every update is looked at before it is applied, since what happened up to the step `until`.
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
        """Whether bad updates are left out, by the loss scaling or because they are checked."""
        return self.checked or self.policy == "mixed_float16"


@dataclass(frozen=True)
class Rollback:
    """Back to the last checkpoint, to go on under `numbers`, or only to see where it began (`locate`)."""

    numbers: PrecisionState
    from_step: int
    message: str
    locate: bool = False
    # Trained so far.
    seconds: float = 0.0

    def recorded(self, to_step: int) -> PrecisionState:
        """The numbers, with this way back among their recoveries."""
        numbers = self.numbers
        done = Recovery(from_step=self.from_step, to_step=to_step, precision=numbers.policy, message=self.message)
        return replace(numbers, recoveries=(*numbers.recoveries, done))


def policies(job: ResolvedJob, *, native_bfloat16: bool) -> tuple[str, ...]:
    """The policies that this job's device computes without emulating them, the safest first.

    `native_bfloat16` is this processor's.
    """
    kind, capability = job.accelerator.kind, job.accelerator.compute_capability or 0.0
    there = {
        "float32": True,
        "mixed_bfloat16": {"cpu": native_bfloat16, "tpu": True, "gpu": capability >= _BFLOAT16_CAPABILITY}[kind],
        "mixed_float16": kind == "gpu" and capability >= _FLOAT16_CAPABILITY,
    }
    return tuple(policy for policy in reversed(_BY_RISK) if there[policy])


def safer(policy: str, available: Sequence[str]) -> str | None:
    """The next of float16, bfloat16, float32 that the device has."""
    return next((each for each in _BY_RISK[_BY_RISK.index(policy) + 1 :] if each in available), None)


def way_back(
    numbers: PrecisionState, incident: NonFinite, available: Sequence[str], on_non_finite: Literal["Recover", "Fail"]
) -> Rollback | None:
    """What to do about the incident; None when the run has diverged."""
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
    """The job as if it had asked for this policy, with XLA as `resolve` would have decided."""
    compiled = job.jit_compile
    if compiled == "WherePossible" and job.accelerator.kind == "gpu" and policy == "float32":
        compiled = "Never"
    precision = type(job.precision).read(job.precision.model_copy(update={"policy": policy}).to_json())
    return job.model_copy(update={"precision": precision, "jit_compile": compiled})
