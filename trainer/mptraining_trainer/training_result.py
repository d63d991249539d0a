"""The result of one worker's training, from which result.json is written."""

from __future__ import annotations

from dataclasses import dataclass

from mptraining_api.run_folder import Best
from mptraining_trainer.data.input_stats import InputMeter
from mptraining_trainer.numerics.recovery import PrecisionState


@dataclass(frozen=True)
class Trained:
    """How training ended, for the result."""

    step: int | None
    metrics: dict[str, float]
    model: str | None
    step_seconds: float | None
    training_seconds: float | None
    skipped_steps: int
    skipped_records: int
    message: str
    # None for a script, which has its own loop and reads its own data.
    numbers: PrecisionState | None = None
    loss_scale: float | None = None
    gradient_norm: float | None = None
    input_bound_percent: float | None = None
    input: InputMeter | None = None
    # Of a script: the policy that the layers of its last model have.
    policy: str | None = None
    # What was exported in the place of the last weights.
    best: Best | None = None
