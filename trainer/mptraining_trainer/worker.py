"""What every part of a worker's run needs to know of it, and what comes out of it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from mptraining_api.launch import Seat
from mptraining_api.resolved import ResolvedJob
from mptraining_api.run_folder import Best
from mptraining_trainer.fence import Fence
from mptraining_trainer.input_meter import InputMeter
from mptraining_trainer.preemption import Preemption
from mptraining_trainer.recovery import Numbers
from mptraining_trainer.telemetry import Telemetry


@dataclass(frozen=True)
class Worker:
    """What every section needs: the job, this process's seat, its voice, the run folder, and what ends with it.

    The chief has a fence once it has claimed the folder.
    """

    job: ResolvedJob
    seat: Seat
    telemetry: Telemetry
    preemption: Preemption
    folder: str
    progress_seconds: float
    # What is to be closed when the run ends, however it ends.
    ends: ExitStack
    fence: Fence | None = None


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
    numbers: Numbers | None = None
    loss_scale: float | None = None
    gradient_norm: float | None = None
    input_bound_percent: float | None = None
    input: InputMeter | None = None
    # Of a script: the policy that the layers of its last model have.
    policy: str | None = None
    # What was exported in the place of the last weights.
    best: Best | None = None
