"""From a position in the data to the last step: everything that happens between two executions of the loop."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from mptraining_api import events
from mptraining_api.problems import Diverged, Preempted
from mptraining_api.resolved import ResolvedTraining
from mptraining_records.order import Position
from mptraining_trainer.batching import Batching
from mptraining_trainer.checkpoint import Checkpointer, CheckpointState
from mptraining_trainer.device_meter import DeviceMeter
from mptraining_trainer.hooks import Hooks
from mptraining_trainer.input_meter import STEADY, WORTH_SAYING, InputMeter, InputSince, advice
from mptraining_trainer.loop import Execution, Loop
from mptraining_trainer.pace import Boundaries, Pace
from mptraining_trainer.precision import DIVERGED_AFTER, FLOOR, LossScaler
from mptraining_trainer.profiling import Profiling
from mptraining_trainer.skipped import SkippedRecords
from mptraining_trainer.telemetry import peak_memory_bytes
from mptraining_trainer.worker import Worker

# Executions that the time of a step is taken from.
_RECENT = 1000


class Course:
    """The steps from a position to the end, with everything that happens between two executions."""

    def __init__(
        self,
        worker: Worker,
        loop: Loop,
        scaler: LossScaler | None,
        checkpointer: Checkpointer,
        skipped: SkippedRecords,
        batching: Batching,
        boundaries: Boundaries,
        training: ResolvedTraining,
        meter: InputMeter,
        hooks: Hooks,
    ) -> None:
        self._worker = worker
        self._hooks = hooks
        self._loop = loop
        self._scaler = scaler
        self._checkpointer = checkpointer
        self._skipped = skipped
        self._batching = batching
        self._boundaries = boundaries
        self._pace = Pace.begin(training.steps_per_execution)
        self._profiling = Profiling(worker)
        self._devices = DeviceMeter(worker.job)
        self._validation: tuple[Any, int] | None = None
        self._said_at = -math.inf
        self._step_seconds: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        # When and at which step the first execution, which compiles, was over.
        self._warm_since: tuple[float, int] | None = None
        self._loss_sum, self._loss_steps = 0.0, 0
        self.training_seconds = 0.0
        self._meter = meter
        self._advised = False
        # Seconds and bytes since the last Progress; of the whole course without the first execution.
        self._recent = InputSince()
        self._steady = InputSince()
        self.skipped_steps = 0
        self.last_step = 0

    @property
    def step_seconds(self) -> float | None:
        """Median over the last executions, weighted by their steps, without the first, which compiles."""
        ordered = sorted(self._step_seconds)
        half = sum(steps for _, steps in ordered) / 2
        for seconds, steps in ordered:
            half -= steps
            if half <= 0:
                return seconds
        return None

    def validate_on(self, iterator_and_steps: tuple[Any, int]) -> None:
        self._validation = iterator_and_steps

    def run(self, iterator: Any, step: int, position: Position) -> dict[str, float]:
        """Trains to the last step, `last_step`, or until a callback stops it; returns the last metrics, validation's
        with `val_`. Raises Preempted, Diverged.
        """
        metrics: dict[str, float] = {}
        now, ends, hooks = self._worker.telemetry.now, self._boundaries, self._hooks
        recent = 0.0
        if step >= ends.total_steps or hooks.stopped or hooks.pending(step):
            metrics = self._caught_up(iterator, step)
        over = hooks.stopped
        while step < ends.total_steps and not over:
            if ends.epoch_begins(step):
                self._loop.reset_metrics()
                self._loss_sum, self._loss_steps = 0.0, 0
            steps = min(self._pace.steps, ends.until_next(step))
            hooks.execution_begins(step)
            self._profiling.before(step)
            before = now()
            with self._profiling.step(step):
                stop = self._worker.preemption.asked()
                execution = self._loop.execute(iterator, steps, stop=stop, step_seconds=recent)
            took = now() - before
            self.training_seconds += took
            step += steps
            self._profiling.after(step)
            position = self._batching.advance(position, steps)
            self._check(execution, step)
            trained = self._epoch_loss() | execution.metrics
            metrics |= trained
            hooks.execution_ends(step, trained)
            recent = self._timed(execution, took, steps, step)
            leave = execution.asked_to_stop > 0
            # Before validation, which may take longer than a machine that is taken away has left.
            if ends.saves(step) or leave:
                self._checkpointer.save(self._state(step, position))
                self._skipped.publish()
            if leave and step < ends.total_steps:
                self._checkpointer.wait()
                raise Preempted(
                    f"step {step}",
                    "this machine is being taken away; saved",
                    next_step="The next attempt goes on from here.",
                )
            validated = self._validated() if ends.validates(step) else {}
            metrics |= validated
            over = hooks.turn(step, trained, validated)
            if over and not ends.saves(step):
                self._checkpointer.save(self._state(step, position))
            if validated or over or step == ends.total_steps or now() - self._said_at >= self._worker.progress_seconds:
                self._say(step, metrics, execution, now)
        self._profiling.finish(step)
        self.last_step = step
        hooks.end(metrics)
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def _timed(self, execution: Execution, took: float, steps: int, step: int) -> float:
        """Takes the time of an execution into account; returns the seconds of one of its steps."""
        # The first execution traces and compiles; what it took says nothing about a step.
        if self._warm_since is None:
            self._warm_since = self._worker.telemetry.now(), step
            self._recent, self._steady = InputSince.begin(self._meter), InputSince.begin(self._meter)
            return 0.0
        self._recent.add(took, execution.waited_seconds)
        self._steady.add(took, execution.waited_seconds)
        self._step_seconds.append((took / steps, steps))
        if steps == self._pace.steps:
            self._pace = self._pace.after(execution.step_seconds)
        return took / steps

    def _caught_up(self, iterator: Any, step: int) -> dict[str, float]:
        """What came of the steps before, which an earlier attempt may not have lived to say, nor hooks to hear."""
        over = step >= self._boundaries.total_steps or self._hooks.stopped
        execution = self._loop.execute(iterator, 0)
        self._loss_sum = execution.loss_sum
        trained = self._epoch_loss() | execution.metrics
        validated = self._validated() if over or self._boundaries.validates(step) else {}
        self.skipped_steps = execution.skipped_steps
        self._hooks.turn(step, trained, validated)
        if not over:
            self._say(step, trained | validated, execution, self._worker.telemetry.now)
        return trained | validated

    def _validated(self) -> dict[str, float]:
        if self._validation is None:
            return {}
        self._hooks.validation_begins()
        metrics = self._loop.evaluate(*self._validation)
        self._hooks.validation_ends(metrics)
        return {f"val_{name}": value for name, value in metrics.items()}

    def _check(self, execution: Execution, step: int) -> None:
        self.skipped_steps = execution.skipped_steps
        stuck = execution.skipped_in_a_row >= DIVERGED_AFTER and (execution.loss_scale or 0.0) <= FLOOR
        if stuck:
            raise Diverged(
                f"step {step}",
                f"gradients overflowed in {execution.skipped_in_a_row} steps in a row with the loss scale at its floor",
                next_step="Lower the learning rate, clip gradients (optimizer clipnorm), or use float32.",
            )
        if execution.applied_steps == 0:
            return
        self._loss_sum = execution.loss_sum
        self._loss_steps += execution.applied_steps
        if not math.isfinite(execution.loss):
            raise Diverged(
                f"step {step}",
                f"the loss became {execution.loss}, no finite number",
                next_step="Lower the learning rate, clip gradients (optimizer clipnorm), or look for infinite inputs; "
                "the last checkpoint is from before it (training.onNonFinite: Recover is not there yet).",
            )

    def _epoch_loss(self) -> dict[str, float]:
        """The mean over the epoch's steps so far, as `fit` reports it."""
        return {"loss": self._loss_sum / self._loss_steps} if self._loss_steps else {}

    def resume(self, state: CheckpointState) -> None:
        """Goes on from a checkpoint, in the middle of an epoch perhaps; the loop's own sums are restored already."""
        self._loss_steps = state.loss_steps

    def _say(self, step: int, metrics: dict[str, float], execution: Execution, now: Any) -> None:
        self._said_at = now()
        figures = self._meter.figures
        speed = self.step_seconds
        examples = None if speed is None else self._batching.examples_per_step / speed
        self._worker.telemetry.say(
            events.Progress,
            step=step,
            total_steps=self._boundaries.total_steps,
            epoch=self._boundaries.epoch(step),
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
            examples_per_second=None if examples is None else round(examples, 1),
            step_seconds=speed,
            input_bound_percent=self._recent.bound_percent,
            input_bytes_per_second=self._recent.bytes_per_second(figures.bytes),
            input_requests=figures.requests if self._meter.remote else None,
            input_retries=figures.retries if self._meter.remote else None,
            estimated_remaining_seconds=self._remaining_seconds(step),
            loss_scale=execution.loss_scale,
            skipped_steps=execution.skipped_steps,
            peak_memory_bytes=peak_memory_bytes(),
            **self._devices.read(),
        )
        self._recent = InputSince.begin(self._meter)
        self._advise()
        if speed is not None and (text := self._pace.shortened(speed)):
            self._worker.telemetry.notice("StepsPerExecution", text)

    @property
    def input_bound_percent(self) -> float | None:
        """The share of the time in which the device waited for data, without the first execution."""
        return self._steady.bound_percent

    def _advise(self) -> None:
        percent = self._steady.bound_percent
        if not self._advised and percent is not None and self._steady.seconds > STEADY and percent >= WORTH_SAYING:
            self._advised = True
            text = advice(self._steady, self._meter)
            self._worker.telemetry.notice("InputBound", text, level="Warning")

    def _remaining_seconds(self, step: int) -> float | None:
        """At the pace so far, validation and saving included, which a step's own time leaves out."""
        if self._warm_since is None or step <= self._warm_since[1]:
            return None
        began, first = self._warm_since
        elapsed = self._worker.telemetry.now() - began
        return round(elapsed / (step - first) * (self._boundaries.total_steps - step), 1)

    def _state(self, step: int, position: Position) -> CheckpointState:
        scaling = self._scaler.state() if self._scaler else None
        seat, job = self._worker.seat, self._worker.job
        return CheckpointState(
            step=step,
            attempt=seat.attempt,
            incarnation=seat.incarnation,
            seed=position.seed,
            epoch=position.epoch,
            examples=position.examples,
            fingerprint=position.fingerprint,
            policy=job.precision.policy,
            replicas=job.replicas,
            loss_scale=scaling.scale if scaling else None,
            good_steps=scaling.good_steps if scaling else 0,
            skipped_steps=scaling.skipped_steps if scaling else 0,
            skipped_in_a_row=scaling.skipped_in_a_row if scaling else 0,
            loss_steps=self._loss_steps,
            callbacks=self._hooks.state(),
        )
