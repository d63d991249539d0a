"""The fit loop from a position in the data to the last step, with the work between two executions, and its speed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from mptraining_api import events
from mptraining_api.problems import Preempted
from mptraining_records.reading.order import Position
from mptraining_trainer.checkpoints.checkpoint import Checkpointer
from mptraining_trainer.checkpoints.state import CheckpointState
from mptraining_trainer.data.batching import Batching
from mptraining_trainer.data.dataset import SkippedRecords
from mptraining_trainer.data.input_stats import REPORTED_PERCENT, WARM_UP_SECONDS, InputInterval, InputMeter, advice
from mptraining_trainer.distribution.coordination import exit_barrier
from mptraining_trainer.loop.steps_per_execution import Boundaries, Execution, StepsPerExecution
from mptraining_trainer.loop.train_loop import Loop
from mptraining_trainer.numerics.loss_scaling import LossScaler
from mptraining_trainer.numerics.recovery import NonFinite, PrecisionState
from mptraining_trainer.reporting.system_metrics import SystemMeter
from mptraining_trainer.reporting.telemetry import peak_memory_bytes
from mptraining_trainer.training.bad_rows import RecordExclusion
from mptraining_trainer.training.hooks import Hooks
from mptraining_trainer.training.non_finite import NonFiniteMonitor
from mptraining_trainer.training.profiling import DeviceMeter, Profiling
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


# Returns an iterator for the loop from a position on, over a number of steps.
MakeIterator = Callable[[Position, int], Any]


@dataclass(frozen=True)
class StepPlan:
    """The examples of each step, the steps at which training pauses, and the first number of steps per execution."""

    batching: Batching
    boundaries: Boundaries
    steps_per_execution: StepsPerExecution


class NonFiniteHandling:
    """Handling of infinite and NaN values: exclusion of the records that cause them, then the check of the rest.

    `exclusion` is None where bad steps are not skipped.
    """

    def __init__(
        self, precision_state: PrecisionState, monitor: NonFiniteMonitor, exclusion: RecordExclusion | None = None
    ) -> None:
        self._precision_state = precision_state
        self._monitor = monitor
        self._exclusion = exclusion

    @property
    def precision_state(self) -> PrecisionState:
        """The precision state, with the records that are excluded by now."""
        return self._precision_state if self._exclusion is None else self._exclusion.precision_state

    def limit_steps(self, step: int, steps: int) -> int:
        """See `NonFiniteMonitor.limit_steps`."""
        return self._monitor.limit_steps(step, steps)

    def check(
        self, execution: Execution, before: int, steps: int, position: Callable[[int], Position]
    ) -> MakeIterator | None:
        """Return the loop's new source of iterators if further records were excluded, else None. Raise NonFinite.

        The arguments are those of `NonFiniteMonitor.check`.
        """
        make_iterator = None
        if self._exclusion is not None and self._exclusion.check(execution, before, steps, position):
            make_iterator = self._exclusion.built.make_iterator
        self._monitor.check(execution, before, steps, position, cause_excluded=make_iterator is not None)
        return make_iterator


class FitLoop:
    """Runs the steps from a position to the end, and validation, checkpoints and hooks between two executions."""

    def __init__(
        self,
        worker: Worker,
        loop: Loop,
        scaler: LossScaler | None,
        checkpointer: Checkpointer,
        *,
        plan: StepPlan,
        non_finite: NonFiniteHandling,
        hooks: Hooks,
        skipped_records: SkippedRecords,
        meter: InputMeter,
        learning_rate: Callable[[], float | None],
        validation: tuple[Any, int] | None = None,
    ) -> None:
        """Create the loop.

        `learning_rate` returns the optimizer's current rate, None if it has none.
        `validation` is an endless iterator over masked batches, with the number of steps that covers every example
        once.
        """
        self._worker = worker
        self._hooks = hooks
        self._loop = loop
        self._scaler = scaler
        self._checkpointer = checkpointer
        self._skipped_records = skipped_records
        self._batching = plan.batching
        self._boundaries = plan.boundaries
        self._steps_per_execution = plan.steps_per_execution
        self._non_finite = non_finite
        self._validation = validation
        self._profiling = Profiling(worker)
        self._devices = DeviceMeter(worker.job)
        self._system = SystemMeter(worker.telemetry.now)
        self._reported_at = -math.inf
        self._loss_sum, self._loss_steps = 0.0, 0.0
        self.training_seconds = 0.0
        self._meter = meter
        self._learning_rate = learning_rate
        self.speed = Speed(meter, worker.telemetry.now)
        self.last_step = 0
        self.skipped_steps = 0
        self.loss_scale: float | None = None
        self.gradient_norm: float | None = None
        self._weights_non_finite = False

    @property
    def precision_state(self) -> PrecisionState:
        """The precision state, with the records that are excluded by now."""
        return self._non_finite.precision_state

    def run(self, iterator: Any, step: int, position: Position) -> dict[str, float]:
        """Train to the last step or until a callback stops training; set `last_step`; return the last metrics,
        validation's with `val_`. Raise Preempted, NonFinite.
        """
        metrics: dict[str, float] = {}
        now, boundaries, hooks = self._worker.telemetry.now, self._boundaries, self._hooks
        recent = 0.0
        if step >= boundaries.total_steps or hooks.training_stopped or hooks.has_pending(step):
            metrics = self._finish_pending_step(iterator, step, position)
        over = hooks.training_stopped
        while step < boundaries.total_steps and not over:
            if boundaries.is_epoch_start(step):
                self._loop.reset_metrics()
                self._loss_sum, self._loss_steps = 0.0, 0.0
            steps = min(self._steps_per_execution.steps, boundaries.steps_until_next(step))
            steps = self._non_finite.limit_steps(step, steps)
            hooks.execution_begins(step)
            self._profiling.before_execution(step)
            before = now()
            with self._profiling.trace_execution(step):
                execution = self._loop.execute(
                    iterator,
                    steps,
                    stop=self._worker.preemption.stop_requested(),
                    step_seconds=recent,
                    weights_non_finite=self._weights_non_finite,
                )
            took = now() - before
            self.training_seconds += took
            advance = partial(self._batching.advance, position)
            make_iterator = self._non_finite.check(execution, step, steps, advance)
            step += steps
            self._profiling.after_execution(step)
            position = self._batching.advance(position, steps)
            iterator = (
                iterator if make_iterator is None else make_iterator(position, max(0, boundaries.total_steps - step))
            )
            self._record(execution)
            trained = self._epoch_loss() | execution.metrics
            metrics |= trained
            hooks.execution_ends(step, trained)
            one_step = self.speed.add(took, execution.waited_seconds, steps, step)
            if one_step is not None:
                recent = one_step
                if steps == self._steps_per_execution.steps:
                    self._steps_per_execution = self._steps_per_execution.adjust(execution.step_seconds)
            stopping = execution.stop_requests > 0
            # The save comes before validation, which may take longer than the grace period of a preempted machine.
            if boundaries.is_save_due(step) or stopping:
                self._save(step, position)
                self._skipped_records.publish()
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
                or now() - self._reported_at >= self._worker.progress_seconds
            ):
                self._report(step, metrics, execution, now)
        self._profiling.finish(step)
        self.last_step = step
        return metrics

    def _finish_pending_step(self, iterator: Any, step: int, position: Position) -> dict[str, float]:
        """Report the metrics of the last step and call its hooks if an earlier attempt ended before it could."""
        over = step >= self._boundaries.total_steps or self._hooks.training_stopped
        execution = self._loop.execute(iterator, 0)
        self._loss_sum = execution.loss_sum
        trained = self._epoch_loss() | execution.metrics
        validates = over or self._boundaries.is_validation_due(step) or self._hooks.epoch_ended_early
        validated = self._validate(step, position) if validates else {}
        self.skipped_steps, self.loss_scale = execution.skipped_steps, execution.loss_scale
        self._hooks.run_step_end(step, trained, validated)
        if not over:
            self._report(step, trained | validated, execution, self._worker.telemetry.now)
        return trained | validated

    def _save(self, step: int, position: Position) -> None:
        with self._record_non_finite():
            self._checkpointer.save(self._state(step, position))

    def abandon(self) -> None:
        """Stop profiling; another fit loop resumes from an earlier step."""
        self._profiling.abandon()

    def wait_for_save(self) -> bool:
        """Wait for the last save; return whether the weights are finite. Raise NonFinite on a single worker."""
        with self._record_non_finite():
            self._checkpointer.wait()
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
            if self._worker.job.processes == 1:
                raise
            self._weights_non_finite = True

    def validate_final_weights(self) -> dict[str, float]:
        """Return validation's metrics of the present weights, without calling hooks; empty without validation."""
        if self._validation is None:
            return {}
        metrics = self._loop.evaluation.run(*self._validation, now=self._worker.telemetry.now)
        return {f"val_{name}": value for name, value in (metrics or {}).items()}

    def _validate(self, step: int, position: Position) -> dict[str, float]:
        """Return validation's metrics. Raise Preempted if a worker must stop: the next attempt validates again."""
        if self._validation is None:
            return {}
        self._hooks.callbacks.validation_begins()
        iterator, steps = self._validation
        metrics = self._loop.evaluation.run(
            iterator,
            steps,
            now=self._worker.telemetry.now,
            stop=self._worker.preemption.stop_requested,
            one_by_one=self._hooks.callbacks.sees_test_batches,
            on_batches_begin=self._hooks.callbacks.test_batches_begin,
            on_batches_end=self._hooks.callbacks.test_batches_end,
        )
        if metrics is None:
            if self._checkpointer.last_step != step:
                self._save(step, position)
                self._skipped_records.publish()
            raise self._preempted_error(step)
        self._hooks.callbacks.validation_ends(metrics)
        return {f"val_{name}": value for name, value in metrics.items()}

    def _preempted_error(self, step: int) -> Preempted:
        exit_barrier(self._worker.identity)
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
        self._reported_at = now()
        figures = self._meter.figures
        speed = self.speed.step_seconds
        examples = None if speed is None else self._batching.examples_per_step / speed
        self._worker.telemetry.emit(
            events.Progress,
            step=step,
            total_steps=self._boundaries.total_steps,
            epoch=self._boundaries.epoch(step),
            metrics=metrics,
            examples_per_second=None if examples is None else round(examples, 1),
            step_seconds=speed,
            input_bound_percent=self.speed.recent.bound_percent,
            input_bytes_per_second=self.speed.recent.bytes_per_second(figures.bytes),
            input_requests=figures.requests if self._meter.remote else None,
            input_retries=figures.retries if self._meter.remote else None,
            estimated_remaining_seconds=self.speed.remaining_seconds(step, self._boundaries.total_steps),
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
            self._worker.telemetry.notice("InputBound", text, level="Warning")
        if speed is not None and (text := self._steps_per_execution.limit_notice(speed)):
            self._worker.telemetry.notice("StepsPerExecution", text)

    def _state(self, step: int, position: Position) -> CheckpointState:
        scaling = self._scaler.state() if self._scaler else None
        precision_state = self.precision_state
        identity, job = self._worker.identity, self._worker.job
        return CheckpointState(
            step=step,
            attempt=identity.attempt,
            incarnation=identity.incarnation,
            seed=position.seed,
            epoch=position.epoch,
            examples=position.examples,
            fingerprint=position.fingerprint,
            policy=precision_state.policy,
            asked_policy=precision_state.requested_policy,
            checked=precision_state.checked,
            checked_until=precision_state.checked_until,
            recoveries=precision_state.recoveries,
            measured=precision_state.trials,
            excluded=precision_state.excluded,
            replicas=job.replicas,
            examples_per_step=self._batching.examples_per_step,
            loss_scale=scaling.scale if scaling else None,
            good_steps=scaling.good_steps if scaling else 0,
            skipped_steps=scaling.skipped_steps if scaling else 0,
            skipped_in_a_row=scaling.skipped_in_a_row if scaling else 0,
            loss_steps=self._loss_steps,
            callbacks=self._hooks.state(),
        )
