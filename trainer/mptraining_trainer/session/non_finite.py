"""Check of every execution for infinite and NaN values: what ends the session, and what is reported.

    updates are not checked   the first step with such values ends the session
    updates are checked       a skipped step is reported with its replica and records, and with `onNonFinite: Fail` ends
                              the session; many skipped steps always do

A step that is skipped while a dynamic loss scale can still fall is not reported and does not count as the first one
for `Fail`, unless its forward pass, which is not scaled, is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from mptraining_records.reading.order import Position
from mptraining_trainer.numerics.recovery import WEIGHTS_NOT_FINITE, NonFinite
from mptraining_trainer.session.build import RunContext
from mptraining_trainer.step.steps_per_execution import Execution

# The loss scale falls from 32768 to its floor in 15 bad steps, so after this many bad steps it is not the cause.
PERSISTENT = 100
NOT_FINITE = "loss, gradients or moving statistics are infinite or NaN"
# A smaller share of skipped steps is the normal cost of dynamic loss scaling (one in 2000 to try a larger scale).
_WORTH_SAYING = 0.1
_MOST_NOTICES = 10
_MOST_RECORDS = 32


def describe_records(context: RunContext, position: Position) -> str:
    """Return the examples of the step at `position`, with files and numbers of their records."""
    begin = context.batching.next_step(position)
    dataset = context.datasets.training.dataset
    end = min(begin.examples + context.batching.examples_per_step, dataset.count)
    numbers = context.order(begin).records(begin.epoch, np.arange(begin.examples, end))
    files, rows = dataset.locate(np.sort(numbers))
    by_file: dict[str, list[str]] = {}
    for file, row in zip(files[:_MOST_RECORDS].tolist(), rows[:_MOST_RECORDS].tolist(), strict=True):
        by_file.setdefault(dataset.shards[file].stored.name, []).append(str(row))
    named = "; ".join(f"records {', '.join(rows_of_file)} of {name}" for name, rows_of_file in by_file.items())
    more = f" and {len(numbers) - _MOST_RECORDS} more" if len(numbers) > _MOST_RECORDS else ""
    return f"examples {begin.examples} to {end - 1} of pass {begin.epoch + 1}: {named}{more}"


def is_persistent(*, skipped: int, steps: int, in_a_row: int) -> bool:
    """Return whether skipping persists: `skipped` of the last `steps` steps, `in_a_row` at their end."""
    return in_a_row >= PERSISTENT or (skipped >= PERSISTENT and 2 * skipped >= steps)


def is_mostly_skipped(skipped: int, steps: int) -> bool:
    """Return whether a training of `steps` steps, `skipped` of which were skipped, has hardly trained."""
    return 2 * skipped > steps


def warnings_of_success(metrics: Mapping[str, float], *, skipped: int = 0, steps: int = 0) -> tuple[str, ...]:
    """Return what a training lacks that ends after `steps` steps with these metrics, `skipped` of them skipped."""
    texts = []
    if skipped > _WORTH_SAYING * steps:
        texts.append(f"{skipped} of {steps} steps were skipped: {NOT_FINITE}")
    names = [name for name, value in metrics.items() if not math.isfinite(value)]
    if names:
        texts.append(f"{', '.join(names)} at the end: NaN or infinite")
    return tuple(texts)


class NonFiniteMonitor:
    """Monitor of one session; `skipped` steps were skipped before it began.

    `describe` returns a text about the records of the step at a position.
    """

    def __init__(
        self,
        policy: str,
        on_non_finite: Literal["Recover", "Fail"],
        notice: Callable[..., None],
        describe: Callable[[Position], str],
        *,
        skipped: int = 0,
        total_steps: int | None = None,
    ) -> None:
        self._policy = policy
        self._fails = on_non_finite == "Fail"
        self._notice = notice
        self._describe = describe
        self._skipped_before = self._skipped_last = skipped
        self._steps = 0
        self._total_steps = total_steps
        self._notices = 0
        self._overflow_noticed = False

    def check(self, execution: Execution, before: int, steps: int, position: Callable[[int], Position]) -> None:
        """Report the first skipped step of the worst kind, in an execution of `steps` steps after step `before`.

        `position` returns the data's position after a number of them. Raise NonFinite if the run cannot continue.
        """
        skipped_now = execution.skipped_steps - self._skipped_last
        self._skipped_last = execution.skipped_steps
        self._steps += steps
        last = before + steps
        # Counted from 0; of unchecked steps the first whose norm was not finite.
        first = min(execution.finite_steps, steps - 1) if execution.failed_step is None else execution.failed_step
        if execution.finite_steps < steps and not skipped_now:
            raise NonFinite(
                before + first + 1, f"loss or gradients are infinite or NaN ({self._describe(position(first))})"
            )
        if execution.applied_steps and not math.isfinite(execution.loss):
            raise NonFinite(last, f"the loss is {execution.loss}, no finite number")
        if execution.non_finite_workers:
            raise NonFinite(last, WEIGHTS_NOT_FINITE)
        if skipped_now and not execution.seeks_scale:
            cause = f"{self._cause(execution)} ({self._describe(position(first))})"
            if self._fails:
                raise NonFinite(before + first + 1, cause)
            if self._notices < _MOST_NOTICES:
                self._notices += 1
                text = f"step {before + first + 1} is skipped: {cause}; result.json counts such steps"
                self._notice("StepSkipped", text, level="Warning")
        self._require_progress(execution, last)
        if last == self._total_steps:
            # Before the last checkpoint, so that a rollback begins at an earlier one.
            self.require_trained(last)

    def require_trained(self, step: int) -> None:
        """Raise NonFinite if a training that ends after `step` steps has skipped most of them."""
        if is_mostly_skipped(self._skipped_last, step):
            text = f"{self._skipped_last} of {step} steps were skipped under {self._policy}: {NOT_FINITE}"
            raise NonFinite(step, text)

    def _cause(self, execution: Execution) -> str:
        what = "loss or moving statistics" if execution.forward_failed else "gradients"
        where = "" if execution.failed_replica is None else f" of replica {execution.failed_replica}"
        return f"{what}{where} are infinite or NaN"

    def _require_progress(self, execution: Execution, step: int) -> None:
        """Raise NonFinite if skipping persists; report it once if it is frequent."""
        skipped, in_a_row = execution.skipped_steps - self._skipped_before, execution.skipped_in_a_row
        if is_persistent(skipped=skipped, steps=self._steps, in_a_row=in_a_row):
            scale = execution.loss_scale
            at = "" if scale is None else f", with the loss scale at {scale:g}"
            count = f"{in_a_row} steps in a row" if in_a_row >= PERSISTENT else f"{skipped} of {self._steps} steps"
            raise NonFinite(step, f"{NOT_FINITE} in {count}{at}")
        is_frequent = skipped >= PERSISTENT // 10 and skipped >= _WORTH_SAYING * self._steps
        if is_frequent and self._steps >= PERSISTENT and not self._overflow_noticed:
            self._overflow_noticed = True
            text = "more than a tenth of the steps are skipped: lower the learning rate, or use bfloat16"
            self._notice("StepsSkipped", text, level="Warning")
