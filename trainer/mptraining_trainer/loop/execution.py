"""What one call of the device tells the host; no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, field


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
