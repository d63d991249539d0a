"""The result of one worker's training, from which result.json is written."""

from __future__ import annotations

from dataclasses import dataclass

from mptraining_api.run_folder import Best
from mptraining_trainer.data.input_stats import InputMeter
from mptraining_trainer.numerics.recovery import PrecisionState


@dataclass(frozen=True)
class TrainingResult:
    """Figures and message of a finished training."""

    step: int | None
    metrics: dict[str, float]
    model: str | None
    step_seconds: float | None
    training_seconds: float | None
    skipped_steps: int
    skipped_records: int
    message: str
    # None for a script, which has its own loop and reads its own data.
    precision_state: PrecisionState | None = None
    loss_scale: float | None = None
    gradient_norm: float | None = None
    input_bound_percent: float | None = None
    input_meter: InputMeter | None = None
    # Of a script: the policy of its last model's layers.
    policy: str | None = None
    # The step whose weights were exported in place of the last ones; None for the last.
    best: Best | None = None
    # What the result lacks although the training succeeded; most important first.
    warnings: tuple[str, ...] = ()
