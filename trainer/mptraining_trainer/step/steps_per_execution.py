"""The number of steps per execution, the boundaries at which executions end, and the results of an execution."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

# Long enough that the host's part of a call (about a millisecond) is negligible, short enough that a preempted worker
# saves within its grace period: a call must never take more than about a second.
TARGET_SECONDS = 0.25
LIMIT = 4096
# The job's stepsPerExecution applies up to this duration: a preempted worker has 15 s for the current call and the
# save.
LONGEST_SECONDS = 1.0
# The maximum growth per call, because a measurement of few steps is noisy.
_MOST_GROWTH = 8


@dataclass(frozen=True)
class StepsPerExecution:
    """The next number of `steps`, at most `limit` and so many that a call takes about `seconds`.

    It begins with one step, which compiles, and grows with the measured durations.
    """

    steps: int
    limit: int
    seconds: float

    @classmethod
    def begin(cls, steps_per_execution: int | None) -> StepsPerExecution:
        """Return the measured number, or the job's, as long as such a call takes at most LONGEST_SECONDS."""
        if steps_per_execution is None:
            return cls(1, LIMIT, TARGET_SECONDS)
        return cls(1, steps_per_execution, LONGEST_SECONDS)

    def adjust(self, step_seconds: float) -> StepsPerExecution:
        """Return the number after a call whose steps took `step_seconds` each, the same mean on all workers."""
        if step_seconds <= 0:
            return self
        target = int(min(LIMIT, self.seconds / step_seconds))
        return replace(self, steps=max(1, min(target, self.steps * _MOST_GROWTH, self.limit)))

    def limit_notice(self, step_seconds: float) -> str | None:
        """Return a notice if the job's steps at `step_seconds` each take longer than a call may."""
        if self.seconds != LONGEST_SECONDS or self.limit * step_seconds <= LONGEST_SECONDS:
            return None
        return (
            f"{self.limit} steps, as stepsPerExecution says, take longer than {LONGEST_SECONDS:g} s; calls are kept "
            "shorter, so that a preempted machine has time to save"
        )


@dataclass(frozen=True)
class Boundaries:
    """Steps at which training pauses; None for an `every_*` means never.

    `offset` is the step at which epoch 0 would have begun if every step had the present size: it differs from 0 after a
    resume with another batch size, and if the job begins with a later epoch. Epochs end where the passes over the data
    do.
    """

    total_steps: int
    steps_per_epoch: int
    validation_every: int | None
    checkpoint_every: int | None
    offset: int = 0
    # Additional steps after which an execution ends.
    pauses: tuple[int, ...] = ()
    validates_at_end: bool = True

    def steps_until_next(self, step: int) -> int:
        """Return the number of steps from `step` to the next boundary."""
        ends = [self.total_steps - step, *(pause - step for pause in self.pauses if pause > step)]
        for every in (self.steps_per_epoch, self.validation_every, self.checkpoint_every):
            if every is not None:
                ends.append(every - (step - self.offset) % every)
        return min(ends)

    def is_epoch_start(self, step: int) -> bool:
        return (step - self.offset) % self.steps_per_epoch == 0

    def epoch(self, step: int) -> int:
        """Return the epoch, from 1, of the last of `step` steps."""
        return -(-(step - self.offset) // self.steps_per_epoch)

    def is_validation_due(self, step: int) -> bool:
        """Return whether validation is due after `step` steps, or after the last step unless due by epochs only."""
        return self.validation_every is not None and (
            (step - self.offset) % self.validation_every == 0 or (self.validates_at_end and step == self.total_steps)
        )

    def is_save_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after `step` steps; always after the last one."""
        return step == self.total_steps or (
            self.checkpoint_every is not None and (step - self.offset) % self.checkpoint_every == 0
        )


@dataclass(frozen=True)
class Execution:
    """The result of one call of the device: `loss` is the mean over its `applied_steps`, those that were not skipped.

    `loss_weight` is the number of these steps, each weighted by its share of real rows; 0 if the model's own step logs
    the loss itself.

    `gradient_norm` is the Euclidean norm of all gradients of the last step, summed over replicas and accumulated parts,
    before any clipping and without the loss scale; it may be infinite, and is NaN if that step was skipped. The first
    `finite_steps` steps had a finite one; in step `failed_step`, counted from 0, `failed_replica` had infinite or NaN
    values: with `forward_failed` in its loss or statistics, else in its gradients alone (None if the updates are not
    checked, or only the sum of the gradients was not finite). It is the first step of the worst of these kinds; with
    `seeks_scale` the cause may be a loss scale that can still fall. `loss_sum` and `metrics` run since `reset_metrics`.
    `stop_requests` and `non_finite_workers` count the workers that reported so (see `Loop.execute`), `step_seconds` is
    the mean over the workers: the same on every worker, so that all decide the same. `waited_seconds` is the workers'
    mean of waiting for batches, None if not measured. (A GPU that still computes while its host waits counts as
    waiting.)
    """

    applied_steps: int
    loss: float
    loss_sum: float
    loss_weight: float
    gradient_norm: float
    finite_steps: int
    failed_replica: int | None
    failed_step: int | None
    forward_failed: bool
    seeks_scale: bool
    metrics: dict[str, float]
    loss_scale: float | None
    skipped_steps: int
    skipped_in_a_row: int
    stop_requests: int
    step_seconds: float
    waited_seconds: float | None = field(compare=False)
    non_finite_workers: int = 0
