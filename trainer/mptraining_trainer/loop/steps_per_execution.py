"""How many steps are fused into one call of the device, and where they must end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

# Long enough that the host's part of a call (about a millisecond) is lost in it, short enough that a preempted
# worker saves well within its grace: a call must never take more than about a second.
TARGET_SECONDS = 0.25
LIMIT = 4096
# What the job names is kept up to here: a worker that is taken away has 15 s for the call under way and the save.
LONGEST_SECONDS = 1.0
# A measurement of few steps is a noisy one: trust it this far only.
_GROWTH = 8


@dataclass(frozen=True)
class StepsPerExecution:
    """`steps` to fuse next, at most `limit` and so many that a call takes about `seconds`.

    It begins with one step, which compiles, and grows with what is measured.
    """

    steps: int
    limit: int
    seconds: float

    @classmethod
    def begin(cls, steps_per_execution: int | None) -> StepsPerExecution:
        """Measured, or as many as the job names, where a call of them takes no longer than LONGEST_SECONDS."""
        if steps_per_execution is None:
            return cls(1, LIMIT, TARGET_SECONDS)
        return cls(1, steps_per_execution, LONGEST_SECONDS)

    def after(self, step_seconds: float) -> StepsPerExecution:
        """The pace after a call whose steps took `step_seconds` each (averaged over the workers, so that all agree)."""
        if step_seconds <= 0:
            return self
        wanted = int(min(LIMIT, self.seconds / step_seconds))
        return replace(self, steps=max(1, min(wanted, self.steps * _GROWTH, self.limit)))

    def shortened(self, step_seconds: float) -> str | None:
        """What to say when the job names more steps than a call may take at `step_seconds` each."""
        if self.seconds != LONGEST_SECONDS or self.limit * step_seconds <= LONGEST_SECONDS:
            return None
        return (
            f"{self.limit} steps, as stepsPerExecution says, take longer than {LONGEST_SECONDS:g} s; calls are kept "
            "shorter, so that a machine that is taken away has time to save"
        )


@dataclass(frozen=True)
class Boundaries:
    """Steps at which training pauses: `every_*` of None never does.

    `offset` is the step at which epoch 0 would have begun, had every step been of today's size: another than 0 after a
    resume with another batch size, and where the job begins with a later epoch. Epochs end where the passes over the
    data do.
    """

    total_steps: int
    steps_per_epoch: int
    validation_every: int | None
    checkpoint_every: int | None
    offset: int = 0
    # Single steps after which an execution ends.
    pauses: tuple[int, ...] = ()
    validates_at_end: bool = True

    def until_next(self, step: int) -> int:
        """Steps from `step` to the nearest boundary after it."""
        ends = [self.total_steps - step, *(pause - step for pause in self.pauses if pause > step)]
        for every in (self.steps_per_epoch, self.validation_every, self.checkpoint_every):
            if every is not None:
                ends.append(every - (step - self.offset) % every)
        return min(ends)

    def epoch_begins(self, step: int) -> bool:
        return (step - self.offset) % self.steps_per_epoch == 0

    def epoch(self, step: int) -> int:
        """The epoch, from 1, that the last of `step` steps belongs to."""
        return -(-(step - self.offset) // self.steps_per_epoch)

    def validates(self, step: int) -> bool:
        """Whether validation is due after `step` steps; after the last one too, unless it is due by epochs alone."""
        return self.validation_every is not None and (
            (step - self.offset) % self.validation_every == 0 or (self.validates_at_end and step == self.total_steps)
        )

    def saves(self, step: int) -> bool:
        """Whether a checkpoint is due after `step` steps; always after the last one."""
        return step == self.total_steps or (
            self.checkpoint_every is not None and (step - self.offset) % self.checkpoint_every == 0
        )


@dataclass(frozen=True)
class Execution:
    """What one call of the device brought: `loss` is the mean over its `applied_steps`, those not skipped.

    `loss_weight` is the number of these steps, each by its share of rows that count; 0 where the model's own step logs
    the loss itself.

    `gradient_norm` is the Euclidean norm of all gradients of the last step, summed over replicas and accumulated
    parts, before any clipping and without the loss scale; it may be infinite or NaN. The first `finite_steps` steps
    had a finite one. `loss_sum` and `metrics` run since `reset_metrics`. `asked_to_stop` and `broken` count the workers
    that said so, `step_seconds` is the mean of what each of them said (see `execute`): the same on every worker, so
    that all decide alike. `waited_seconds` is how long they waited for batches, the mean of them too, None where nobody
    measures it. (A GPU that has work left while its host waits is counted as waiting.)
    """

    applied_steps: int
    loss: float
    loss_sum: float
    loss_weight: float
    gradient_norm: float
    finite_steps: int
    metrics: dict[str, float]
    loss_scale: float | None
    skipped_steps: int
    skipped_in_a_row: int
    asked_to_stop: int
    step_seconds: float
    waited_seconds: float | None = field(compare=False)
    broken: int = 0
