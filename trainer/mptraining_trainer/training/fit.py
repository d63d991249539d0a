"""From a position in the data to the last step: everything that happens between two executions of the loop."""

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
from mptraining_trainer.data.input_stats import STEADY, WORTH_SAYING, InputMeter, InputSince, advice
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

# Executions that the time of a step is taken from.
_RECENT = 1000


class Speed:
    """Told of every execution. The first one traces and compiles; what it took says nothing about a step."""

    def __init__(self, meter: InputMeter, now: Callable[[], float]) -> None:
        self._meter = meter
        self._now = now
        self._step_seconds: deque[tuple[float, int]] = deque(maxlen=_RECENT)
        # When and at which step the first execution was over.
        self._warm_since: tuple[float, int] | None = None
        # Since the last Progress; since the first execution.
        self.recent = InputSince()
        self._steady = InputSince()
        self._advised = False

    def add(self, took: float, waited: float | None, steps: int, step: int) -> float | None:
        """An execution of `steps` steps that ended with step `step`: the seconds of one, None for the first execution.

        `took` and `waited` (for data, None where nobody measured it) are in seconds.
        """
        if self._warm_since is None:
            self._warm_since = self._now(), step
            self.recent, self._steady = InputSince.begin(self._meter), InputSince.begin(self._meter)
            return None
        self.recent.add(took, waited)
        self._steady.add(took, waited)
        self._step_seconds.append((took / steps, steps))
        return took / steps

    @property
    def step_seconds(self) -> float | None:
        """Median over the last executions, weighted by their steps."""
        ordered = sorted(self._step_seconds)
        half = sum(steps for _, steps in ordered) / 2
        for seconds, steps in ordered:
            half -= steps
            if half <= 0:
                return seconds
        return None

    @property
    def input_bound_percent(self) -> float | None:
        """The share of the time in which the device waited for data."""
        return self._steady.bound_percent

    def said(self) -> None:
        """A Progress was said: `recent` begins anew."""
        self.recent = InputSince.begin(self._meter)

    def advice(self) -> str | None:
        """What to do about waiting for data, once, when it is worth saying."""
        percent = self._steady.bound_percent
        if self._advised or percent is None or self._steady.seconds <= STEADY or percent < WORTH_SAYING:
            return None
        self._advised = True
        return advice(self._steady, self._meter)

    def remaining_seconds(self, step: int, total_steps: int) -> float | None:
        """At the pace so far, validation and saving included, which a step's own time leaves out."""
        if self._warm_since is None or step <= self._warm_since[1]:
            return None
        began, first = self._warm_since
        return round((self._now() - began) / (step - first) * (total_steps - step), 1)


# An iterator for the loop, from a position on, over so many steps.
Feed = Callable[[Position, int], Any]


