"""A whole course of training, as the trainer runs it between Started and Finished, with or without its output.

With: events to a log and into a run folder, progress at the default interval, a checkpoint after every epoch. Without:
the same steps, without events and checkpoints.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from hack.bench.trainer import tasks
from hack.bench.trainer.contenders import Measured, Stopwatch, make_loop, make_strategy
from hack.bench.trainer.jobs import SEAT, resolved
from mptraining_api.events import Event
from mptraining_records.reading.order import Position
from mptraining_records.storage import storage
from mptraining_trainer.checkpoints.checkpoint import Checkpointer, Contents
from mptraining_trainer.checkpoints.state import CheckpointState
from mptraining_trainer.data.batching import Batching
from mptraining_trainer.data.dataset import SkippedRecords
from mptraining_trainer.data.input_stats import InputMeter
from mptraining_trainer.distribution.preemption import Preemption
from mptraining_trainer.keras_backend import load
from mptraining_trainer.loop.steps_per_execution import Boundaries, StepsPerExecution
from mptraining_trainer.numerics.recovery import PrecisionState
from mptraining_trainer.reporting.telemetry import Telemetry
from mptraining_trainer.training.fit import FitLoop, NonFiniteHandling, StepPlan
from mptraining_trainer.training.hooks import Hooks
from mptraining_trainer.training.non_finite import NonFiniteMonitor
from mptraining_trainer.worker import Worker

# The trainer's default: the value of MPTRAINING_PROGRESS_SECONDS if it is not set.
_PROGRESS_SECONDS = 10.0


@dataclass(frozen=True)
class CourseSetting:
    """`epoch` steps are between two checkpoints; `keeps` is False for the contender without events and checkpoints."""

    task: tasks.TaskName
    epoch: int
    keeps: bool


class CourseContender:
    """Each piece of training is one job from step 0 to its end, in a new run folder; epochs are never cut."""

    def __init__(self, setting: CourseSetting) -> None:
        self.multiple = setting.epoch
        self._setting = setting
        task = tasks.TASKS[setting.task]
        self._keras = load("Keras3")
        self._keras.set_seed(7)
        self._strategy = make_strategy("trainer", 1)
        self._loop, self._model, self._optimizer, self._iterator = make_loop(self._keras, self._strategy, task)
        self._job = resolved(batch=task.batch, replicas=1, steps_per_execution=None)
        self._batching = Batching(setting.epoch * task.batch, task.batch, "Drop")

    def train(self, steps: int) -> Measured:
        with tempfile.TemporaryDirectory(prefix="mptraining-bench-") as folder:
            fit_loop, checkpointer = self._course(folder, steps)
            watch = Stopwatch()
            watch.start()
            fit_loop.run(self._iterator, 0, Position(seed=7, epoch=0, examples=0, fingerprint="bench"))
            checkpointer.wait()
            return watch.stop(steps)

    def _course(self, folder: str, steps: int) -> tuple[FitLoop, Checkpointer]:
        keeps, training = self._setting.keeps, self._job.training
        assert training is not None
        telemetry = Telemetry(SEAT, folder) if keeps else _Silent(SEAT, None)
        checkpointer = (Checkpointer if keeps else _Unsaved)(
            storage.join(folder, "checkpoints"),
            Contents(self._keras, self._model, self._optimizer, self._loop.metrics),
            max_to_keep=self._job.checkpoint.max_to_keep,
            chief=True,
            telemetry=telemetry,
            strategy=self._strategy,
        )
        worker = Worker(self._job, SEAT, telemetry, Preemption(_stay), folder, _PROGRESS_SECONDS, ExitStack())
        boundaries = Boundaries(
            total_steps=steps,
            steps_per_epoch=self._setting.epoch,
            validation_every=None,
            checkpoint_every=self._setting.epoch,
        )
        precision_state = PrecisionState(requested_policy="float32", policy="float32")
        fit_loop = FitLoop(
            worker,
            self._loop,
            None,
            checkpointer,
            plan=StepPlan(self._batching, boundaries, StepsPerExecution.begin(training.steps_per_execution)),
            non_finite=NonFiniteHandling(precision_state, NonFiniteMonitor(precision_state, (), telemetry.notice)),
            hooks=Hooks(),
            skipped_records=SkippedRecords(worker, []),
            learning_rate=lambda: None,
            meter=InputMeter(),
        )
        return fit_loop, checkpointer


class _Silent(Telemetry):
    def emit(self, kind: type[Event], **fields: Any) -> None:
        """Drop the event."""


class _Unsaved(Checkpointer):
    def save(self, state: CheckpointState) -> None:
        """Save nothing."""


def _stay() -> None:
    """Replace the exit of a preempted worker that does not end in time: a benchmark is not preempted."""
