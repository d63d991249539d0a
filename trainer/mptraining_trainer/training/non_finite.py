"""Check of every execution for infinite and NaN values, and for too many skipped steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from mptraining_trainer.numerics.loss_scaling import FLOOR
from mptraining_trainer.numerics.recovery import WEIGHTS_NOT_FINITE, NonFinite, PrecisionState, safer_policy

if TYPE_CHECKING:
    from mptraining_records.reading.order import Position
    from mptraining_trainer.loop.steps_per_execution import Execution

# The loss scale falls from 32768 to its floor in 15 bad steps, so after this many bad steps it is not the cause.
PERSISTENT = 100
NOT_FINITE = "loss, gradients or moving statistics are infinite or NaN"
# A smaller share of skipped steps is the normal cost of dynamic loss scaling (one in 2000 to try a larger scale).
_WORTH_SAYING = 0.1


def is_persistent(*, skipped: int, steps: int, in_a_row: int) -> bool:
    """Return whether skipping persists: `skipped` of the last `steps` steps, `in_a_row` at their end."""
    return in_a_row >= PERSISTENT or (skipped >= PERSISTENT and 2 * skipped >= steps)


def is_mostly_skipped(skipped: int, steps: int) -> bool:
    """Return whether a training of `steps` steps, `skipped` of which were skipped, has hardly trained."""
    return 2 * skipped > steps


def warnings_of_success(metrics: Mapping[str, float], *, skipped: int = 0, steps: int = 0) -> tuple[str, ...]:
    """Return what a training lacks that ends after `steps` steps with these metrics, `skipped` of them skipped."""
    found = []
    if skipped > _WORTH_SAYING * steps:
        found.append(f"{skipped} of {steps} steps were skipped: {NOT_FINITE}")
    names = [name for name, value in metrics.items() if not math.isfinite(value)]
    if names:
        found.append(f"{', '.join(names)} at the end: NaN or infinite")
    return tuple(found)


class NonFiniteMonitor:
    """Monitor of one session; `skipped` steps were skipped before it began.

    `locate`: the first skipped step ends the session. `dynamic`: the loss scale is dynamic.
    """

    def __init__(
        self,
        precision_state: PrecisionState,
        available: Sequence[str],
        notice: Callable[..., None],
        *,
        skipped: int = 0,
        dynamic: bool = True,
        locate: bool = False,
        total_steps: int | None = None,
    ) -> None:
        self._precision_state = precision_state
        self._may_change = safer_policy(precision_state.policy, available) is not None
        self._notice = notice
        self._skipped_before = self._skipped_last = skipped
        self._steps = 0
        self._dynamic = dynamic
        self._locate = locate
        self._total_steps = total_steps

    def limit_steps(self, step: int, steps: int) -> int:
        """Return how many of `steps` steps may be fused from `step` on: none past the previous bad step."""
        if self._locate:
            return 1
        left = self._precision_state.checked_until - step
        return min(steps, left) if self._precision_state.checked and left > 0 else steps

    def check(
        self,
        execution: Execution,
        before: int,
        steps: int,
        position: Callable[[int], Position],
        *,
        cause_excluded: bool = False,
    ) -> None:
        """Raise NonFinite if the run cannot continue after this execution of `steps` steps after step `before`.

        `position` returns the data's position after a number of them. `cause_excluded`: steps were skipped because of
        records that are excluded from now on.
        """
        now = execution.skipped_steps - self._skipped_last
        self._skipped_last = execution.skipped_steps
        self._steps += steps
        last = before + steps
        # The first step whose gradients were not finite, if any.
        first = min(before + execution.finite_steps + 1, last)
        if self._precision_state.skips_non_finite:
            bad, found = self._found_checked(execution, first, last, 0 if cause_excluded else now)
        else:
            bad, found = first, self._found_unchecked(execution, steps)
        if found is not None:
            raise NonFinite(bad, found, position=position(bad - before - 1))
        if now and not cause_excluded:
            self._warn(execution, last)
        if last == self._total_steps:
            # Before the last checkpoint, so that a rollback begins at an earlier one.
            self.require_trained(last)

    def require_trained(self, step: int) -> None:
        """Raise NonFinite if a training that ends after `step` steps has skipped most of them."""
        if is_mostly_skipped(self._skipped_last, step):
            policy = self._precision_state.policy
            raise NonFinite(step, f"{self._skipped_last} of {step} steps were skipped under {policy}: {NOT_FINITE}")

    def _found_unchecked(self, execution: Execution, steps: int) -> str | None:
        if execution.finite_steps < steps:
            return "the norm of the gradients is infinite or NaN"
        if execution.applied_steps and not math.isfinite(execution.loss):
            return f"the loss is {execution.loss}, no finite number"
        return WEIGHTS_NOT_FINITE if execution.non_finite_workers else None

    def _found_checked(self, execution: Execution, first: int, last: int, skipped_now: int) -> tuple[int, str | None]:
        precision_state = self._precision_state
        if execution.non_finite_workers or (execution.applied_steps and not math.isfinite(execution.loss)):
            return last, WEIGHTS_NOT_FINITE
        if self._locate:
            return last, NOT_FINITE if skipped_now else self._not_reproduced(last)
        if precision_state.policy == "mixed_float16":
            stuck = not self._dynamic or (execution.loss_scale or 0.0) <= FLOOR
            return last, self._persistent(execution) if stuck else None
        if skipped_now and self._may_change and last > precision_state.checked_until:
            return first, f"{NOT_FINITE} again"
        return last, self._persistent(execution)

    def _persistent(self, execution: Execution) -> str | None:
        skipped, in_a_row = execution.skipped_steps - self._skipped_before, execution.skipped_in_a_row
        if not is_persistent(skipped=skipped, steps=self._steps, in_a_row=in_a_row):
            return None
        scale = execution.loss_scale
        at = "" if scale is None else f" with the loss scale at {'its floor' if self._dynamic else 'a fixed'} {scale:g}"
        if in_a_row >= PERSISTENT:
            return f"gradients overflowed in {in_a_row} steps in a row{at}"
        return f"gradients overflowed in {skipped} of {self._steps} steps{at}"

    def _not_reproduced(self, step: int) -> str | None:
        if step < self._precision_state.checked_until:
            return None
        return "numbers stopped being finite; the same steps, run again one by one, stayed finite"

    def _warn(self, execution: Execution, step: int) -> None:
        if self._precision_state.checked and self._precision_state.policy != "mixed_float16":
            if not self._warned:
                self._warned = True
                text = f"step {step}: a batch with infinite or NaN numbers was skipped; result.json counts them"
                self._notice("BatchLeftOut", text, level="Warning")
            return
        skipped = execution.skipped_steps - self._skipped_before
        if skipped >= PERSISTENT // 10 and skipped >= _WORTH_SAYING * self._steps and self._steps >= PERSISTENT:
            text = "more than a tenth of the steps overflow and are skipped: lower the learning rate, or use bfloat16"
            self._notice("StepsSkipped", text, level="Warning")

    _warned = False