class FitLoop:
    """The steps from a position to the end, with everything that happens between two executions."""

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
        numbers: PrecisionState,
        watch: NonFiniteMonitor,
        exclusion: RecordExclusion | None = None,
        validation: tuple[Any, int] | None = None,
    ) -> None:
        """`numbers` is how training computes, `watch` sees to it that they stay finite.

        `exclusion` leaves out records that make them infinite or NaN, where bad steps are skipped.

        `validation` is an endless iterator over masked batches, with the steps that count every example once.
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
        self.numbers = numbers
        self._exclusion = exclusion
        self._watch = watch
        self._validation = validation
        self._profiling = Profiling(worker)
        self._devices = DeviceMeter(worker.job)
        self._said_at = -math.inf
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
        """Trains to the last step, `last_step`, or until a callback stops it; returns the last metrics, validation's
        with `val_`. Raises Preempted, NonFinite.
        """
        metrics: dict[str, float] = {}
        now, ends, hooks = self._worker.telemetry.now, self._boundaries, self._hooks
        recent = 0.0
        if step >= ends.total_steps or hooks.stopped or hooks.pending(step):
            metrics = self._caught_up(iterator, step, position)
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
                stop, broken = self._worker.preemption.asked(), self._broken
                execution = self._loop.execute(iterator, steps, stop=stop, step_seconds=recent, broken=broken)
            took = now() - before
            self.training_seconds += took
            feed = self._judged(execution, step, steps, position)
            step += steps
            self._profiling.after(step)
            position = self._batching.advance(position, steps)
            iterator = iterator if feed is None else feed(position, max(0, ends.total_steps - step))
            self._account(execution)
            trained = self._epoch_loss() | execution.metrics
            metrics |= trained
            hooks.execution_ends(step, trained)
            one_step = self._speed.add(took, execution.waited_seconds, steps, step)
            if one_step is not None:
                recent = one_step
                if steps == self._pace.steps:
                    self._pace = self._pace.after(execution.step_seconds)
            leave = execution.asked_to_stop > 0
            # Before validation, which may take longer than a machine that is taken away has left.
            if ends.saves(step) or leave:
                self._keep(step, position)
                self._skipped.publish()
            if leave and step < ends.total_steps:
                raise self._taken_away(step)
            validated = self._validated(step, position) if ends.validates(step) or hooks.cut else {}
            metrics |= validated
            over = hooks.turn(step, trained, validated)
            if over and not ends.saves(step):
                self._keep(step, position)
            if validated or over or step == ends.total_steps or now() - self._said_at >= self._worker.progress_seconds:
                self._say(step, metrics, execution, now)
        self._profiling.finish(step)
        self.last_step = step
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def _judged(self, execution: Execution, before: int, steps: int, position: Position) -> Feed | None:
        """What feeds the loop from now on, where further records are left out. Raises NonFinite."""
        after, feed = partial(self._batching.advance, position), None
        if self._exclusion is not None and self._exclusion.look(execution, before, steps, after):
            self.numbers, feed = self._exclusion.numbers, self._exclusion.built.feed
        self._watch.look(execution, before, steps, after, explained=feed is not None)
        return feed

    def _caught_up(self, iterator: Any, step: int, position: Position) -> dict[str, float]:
        """What came of the steps before, which an earlier attempt may not have lived to say, nor hooks to hear."""
        over = step >= self._boundaries.total_steps or self._hooks.stopped
        execution = self._loop.execute(iterator, 0)
        self._loss_sum = execution.loss_sum
        trained = self._epoch_loss() | execution.metrics
        validates = over or self._boundaries.validates(step) or self._hooks.cut
        validated = self._validated(step, position) if validates else {}
        self.skipped_steps, self.loss_scale = execution.skipped_steps, execution.loss_scale
        self._hooks.turn(step, trained, validated)
        if not over:
            self._say(step, trained | validated, execution, self._worker.telemetry.now)
        return trained | validated

    def _keep(self, step: int, position: Position) -> None:
        with self._told_to_all():
            self._checkpointer.save(self._state(step, position))

    def abandon(self) -> None:
        """Another course goes on from an earlier step."""
        self._profiling.abandon()

    def settle(self) -> bool:
        """Waits for the last save; whether all is well. Raises NonFinite where this worker is the only one."""
        with self._told_to_all():
            self._checkpointer.wait()
        return not self._broken

    @contextmanager
    def _told_to_all(self) -> Iterator[None]:
        """The chief alone learns that weights are not finite, as it writes them: the next execution tells the others,
        so that all of them stop after the same step.
        """
        try:
            yield
        except NonFinite:
            if self._worker.job.processes == 1:
                raise
            self._broken = True

    def _validated(self, step: int, position: Position) -> dict[str, float]:
        """Validation's metrics. Raises Preempted when a worker is told to leave: the next attempt validates anew."""
        if self._validation is None:
            return {}
        self._hooks.validation_begins()
        iterator, steps = self._validation
        metrics = self._loop.evaluation.run(
            iterator,
            steps,
            now=self._worker.telemetry.now,
            stop=self._worker.preemption.asked,
            begins=self._hooks.test_batches_begin,
            ends=self._hooks.test_batches_end,
        )
        if metrics is None:
            if self._checkpointer.last_step != step:
                self._keep(step, position)
                self._skipped.publish()
            raise self._taken_away(step)
        self._hooks.validation_ends(metrics)
        return {f"val_{name}": value for name, value in metrics.items()}

    def _taken_away(self, step: int) -> Preempted:
        exit_barrier(self._worker.identity)
        self.settle()
        return Preempted(
            f"step {step}", "this machine is being taken away; saved", next_step="The next attempt goes on from here."
        )

    def _account(self, execution: Execution) -> None:
        self.skipped_steps, self.loss_scale = execution.skipped_steps, execution.loss_scale
        self.gradient_norm = execution.gradient_norm if math.isfinite(execution.gradient_norm) else None
        if execution.applied_steps:
            self._loss_sum = execution.loss_sum
            self._loss_steps += execution.loss_weight

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
            input_bound_percent=self._speed.recent.bound_percent,
            input_bytes_per_second=self._speed.recent.bytes_per_second(figures.bytes),
            input_requests=figures.requests if self._meter.remote else None,
            input_retries=figures.retries if self._meter.remote else None,
            estimated_remaining_seconds=self._speed.remaining_seconds(step, self._boundaries.total_steps),
            loss_scale=execution.loss_scale,
            skipped_steps=execution.skipped_steps,
            gradient_norm=self.gradient_norm,
            precision=self.numbers.policy,
            recoveries=len(self.numbers.recoveries),
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
        """The share of the time in which the device waited for data, without the first execution."""
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
            policy=self.numbers.policy,
            asked_policy=self.numbers.asked,
            checked=self.numbers.checked,
            checked_until=self.numbers.until,
            recoveries=self.numbers.recoveries,
            measured=self.numbers.measured,
            excluded=self.numbers.excluded,
            replicas=job.replicas,
            examples_per_step=self._batching.examples_per_step,
            loss_scale=scaling.scale if scaling else None,
            good_steps=scaling.good_steps if scaling else 0,
            skipped_steps=scaling.skipped_steps if scaling else 0,
            skipped_in_a_row=scaling.skipped_in_a_row if scaling else 0,
            loss_steps=self._loss_steps,
            callbacks=self._hooks.state(),
        )
