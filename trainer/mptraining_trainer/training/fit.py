"""The fit loop from a position in the data to the last step, with the work between two executions, and its speed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
        # `recent` counts since the last Progress, `_steady` since the first execution.
        self.recent = InputInterval()
        self._steady = InputInterval()
        self._advised = False

    def add(self, took: float, waited: float | None, steps: int, step: int) -> float | None:
        """Add an execution that ended with step `step`; return the seconds per step, None for the first execution.

        `took` and `waited` (for data, None if it was not measured) are in seconds.
        """
        if self._warm_since is None:
            self._warm_since = self._now(), step
            self.recent, self._steady = InputInterval.begin(self._meter), InputInterval.begin(self._meter)
            return None
        self.recent.add(took, waited)
        self._steady.add(took, waited)
        self._step_seconds.append((took / steps, steps))
        return took / steps

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

    @property
    def input_bound_percent(self) -> float | None:
        """The percentage of the time in which the device waited for data."""
        return self._steady.bound_percent

    def said(self) -> None:
        """Reset `recent` after a Progress event."""
        self.recent = InputInterval.begin(self._meter)

    def advice(self) -> str | None:
        """Return advice against waiting for data, once, if the wait is long enough; else None."""
        percent = self._steady.bound_percent
        if self._advised or percent is None or self._steady.seconds <= WARM_UP_SECONDS or percent < REPORTED_PERCENT:
            return None
        self._advised = True
        return advice(self._steady, self._meter)

    def remaining_seconds(self, step: int, total_steps: int) -> float | None:
        """Return the estimate by the time per step so far, validation and saving included."""
        if self._warm_since is None or step <= self._warm_since[1]:
            return None
        began, first = self._warm_since
        return round((self._now() - began) / (step - first) * (total_steps - step), 1)


# Returns an iterator for the loop from a position on, over a number of steps.
Feed = Callable[[Position, int], Any]


class FitLoop:
    """Runs the steps from a position to the end, and validation, checkpoints and hooks between two executions."""

    def __init__(
        self,
        worker: Worker,
        loop: Loop,
        scaler: LossScaler | None,
        checkpointer: Checkpointer,
        *,
        skipped: SkippedRecords,
        batching: Batching,
        boundaries: Boundaries,
        pace: StepsPerExecution,
        meter: InputMeter,
        hooks: Hooks,
        precision_state: PrecisionState,
        watch: NonFiniteMonitor,
        exclusion: RecordExclusion | None = None,
        validation: tuple[Any, int] | None = None,
    ) -> None:
        """`precision_state` is the precision state, `watch` the check for infinite and NaN values.

        `exclusion` excludes records that cause such values, where bad steps are skipped.

        `validation` is an endless iterator over masked batches, with the number of steps that covers every example
        once.
        """
        self._worker = worker
        self._hooks = hooks
        self._loop = loop
        self._scaler = scaler
        self._checkpointer = checkpointer
        self._skipped = skipped
        self._batching = batching
        self._boundaries = boundaries
        self._pace = pace
        self.precision_state = precision_state
        self._exclusion = exclusion
        self._watch = watch
        self._validation = validation
        self._profiling = Profiling(worker)
        self._devices = DeviceMeter(worker.job)
        self._reported_at = -math.inf
        self._loss_sum, self._loss_steps = 0.0, 0.0
        self.training_seconds = 0.0
        self._meter = meter
        self._speed = Speed(meter, worker.telemetry.now)
        self.last_step = 0
        self.skipped_steps = 0
        self.loss_scale: float | None = None
        self.gradient_norm: float | None = None
        self._broken = False

    @property
    def step_seconds(self) -> float | None:
        """See `Speed.step_seconds`."""
        return self._speed.step_seconds

    def run(self, iterator: Any, step: int, position: Position) -> dict[str, float]:
        """Train to the last step or until a callback stops training; set `last_step`; return the last metrics,
        validation's with `val_`. Raise Preempted, NonFinite.
        """
        metrics: dict[str, float] = {}
        now, ends, hooks = self._worker.telemetry.now, self._boundaries, self._hooks
        recent = 0.0
        if step >= ends.total_steps or hooks.stopped or hooks.pending(step):
            metrics = self._finish_pending_step(iterator, step, position)
        over = hooks.stopped
        while step < ends.total_steps and not over:
            if ends.epoch_begins(step):
                self._loop.reset_metrics()
                self._loss_sum, self._loss_steps = 0.0, 0.0
            steps = self._watch.at_most(step, min(self._pace.steps, ends.until_next(step)))
            hooks.execution_begins(step)
            self._profiling.before(step)
            before = now()
            with self._profiling.step(step):
                stop, broken = self._worker.preemption.stop_requested(), self._broken
                execution = self._loop.execute(iterator, steps, stop=stop, step_seconds=recent, broken=broken)
            took = now() - before
            self.training_seconds += took
            feed = self._checked(execution, step, steps, position)
            step += steps
            self._profiling.after(step)
            position = self._batching.advance(position, steps)
            iterator = iterator if feed is None else feed(position, max(0, ends.total_steps - step))
            self._record(execution)
            trained = self._epoch_loss() | execution.metrics
            metrics |= trained
            hooks.execution_ends(step, trained)
            one_step = self._speed.add(took, execution.waited_seconds, steps, step)
            if one_step is not None:
                recent = one_step
                if steps == self._pace.steps:
                    self._pace = self._pace.after(execution.step_seconds)
            stopping = execution.asked_to_stop > 0
            # The save comes before validation, which may take longer than the grace period of a preempted machine.
            if ends.saves(step) or stopping:
                self._keep(step, position)
                self._skipped.publish()
            if stopping and step < ends.total_steps:
                raise self._preempted(step)
            validated = self._validated(step, position) if ends.validates(step) or hooks.cut else {}
            metrics |= validated
            over = hooks.turn(step, trained, validated)
            if over and not ends.saves(step):
                self._keep(step, position)
            if (
                validated
                or over
                or step == ends.total_steps
                or now() - self._reported_at >= self._worker.progress_seconds
            ):
                self._report(step, metrics, execution, now)
        self._profiling.finish(step)
        self.last_step = step
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def _checked(self, execution: Execution, before: int, steps: int, position: Position) -> Feed | None:
        """Return the loop's new feed if further records were excluded, else None. Raise NonFinite."""
        after, feed = partial(self._batching.advance, position), None
        if self._exclusion is not None and self._exclusion.look(execution, before, steps, after):
            self.precision_state, feed = self._exclusion.precision_state, self._exclusion.built.feed
        self._watch.look(execution, before, steps, after, explained=feed is not None)
        return feed

    def _finish_pending_step(self, iterator: Any, step: int, position: Position) -> dict[str, float]:
        """Report the metrics of the last step and call its hooks if an earlier attempt ended before it could."""
        over = step >= self._boundaries.total_steps or self._hooks.stopped
        execution = self._loop.execute(iterator, 0)
        self._loss_sum = execution.loss_sum
        trained = self._epoch_loss() | execution.metrics
        validates = over or self._boundaries.validates(step) or self._hooks.cut
        validated = self._validated(step, position) if validates else {}
        self.skipped_steps, self.loss_scale = execution.skipped_steps, execution.loss_scale
        self._hooks.turn(step, trained, validated)
        if not over:
            self._report(step, trained | validated, execution, self._worker.telemetry.now)
        return trained | validated

    def _keep(self, step: int, position: Position) -> None:
        with self._broken_on_non_finite():
            self._checkpointer.save(self._state(step, position))

    def abandon(self) -> None:
        """Stop profiling; another fit loop resumes from an earlier step."""
        self._profiling.abandon()

    def settle(self) -> bool:
        """Wait for the last save; return whether the weights are finite. Raise NonFinite on a single worker."""
        with self._broken_on_non_finite():
            self._checkpointer.wait()
        return not self._broken

    @contextmanager
    def _broken_on_non_finite(self) -> Iterator[None]:
        """Record NonFinite in `_broken` if there are several workers. Only the chief writes weights and finds that they
        are not finite: the next execution tells the other workers, so that all stop after the same step.
        """
        try:
            yield
        except NonFinite:
            if self._worker.job.processes == 1:
                raise
            self._broken = True

    def _validated(self, step: int, position: Position) -> dict[str, float]:
        """Return validation's metrics. Raise Preempted if a worker must stop: the next attempt validates again."""
        if self._validation is None:
            return {}
        self._hooks.validation_begins()
        iterator, steps = self._validation
        metrics = self._loop.evaluation.run(
            iterator,
            steps,
            now=self._worker.telemetry.now,
            stop=self._worker.preemption.stop_requested,
            begins=self._hooks.test_batches_begin,
            ends=self._hooks.test_batches_end,
        )
        if metrics is None:
            if self._checkpointer.last_step != step:
                self._keep(step, position)
                self._skipped.publish()
            raise self._preempted(step)
        self._hooks.validation_ends(metrics)
        return {f"val_{name}": value for name, value in metrics.items()}

    def _preempted(self, step: int) -> Preempted:
        exit_barrier(self._worker.identity)
        self.settle()
        return Preempted(
            f"step {step}", "this machine is being taken away; saved", next_step="The next attempt goes on from here."
        )

    def _record(self, execution: Execution) -> None:
        self.skipped_steps, self.loss_scale = execution.skipped_steps, execution.loss_scale
        self.gradient_norm = execution.gradient_norm if math.isfinite(execution.gradient_norm) else None
        if execution.applied_steps:
            self._loss_sum = execution.loss_sum
            self._loss_steps += execution.loss_weight

    def _epoch_loss(self) -> dict[str, float]:
        """Return the mean loss over the epoch's steps so far, as `fit` reports it."""
        return {"loss": self._loss_sum / self._loss_steps} if self._loss_steps else {}

    def resume(self, state: CheckpointState) -> None:
        """Resume from a checkpoint, which may be in mid-epoch; the loop's own sums are already restored."""
        self._loss_steps = state.loss_steps

    def _report(self, step: int, metrics: dict[str, float], execution: Execution, now: Any) -> None:
        self._reported_at = now()
        figures = self._meter.figures
        speed = self.step_seconds
        examples = None if speed is None else self._batching.examples_per_step / speed
        self._worker.telemetry.emit(
            events.Progress,
            step=step,
            total_steps=self._boundaries.total_steps,
            epoch=self._boundaries.epoch(step),
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
            examples_per_second=None if examples is None else round(examples, 1),
            step_seconds=speed,
            input_bound_percent=self._speed.recent.bound_percent,
            input_bytes_per_second=self._speed.recent.bytes_per_second(figures.bytes),
            input_requests=figures.requests if self._meter.remote else None,
            input_retries=figures.retries if self._meter.remote else None,
            estimated_remaining_seconds=self._speed.remaining_seconds(step, self._boundaries.total_steps),
            loss_scale=execution.loss_scale,
            skipped_steps=execution.skipped_steps,
            gradient_norm=self.gradient_norm,
            precision=self.precision_state.policy,
            recoveries=len(self.precision_state.recoveries),
            peak_memory_bytes=peak_memory_bytes(),
            **self._devices.read(),
        )
        self._speed.said()
        if (text := self._speed.advice()) is not None:
            self._worker.telemetry.notice("InputBound", text, level="Warning")
        if speed is not None and (text := self._pace.shortened(speed)):
            self._worker.telemetry.notice("StepsPerExecution", text)

    @property
    def input_bound_percent(self) -> float | None:
        """The percentage of the time in which the device waited for data, without the first execution."""
        return self._speed.input_bound_percent

    def _state(self, step: int, position: Position) -> CheckpointState:
        scaling = self._scaler.state() if self._scaler else None
        identity, job = self._worker.identity, self._worker.job
        return CheckpointState(
            step=step,
            attempt=identity.attempt,
            incarnation=identity.incarnation,
            seed=position.seed,
            epoch=position.epoch,
            examples=position.examples,
            fingerprint=position.fingerprint,
            policy=self.precision_state.policy,
            asked_policy=self.precision_state.requested_policy,
            checked=self.precision_state.checked,
            checked_until=self.precision_state.checked_until,
            recoveries=self.precision_state.recoveries,
            measured=self.precision_state.trials,
            excluded=self.precision_state.excluded,
            replicas=job.replicas,
            examples_per_step=self._batching.examples_per_step,
            loss_scale=scaling.scale if scaling else None,
            good_steps=scaling.good_steps if scaling else 0,
            skipped_steps=scaling.skipped_steps if scaling else 0,
            skipped_in_a_row=scaling.skipped_in_a_row if scaling else 0,
            loss_steps=self._loss_steps,
            callbacks=self._hooks.state(),
        )
