"""Looks at every execution of the loop: are its numbers finite, and if steps were left out, is that still normal?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mptraining_trainer.numerics.loss_scaling import FLOOR
from mptraining_trainer.numerics.recovery import BROKEN, NonFinite, PrecisionState, safer

if TYPE_CHECKING:
    from mptraining_records.reading.order import Position
    from mptraining_trainer.loop.steps_per_execution import Execution

# The loss scale falls from 32768 to its floor in 15 bad steps: what is still bad after this many is no matter of it.
PERSISTENT = 100
NOT_FINITE = "loss, gradients or moving statistics are infinite or NaN"
# Below this share, skipped steps are what dynamic loss scaling costs (one in 2000 to try a larger scale).
_WORTH_SAYING = 0.1


def persistent(*, skipped: int, steps: int, in_a_row: int) -> bool:
    """Whether leaving steps out has become the rule: `skipped` of the last `steps`, `in_a_row` at their end."""
    return in_a_row >= PERSISTENT or (skipped >= PERSISTENT and 2 * skipped >= steps)


class NonFiniteMonitor:
    """One session's; `skipped` steps were left out before it began.

    `locate`: the first step that is left out ends the session. `dynamic`: the loss scale gives way.
    """

    def __init__(
        self,
        numbers: PrecisionState,
        available: Sequence[str],
        notice: Callable[..., None],
        *,
        skipped: int = 0,
        dynamic: bool = True,
        locate: bool = False,
    ) -> None:
        self._numbers = numbers
        self._may_change = safer(numbers.policy, available) is not None
        self._notice = notice
        self._skipped_before = self._skipped_last = skipped
        self._steps = 0
        self._dynamic = dynamic
        self._locate = locate

    def at_most(self, step: int, steps: int) -> int:
        """How many of `steps` may be fused from `step` on: none past the step at which it happened last time."""
        if self._locate:
            return 1
        left = self._numbers.until - step
        return min(steps, left) if self._numbers.checked and left > 0 else steps

    def look(
        self,
        execution: Execution,
        before: int,
        steps: int,
        position: Callable[[int], Position],
        *,
        explained: bool = False,
    ) -> None:
        """Raises NonFinite. The `steps` steps came after step `before`; `position` gives the data's after so many.

        `explained`: those that were skipped were for records that are left out from now on.
        """
        now = execution.skipped_steps - self._skipped_last
        self._skipped_last = execution.skipped_steps
        self._steps += steps
        last = before + steps
        # The first of them whose gradients were not finite, if there was one.
        first = min(before + execution.finite_steps + 1, last)
        if self._numbers.looks:
            bad, found = self._of_checked(execution, first, last, 0 if explained else now)
        else:
            bad, found = first, self._of_unseen(execution, steps)
        if found is not None:
            raise NonFinite(bad, found, position=position(bad - before - 1))
        if now and not explained:
            self._tell(execution, last)

    def _of_unseen(self, execution: Execution, steps: int) -> str | None:
        if execution.finite_steps < steps:
            return "the norm of the gradients is infinite or NaN"
        if execution.applied_steps and not math.isfinite(execution.loss):
            return f"the loss is {execution.loss}, no finite number"
        return BROKEN if execution.broken else None

    def _of_checked(self, execution: Execution, first: int, last: int, skipped_now: int) -> tuple[int, str | None]:
        numbers = self._numbers
        if execution.broken or (execution.applied_steps and not math.isfinite(execution.loss)):
            return last, BROKEN
        if self._locate:
            return last, NOT_FINITE if skipped_now else self._not_again(last)
        if numbers.policy == "mixed_float16":
            stuck = not self._dynamic or (execution.loss_scale or 0.0) <= FLOOR
            return last, self._persistent(execution) if stuck else None
        if skipped_now and self._may_change and last > numbers.until:
            return first, f"{NOT_FINITE} again"
        return last, self._persistent(execution)

    def _persistent(self, execution: Execution) -> str | None:
        skipped, in_a_row = execution.skipped_steps - self._skipped_before, execution.skipped_in_a_row
        if not persistent(skipped=skipped, steps=self._steps, in_a_row=in_a_row):
            return None
        scale = execution.loss_scale
        at = "" if scale is None else f" with the loss scale at {'its floor' if self._dynamic else 'a fixed'} {scale:g}"
        if in_a_row >= PERSISTENT:
            return f"gradients overflowed in {in_a_row} steps in a row{at}"
        return f"gradients overflowed in {skipped} of {self._steps} steps{at}"

    def _not_again(self, step: int) -> str | None:
        if step < self._numbers.until:
            return None
        return "numbers stopped being finite; the same steps, run again one by one, stayed finite"

    def _tell(self, execution: Execution, step: int) -> None:
        if self._numbers.checked and self._numbers.policy != "mixed_float16":
            if not self._told:
                self._told = True
                text = f"step {step}: a batch with infinite or NaN numbers was left out; result.json counts them"
                self._notice("BatchLeftOut", text, level="Warning")
            return
        skipped = execution.skipped_steps - self._skipped_before
        if skipped >= PERSISTENT // 10 and skipped >= _WORTH_SAYING * self._steps and self._steps >= PERSISTENT:
            text = "more than a tenth of the steps overflow and are skipped: lower the learning rate, or use bfloat16"
            self._notice("StepsSkipped", text, level="Warning")

    _told = False
