"""The fit loop from a position in the data to the last step, with the work between two executions, and its speed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mptraining_api import events
from mptraining_api.problems import Preempted
from mptraining_records.reading import order
from mptraining_records.reading.order import Position
from mptraining_trainer.checkpoints.checkpoint import Checkpointer
from mptraining_trainer.checkpoints.state import CheckpointState
from mptraining_trainer.data.dataset import SkippedRecords
from mptraining_trainer.data.input_stats import REPORTED_PERCENT, WARM_UP_SECONDS, InputInterval, InputMeter, advice
from mptraining_trainer.devices.coordination import exit_barrier
from mptraining_trainer.numerics.recovery import NonFinite, PrecisionState, Rollback
from mptraining_trainer.report.system_metrics import SystemMeter
from mptraining_trainer.report.telemetry import peak_memory_bytes
from mptraining_trainer.session.build import BuildResult
from mptraining_trainer.session.hooks import Hooks
from mptraining_trainer.session.non_finite import NonFiniteMonitor
from mptraining_trainer.session.profiling import DeviceMeter, Profiling
from mptraining_trainer.step.steps_per_execution import Boundaries, Execution, StepsPerExecution
from mptraining_trainer.worker import Worker

# Number of executions in the median time of a step.
_RECENT = 1000


class Speed:
    """Speed of the steps, by the time of every execution except the first one, which traces and compiles."""

    def __init__(self, meter: InputMeter, now: Callable[[], float]) -> None:
        self._meter = meter
        self._now = now
        self._step_seconds: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        # Time and step of the end of the first execution.
        self._warm_since: tuple[float, int] | None = None
        # `recent` counts since the last Progress, `steady` since the first execution.
        self.recent = InputInterval()
        self.steady = InputInterval()
        self._advised = False

    def add(self, seconds: float, waited_seconds: float | None, steps: int, step: int) -> float | None:
        """Add an execution that ended with step `step`; return the seconds per step, None for the first execution.

        `seconds` and `waited_seconds` (for data, None if it was not measured) are those of the execution.
        """
        if self._warm_since is None:
            self._warm_since = self._now(), step
            self.recent, self.steady = InputInterval.begin(self._meter), InputInterval.begin(self._meter)
            return None
        self.recent.add(seconds, waited_seconds)
        self.steady.add(seconds, waited_seconds)
        self._step_seconds.append((seconds / steps, steps))
        return seconds / steps

    @property
    def step_seconds(self) -> float | None:
        """Median seconds per step over the last executions, weighted by their steps."""
        ordered = sorted(self._step_seconds)
        half = sum(steps for _, steps in ordered) / 2
        for seconds, steps in ordered:
            half -= steps
            if half <= 0:
                return seconds
        return None

    def reset_recent(self) -> None:
        """Reset `recent` after a Progress event."""
        self.recent = InputInterval.begin(self._meter)

    def advice(self) -> str | None:
        """Return advice against waiting for data, once, if the wait is long enough; else None."""
        percent = self.steady.bound_percent
        if self._advised or percent is None or self.steady.seconds <= WARM_UP_SECONDS or percent < REPORTED_PERCENT:
            return None
        self._advised = True
        return advice(self.steady, self._meter)

    def remaining_seconds(self, step: int, total_steps: int) -> float | None:
        """Return the estimate by the time per step so far, validation and saving included."""
        if self._warm_since is None or step <= self._warm_since[1]:
            return None
        began, first = self._warm_since
        return round((self._now() - began) / (step - first) * (total_steps - step), 1)


@dataclass(frozen=True)
class Session:
    """A model under one policy, trained from a checkpoint to the last step, or until a value is infinite or NaN.

    `hooks` are those of the built model. `state` is the checkpoint's, None to begin at step 0. `rollback` is the one
    that ended the previous session, `spent_seconds` is the time of training before this session.
    """

    worker: Worker
    built: BuildResult
    hooks: Hooks
    checkpointer: Checkpointer
    state: CheckpointState | None
    precision_state: PrecisionState
    rollback: Rollback | None
    spent_seconds: float


@dataclass(frozen=True)
class Start:
    """The step and the position in the data after which a session begins, and the steps at which it pauses."""

    step: int
    position: Position
    boundaries: Boundaries


class FitLoop:
    """Runs the steps from a position to the end, and validation, checkpoints and hooks between two executions.

    `validation` is an endless iterator, with the number of steps that covers every example once.
    """

    def __init__(
        self,
        session: Session,
        boundaries: Boundaries,
        non_finite: NonFiniteMonitor,
        validation: tuple[Any, int] | None,
    ) -> None:
        built, datasets = session.built, session.built.context.datasets
        self.worker = worker = replace(session.worker, job=built.job)
        self.loop = built.loop
        self.batching = built.context.batching
        self.boundaries = boundaries
        self.hooks = session.hooks
        self.checkpointer = session.checkpointer
        self.precision_state = session.precision_state
        self.non_finite = non_finite
        self.validation = validation
        self.steps_per_execution = StepsPerExecution.begin(session.hooks.callbacks.steps_per_execution)
        splits = (datasets.training, datasets.validation)
        self.skipped_records = SkippedRecords(worker, [split.reader for split in splits if split is not None])
        self.training_seconds = 0.0
        self.last_step = self.skipped_steps = 0
        self.loss_scale: float | None = None
        self.gradient_norm: float | None = None
        self.speed = Speed(datasets.meter, worker.telemetry.now)
        self._meter = datasets.meter
        self._scaler = built.scaler
        self._learning_rate = partial(built.context.keras.learning_rate, built.optimizer)
        self._profiling = Profiling(worker)
        self._devices = DeviceMeter(worker.job)
        self._system = SystemMeter(worker.telemetry.now)
        self._reported_at = -math.inf
        self._loss_sum, self._loss_steps = 0.0, 0.0
        self._weights_non_finite = False

    def run(self, iterator: Any, step: int, position: Position) -> dict[str, float]:
        """Train to the last step or until a callback stops training; set `last_step`; return the last metrics,
        validation's with `val_`. Raise Preempted, NonFinite.
        """
        metrics: dict[str, float] = {}
        now, boundaries, hooks = self.worker.telemetry.now, self.boundaries, self.hooks
        recent = 0.0
        if step >= boundaries.total_steps or hooks.training_stopped or hooks.has_pending(step):
            metrics = self._finish_pending_step(iterator, step, position)
        over = hooks.training_stopped
        while step < boundaries.total_steps and not over:
            if boundaries.is_epoch_start(step):
                self.loop.reset_metrics()
                self._loss_sum, self._loss_steps = 0.0, 0.0
            steps = min(self.steps_per_execution.steps, boundaries.steps_until_next(step))
            hooks.execution_begins(step)
            self._profiling.before_execution(step)
            before = now()
            with self._profiling.trace_execution(step):
                execution = self.loop.execute(
                    iterator,
                    steps,
                    stop=self.worker.preemption.stop_requested(),
                    step_seconds=recent,
                    weights_non_finite=self._weights_non_finite,
                )
            took = now() - before
            self.training_seconds += took
            self.non_finite.check(execution, step, steps, partial(self.batching.advance, position))
            step += steps
            self._profiling.after_execution(step)
            position = self.batching.advance(position, steps)
            self._record(execution)
            trained = self._epoch_loss() | execution.metrics
            metrics |= trained
            hooks.execution_ends(step, trained)
            one_step = self.speed.add(took, execution.waited_seconds, steps, step)
            if one_step is not None:
                recent = one_step
                if steps == self.steps_per_execution.steps:
                    self.steps_per_execution = self.steps_per_execution.adjust(execution.step_seconds)
            stopping = execution.stop_requests > 0
            # The save comes before validation, which may take longer than the grace period of a preempted machine.
            if boundaries.is_save_due(step) or stopping:
                self._save(step, position)
                self.skipped_records.publish()
            if stopping and step < boundaries.total_steps:
                raise self._preempted_error(step)
            validated = (
                self._validate(step, position) if boundaries.is_validation_due(step) or hooks.epoch_ended_early else {}
            )
            metrics |= validated
            over = hooks.run_step_end(step, trained, validated)
            if over and not boundaries.is_save_due(step):
                self._save(step, position)
            if (
                validated
                or over
                or step == boundaries.total_steps
                or now() - self._reported_at >= self.worker.progress_seconds
            ):
                self._report(step, metrics, execution, now)
        self._profiling.finish(step)
        self.last_step = step
        return metrics

    def _finish_pending_step(self, iterator: Any, step: int, position: Position) -> dict[str, float]:
        """Report the metrics of the last step and call its hooks if an earlier attempt ended before it could."""
        over = step >= self.boundaries.total_steps or self.hooks.training_stopped
        execution = self.loop.execute(iterator, 0)
        self._loss_sum = execution.loss_sum
        trained = self._epoch_loss() | execution.metrics
        validates = over or self.boundaries.is_validation_due(step) or self.hooks.epoch_ended_early
        validated = self._validate(step, position) if validates else {}
        self.skipped_steps, self.loss_scale = execution.skipped_steps, execution.loss_scale
        self.hooks.run_step_end(step, trained, validated)
        if not over:
            self._report(step, trained | validated, execution, self.worker.telemetry.now)
        return trained | validated

    def _save(self, step: int, position: Position) -> None:
        with self._record_non_finite():
            self.checkpointer.save(self._state(step, position))

    def abandon(self) -> None:
        """Stop profiling; another fit loop resumes from an earlier step."""
        self._profiling.abandon()

    def wait_for_save(self) -> bool:
        """Wait for the last save; return whether the weights are finite. Raise NonFinite on a single worker."""
        with self._record_non_finite():
            self.checkpointer.wait()
        return not self._weights_non_finite

    @contextmanager
    def _record_non_finite(self) -> Iterator[None]:
        """Record NonFinite in `_weights_non_finite` if there are several workers.

        Only the chief writes weights and finds that they are not finite: the next execution reports it to the other
        workers, so that all stop after the same step.
        """
        try:
            yield
        except NonFinite:
            if self.worker.job.workers == 1:
                raise
            self._weights_non_finite = True

    def validate_final_weights(self) -> dict[str, float]:
        """Return validation's metrics of the present weights, without calling hooks; empty without validation."""
        if self.validation is None:
            return {}
        metrics = self.loop.evaluation.run(*self.validation, now=self.worker.telemetry.now)
        return {f"val_{name}": value for name, value in (metrics or {}).items()}

    def _validate(self, step: int, position: Position) -> dict[str, float]:
        """Return validation's metrics. Raise Preempted if a worker must stop: the next attempt validates again."""
        if self.validation is None:
            return {}
        self.hooks.callbacks.validation_begins()
        iterator, steps = self.validation
        metrics = self.loop.evaluation.run(
            iterator,
            steps,
            now=self.worker.telemetry.now,
            stop=self.worker.preemption.stop_requested,
            one_by_one=self.hooks.callbacks.sees_test_batches,
            on_batches_begin=self.hooks.callbacks.test_batches_begin,
            on_batches_end=self.hooks.callbacks.test_batches_end,
        )
        if metrics is None:
            if self.checkpointer.last_step != step:
                self._save(step, position)
                self.skipped_records.publish()
            raise self._preempted_error(step)
        self.hooks.callbacks.validation_ends(metrics)
        return {f"val_{name}": value for name, value in metrics.items()}

    def _preempted_error(self, step: int) -> Preempted:
        exit_barrier(self.worker.identity)
        self.wait_for_save()
        return Preempted(
            f"step {step}", "this machine is being preempted; saved", next_step="The next attempt resumes from here."
        )

    def _record(self, execution: Execution) -> None:
        self.skipped_steps, self.loss_scale = execution.skipped_steps, execution.loss_scale
        self.gradient_norm = execution.gradient_norm if math.isfinite(execution.gradient_norm) else None
        if execution.applied_steps:
            self._loss_sum = execution.loss_sum
            self._loss_steps += execution.loss_weight

    def _epoch_loss(self) -> dict[str, float]:
        """Return the mean loss over the epoch's steps so far, as `fit` reports it."""
        if self._loss_steps:
            return {"loss": self._loss_sum / self._loss_steps}
        # All steps of the epoch were skipped, or the model's own step logs the loss.
        return {"loss": math.nan} if self.skipped_steps else {}

    def resume(self, state: CheckpointState) -> None:
        """Resume from a checkpoint, which may be in mid-epoch; the loop's own sums are already restored."""
        self._loss_steps = state.loss_steps

    def _report(self, step: int, metrics: dict[str, float], execution: Execution, now: Any) -> None:
        if self._reported_at == -math.inf:
            rows = self.batching.examples_per_step // self.loop.parts
            if (memory := self._devices.memory_advice(rows, self.loop.gradient_bytes)) is not None:
                self.worker.telemetry.notice("DeviceMemory", memory)
        self._reported_at = now()
        figures = self._meter.figures
        speed = self.speed.step_seconds
        examples = None if speed is None else self.batching.examples_per_step / speed
        self.worker.telemetry.emit(
            events.Progress,
            step=step,
            total_steps=self.boundaries.total_steps,
            epoch=self.boundaries.epoch(step),
            metrics=metrics,
            examples_per_second=None if examples is None else round(examples, 1),
            step_seconds=speed,
            input_bound_percent=self.speed.recent.bound_percent,
            input_bytes_per_second=self.speed.recent.bytes_per_second(figures.received),
            input_requests=figures.requests if self._meter.remote else None,
            input_retries=figures.retries if self._meter.remote else None,
            estimated_remaining_seconds=self.speed.remaining_seconds(step, self.boundaries.total_steps),
            learning_rate=self._learning_rate(),
            loss_scale=execution.loss_scale,
            skipped_steps=execution.skipped_steps,
            gradient_norm=self.gradient_norm,
            precision=self.precision_state.policy,
            recoveries=len(self.precision_state.recoveries),
            peak_memory_bytes=peak_memory_bytes(),
            **self._devices.read(),
            **self._system.read(),
        )
        self.speed.reset_recent()
        if (text := self.speed.advice()) is not None:
            self.worker.telemetry.notice("InputBound", text, level="Warning")
        if speed is not None and (text := self.steps_per_execution.limit_notice(speed)):
            self.worker.telemetry.notice("StepsPerExecution", text)

    def _state(self, step: int, position: Position) -> CheckpointState:
        scaling = self._scaler.state() if self._scaler else None
        precision_state = self.precision_state
        identity, job = self.worker.identity, self.worker.job
        return CheckpointState(
            step=step,
            attempt=identity.attempt,
            incarnation=identity.incarnation,
            seed=position.seed,
            epoch=position.epoch,
            examples=position.examples,
            fingerprint=position.fingerprint,
            order=order.VERSION,
            mixed=position.mixed,
            policy=precision_state.policy,
            asked_policy=precision_state.requested_policy,
            checked=precision_state.checked,
            recoveries=precision_state.recoveries,
            measured=precision_state.trials,
            replicas=job.replicas,
            examples_per_step=self.batching.examples_per_step,
            loss_scale=scaling.scale if scaling else None,
            good_steps=scaling.good_steps if scaling else 0,
            skipped_steps=scaling.skipped_steps if scaling else 0,
            skipped_in_a_row=scaling.skipped_in_a_row if scaling else 0,
            loss_steps=self._loss_steps,
            callbacks=self.hooks.state(),
        )
