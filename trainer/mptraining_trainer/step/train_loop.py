"""The training loop: K steps per execution, for every strategy and both generations of Keras.

`Loop.execute` runs one execution: fetch a batch, run the step on every replica, and after K steps read all results in
one transfer to the host.

A step under float32 or bfloat16 is one `strategy.run`: gradients, summed over the replicas, applied. With a
`LossScaler` (under loss scaling, after the first non-finite value, with `onNonFinite: Fail`) it is two, with one
decision in between: if the norm of the summed gradients, the loss and the variables that the forward pass changed are
finite, apply, otherwise skip. A skipped step
changes nothing: statistics, seeds and metrics are restored. (An all-reduce inside a branch of a condition is only
possible in a separate `strategy.run`.) On one replica XLA compiles the whole step; on several, whose gradients are
summed outside of it, the forward and backward pass.

The decision waits for all gradients, which costs 0.05 ms a step on two cores, the branch 0.04 ms and the copies
0.03 ms: half of a step of 0.23 ms, and nothing that is measurable of one of 9 ms.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from mptraining_trainer import keras_internals
from mptraining_trainer.devices.replica_variables import (
    CrossReplicaSum,
    all_finite,
    all_reduce,
    assign,
    half_square,
    run_eagerly,
)
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.numerics.loss_scaling import FLOOR, LossScaler
from mptraining_trainer.step.evaluation import Evaluation
from mptraining_trainer.step.own_step import OwnStep, batch_specs, optimizers
from mptraining_trainer.step.replica_step import Batch, MovingStatistics, ReplicaStep, local_sum
from mptraining_trainer.step.steps_per_execution import Execution


def graph_clock() -> Callable[[], Any]:
    """Return a function that adds a clock to a graph: an operation with the seconds at run time, a float64 scalar.

    Under op determinism `tf.timestamp` raises FailedPreconditionError, since its result always differs. The training
    does not depend on these readings, so Python's clock is used instead, which takes some 20 microseconds more.
    """
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return _python_clock
    return tf.timestamp  # type: ignore[no-any-return]


def _python_clock() -> Any:
    now = tf.numpy_function(lambda: np.float64(time.perf_counter()), [], tf.float64)
    return tf.ensure_shape(now, [])


# Failures of a step that is not finite: of scaled gradients, which a lower loss scale may prevent; of gradients; of the
# forward pass, loss included.
_SCALED, _GRADIENTS, _FORWARD = 1.0, 2.0, 3.0


class Readings(NamedTuple):
    """Results of one execution from the device, in addition to the metrics; scalars, the first two float64.

    `failure` is the worst that was not finite in a checked step, first in `failed_step` on `failed_replica` (-1: only
    in the sum over the replicas); 0 for nothing.
    """

    loss_sum: Any
    loss_weight: Any
    gradient_norm: Any
    finite_steps: Any
    failed_replica: Any
    failure: Any
    failed_step: Any
    loss_scale: Any
    skipped_steps: Any
    skipped_in_a_row: Any
    stop_requests: Any
    seconds: Any
    non_finite_workers: Any
    waited: Any

    def stacked(self, metrics: Iterable[Any]) -> Any:
        """Return everything in one float64 vector, which is one transfer to the host."""
        sums, rest = tf.stack(self[:2]), tf.stack([*self[2:], *metrics])
        return tf.concat([sums, tf.cast(rest, tf.float64)], axis=0)


_COUNT = len(Readings._fields)


@dataclass(frozen=True)
class StepPlan:
    """Settings of a step.

    `examples_per_step` is over all replicas and accumulated batches. With `partial`, a batch may have fewer rows that
    count than others. To measure the waiting for batches costs some microseconds per step.
    """

    examples_per_step: int
    partial: bool = False
    accumulation: int = 1
    jit: bool = False
    workers: int = 1
    measures_waiting: bool = True


class Loop:
    """Trains one model and evaluates it by its `evaluation`; create it inside the strategy's scope.

    Batches are (inputs, labels, weights), or (inputs, labels, weights, rows) with rows a float vector, 0 for rows that
    do not count. A model with its own `train_step` trains by it (`step.own_step`), without scaler, accumulation and
    XLA. `align` is called with the batch of every replica, in replica context, before the step.
    """

    def __init__(
        self,
        strategy: Any,
        compiled: CompiledModel,
        optimizer: Any,
        plan: StepPlan,
        *,
        scaler: LossScaler | None = None,
        align: Callable[[Batch], Batch] | None = None,
    ) -> None:
        keras, accumulation, jit = compiled.keras, plan.accumulation, plan.jit
        self._keras = keras
        self._strategy = strategy
        self._optimizer = optimizer
        self._compiled = compiled
        self._plan = plan
        self._scaler = scaler
        self._worker_sum = CrossReplicaSum(strategy, plan.workers)
        self._align = align
        self._clock = graph_clock()
        self._replicas = strategy.num_replicas_in_sync
        model = compiled.model
        self._variables = model.trainable_variables
        # Of these the "gradient" is the next value (Keras' `overwrite_with_gradient`, as of FP8's scales).
        self._overwritten = keras.overwritten(self._variables)
        own_step = OwnStep(compiled, self._replicas) if compiled.own_steps else None
        self._own_step = own_step if "train_step" in compiled.own_steps else None
        static = isinstance(strategy, tf.distribute.TPUStrategy)
        # The parts of a batch, over replicas and accumulated batches.
        self.parts = self._replicas * accumulation
        self._whole = self.parts == 1 and not static
        self._replica_step = ReplicaStep(
            compiled=compiled,
            replicas=self._replicas,
            accumulation=accumulation,
            scaled=scaler is not None and scaler.scales,
            jit=jit and not self._whole,
            static=static,
        )
        self._losses = local_sum("loss_sum", tf.float64)
        # The number of steps whose losses are summed, each weighted by its share of real rows.
        self._weights = local_sum("loss_weight_sum", tf.float64)
        self._statistics = MovingStatistics(keras, model)
        # Variables that a forward pass changes; a skipped step must restore them.
        moved = keras.forward_pass_variables(model) if scaler else []
        self._changed_by_forward = [variable for variable in moved if variable.dtype.is_floating]
        self._restored_by_skip = [*moved, *keras.untracked_states(model)] if scaler else []
        if scaler:
            self._restored_by_skip += [variable for metric in self.metrics for variable in keras.variables(metric)]
        self.evaluation = Evaluation(
            strategy=strategy,
            step=self._replica_step,
            own_step=own_step if "test_step" in compiled.own_steps else None,
            compiled=compiled,
            next_batch=self.next_batch,
            worker_sum=self._worker_sum,
        )
        if self._own_step is None:
            keras.build_optimizer(optimizer, model.trainable_variables)
        # The optimizers that overwrite their variables with averages, and the number of updates after which they do so.
        compiled_optimizers = [optimizer] if self._own_step is None else optimizers(keras, model)
        parts = (part for built in compiled_optimizers for part in keras.parts(built))
        frequencies = ((part, keras.pop_ema_overwrite_frequency(part)) for part in parts)
        self._overwriting = [(part, frequency) for part, frequency in frequencies if frequency]
        self._names: tuple[str, ...] = ()
        self._step_as_written = functools.partial(self._checked_step, scaler) if scaler else self._step
        compiles = jit and self._whole
        self._run_step: Any = (
            keras.function(self._step_as_written, jit_compile=True) if compiles else self._step_as_written
        )
        self._execute = keras.function(self._execute_graph, reduce_retracing=True)
        self._reset = tf.function(self._reset_graph, autograph=False)
        self._traced_iterator: Any = None
        self._traced_execution: Any = None
        # The sums at the end of the previous execution.
        self._skipped_before = self._loss_before = self._weight_before = 0.0

    @property
    def metrics(self) -> list[Any]:
        """The training metrics; a checkpoint has to contain their variables."""
        return self._compiled.metrics

    @property
    def metric_directions(self) -> dict[str, str | None]:
        """See `CompiledModel.metric_directions`; each reading traces a function."""
        return self._compiled.metric_directions(self._own_step.names if self._own_step else None)

    @property
    def gradient_bytes(self) -> int:
        """The size of one replica's gradients in bytes."""
        variables = self._keras.variables_of(self._variables)
        return sum(variable.dtype.size * variable.shape.num_elements() for variable in variables)

    @property
    def epoch_sums(self) -> tuple[Any, ...]:
        """The variables that hold the sum of the epoch's losses; a checkpoint has to contain them."""
        return self._losses, self._weights

    @property
    def more_optimizers(self) -> tuple[Any, ...]:
        """The optimizers that a model with its own step has in addition to the compiled one."""
        if self._own_step is None:
            return ()
        all_optimizers = optimizers(self._keras, self._compiled.model)
        return tuple(optimizer for optimizer in all_optimizers if optimizer is not self._optimizer)

    # Host side

    def execute(
        self,
        iterator: Any,
        steps: int,
        *,
        stop: bool = False,
        step_seconds: float = 0.0,
        weights_non_finite: bool = False,
    ) -> Execution:
        """Train `steps` steps.

        `stop` requests that all workers stop after them, `step_seconds` is the recent duration of this worker's steps,
        `weights_non_finite` reports that its weights are not finite.
        """
        reports = tf.constant([float(stop), step_seconds, float(weights_non_finite)], tf.float32)
        count = tf.constant(steps)
        if iterator is not self._traced_iterator:
            # The concrete function is cached: its lookup by arguments takes longer than a step of a small model.
            self._traced_execution = self._execute.get_concrete_function(iterator, count, reports)
            self._traced_iterator = iterator
        values = self._traced_execution(iterator, count, reports).numpy().tolist()
        read, metrics = Readings(*values[:_COUNT]), dict(zip(self._names, values[_COUNT:], strict=True))
        applied = steps - int(read.skipped_steps - self._skipped_before)
        weight = read.loss_weight - self._weight_before
        loss = (read.loss_sum - self._loss_before) / max(weight, 1e-9)
        if self._own_step is not None:
            # The logs of the model's own step contain the loss of the epoch.
            weight, loss = 0.0, metrics.get("loss", 0.0)
        self._skipped_before = read.skipped_steps
        self._loss_before, self._weight_before = read.loss_sum, read.loss_weight
        return Execution(
            applied_steps=applied,
            loss=loss,
            loss_sum=read.loss_sum,
            loss_weight=weight,
            gradient_norm=read.gradient_norm,
            finite_steps=int(read.finite_steps),
            failed_replica=int(read.failed_replica) if read.failure and read.failed_replica >= 0 else None,
            failed_step=int(read.failed_step) if read.failure else None,
            forward_failed=read.failure == _FORWARD,
            seeks_scale=read.failure == _SCALED,
            metrics=metrics,
            loss_scale=read.loss_scale if self._scaler and self._scaler.scales else None,
            skipped_steps=int(read.skipped_steps),
            skipped_in_a_row=int(read.skipped_in_a_row),
            stop_requests=int(read.stop_requests),
            step_seconds=read.seconds / self._worker_sum.count,
            waited_seconds=read.waited / self._worker_sum.count if self._plan.measures_waiting else None,
            non_finite_workers=int(read.non_finite_workers),
        )

    def xla_error(self, batch: Batch) -> str | None:
        """Return XLA's error for this model's step over a few examples; None if XLA accepts the step."""
        errors: list[str] = []

        def lower(function: Callable[[Batch], None]) -> None:
            try:
                function(batch)
            except (ValueError, tf.errors.OpError) as error:
                errors.append(str(error))

        def on_replica() -> None:
            if tf.distribute.get_replica_context().replica_id_in_sync_group == 0:
                lower(self._replica_step.lower_to_xla)

        if self._whole:
            lower(lambda batch: self._run_step.experimental_get_compiler_ir(batch)(stage="hlo"))
        else:
            # Run eagerly, because each replica calls XLA from Python and not from a graph.
            run_eagerly(self._strategy, on_replica)
        return errors[0] if errors else None

    def disable_loss_sums(self) -> None:
        """Compute losses without sums over the replicas; call it before the first evaluation."""
        self._replica_step.sums_over_replicas = False

    def disable_xla(self) -> None:
        """Turn XLA off; call it before the first step."""
        self._run_step = self._step_as_written
        self._replica_step.disable_xla()

    def next_batch(self, iterator: Any) -> Any:
        """Return the next batch of every replica, for `strategy.run`."""
        return self._aligned(self._next(iterator))

    def reset_metrics(self) -> None:
        """Reset the training metrics and the sum of losses for a new epoch."""
        self._reset()
        self._loss_before = self._weight_before = 0.0

    def sync_after_restore(self) -> None:
        """Read the sums and the scaler's counters; every worker must call it after a checkpoint was restored."""
        self._skipped_before = float(self._scaler.state().skipped_steps) if self._scaler else 0.0
        self._loss_before = self._losses.numpy()
        self._weight_before = self._weights.numpy()

    def prepare(self, batch: Batch) -> None:
        """Trace a user's own step once, which creates the variables that it creates; `batch` are a few examples.

        Call it before a checkpoint is restored and before the first step.
        """
        if self._own_step is None:
            return
        self._own_step.prepare(self._strategy, batch_specs(batch))

    # Training on the device

    def _execute_graph(self, iterator: Any, steps: Any, reports: Any) -> Any:
        if self._own_step is not None:
            return self._execute_own(self._own_step, iterator, steps, reports)
        zero = tf.constant(0.0)
        _, skipped, _ = self._scaler_readings()
        # A variable of the loop costs four operations a step, so it has those alone that this loop needs.
        before = {"number": tf.constant(0), "half_square": zero, "fine": tf.constant(True), "finite": zero}
        before |= {"waited": zero} if self._plan.measures_waiting else {}
        before |= {"failed": tf.constant([0.0, 0.0, 0.0])} if self._scaler else {}

        def one_step(state: dict[str, Any]) -> tuple[dict[str, Any]]:
            after = dict(state)
            batch, seconds = self._timed_next(iterator)
            if self._plan.measures_waiting:
                after["waited"] += seconds
            if self._scaler is None:
                after["half_square"] = self._run_step(batch)
            else:
                after["half_square"], (replica, kind) = self._run_step(batch)
                failed = tf.stack([replica, kind, tf.cast(state["number"], tf.float32)])
                after["failed"] = tf.where(kind > state["failed"][1], failed, state["failed"])
            after["fine"] &= tf.math.is_finite(after["half_square"])
            after["finite"] += tf.cast(after["fine"], tf.float32)
            after["number"] += 1
            return (after,)

        (state,) = tf.while_loop(lambda state: state["number"] < steps, one_step, (before,), parallel_iterations=1)
        if not self._plan.partial:
            _, now, _ = self._scaler_readings()
            applied = (tf.cast(steps, tf.float32) - (now - skipped)) / self._replicas
            self._strategy.run(self._add, args=(self._weights, applied))
        if self._scaler is None:
            # Checked once per execution, because statistics that the forward passes change may be infinite though no
            # gradient was.
            moved = self._strategy.experimental_local_results(self._strategy.run(self._statistics.all_finite))
            reports += tf.cast(tf.logical_not(tf.reduce_all(moved)), tf.float32) * tf.constant([0.0, 0.0, 1.0])
        results = self._compiled.results()
        self._names = tuple(results)
        return Readings(
            self._losses.read_value(),
            self._weights.read_value(),
            tf.sqrt(2.0 * state["half_square"]) / (getattr(self._optimizer, "loss_scale_factor", None) or 1.0),
            state["finite"],
            *tf.unstack(state.get("failed", [zero] * 3)),
            *self._scaler_readings(),
            *tf.unstack(self._worker_sum.reduce(tf.concat([reports, [state.get("waited", zero)]], axis=0))),
        ).stacked(results.values())

    def _execute_own(self, own_step: OwnStep, iterator: Any, steps: Any, reports: Any) -> Any:
        """Run `_execute_graph` with the model's own `train_step`; its logs are those of the last step."""
        zero, no_sum = tf.constant(0.0), tf.constant(0.0, tf.float64)
        mean, ignored = tf.distribute.ReduceOp.MEAN, self._compiled.names_of_compile

        def one_step(number: Any, waited: Any, fine: Any, finite: Any, _logs: Any) -> tuple[Any, ...]:
            batch, seconds = self._timed_next(iterator)
            of_replicas = self._strategy.run(own_step.train, args=(batch,))
            self._overwrite_by_average()
            logs = {name: self._strategy.reduce(mean, of_replicas[name], axis=None) for name in own_step.names}
            losses = [tf.math.is_finite(value) for name, value in logs.items() if name not in ignored]
            fine &= tf.reduce_all(losses)
            return number + 1, waited + seconds, fine, finite + tf.cast(fine, tf.float32), logs

        begin = (tf.constant(0), zero, tf.constant(True), zero, dict.fromkeys(own_step.names, zero))
        _, waited, _, finite, logs = tf.while_loop(
            lambda number, *_: number < steps, one_step, begin, parallel_iterations=1
        )
        # Metrics are over all replicas; other values that the step returned are the replicas' mean.
        logs |= {name: value for name, value in self._compiled.results().items() if name in logs}
        self._names = tuple(logs)
        of_workers = tf.unstack(self._worker_sum.reduce(tf.concat([reports, [waited]], axis=0)))
        norm, of_scaler = tf.constant(math.nan), self._scaler_readings()
        return Readings(no_sum, no_sum, norm, finite, zero, zero, zero, *of_scaler, *of_workers).stacked(logs.values())

    def _scaler_readings(self) -> Sequence[Any]:
        """Return loss scale, skipped steps and skipped steps in a row, float32 scalars; without a scaler 1, 0, 0."""
        return self._scaler.readings() if self._scaler else [tf.constant(1.0), tf.constant(0.0), tf.constant(0.0)]

    def _step(self, batch: Batch) -> Any:
        """Train one step; return half of the square of the gradients' norm."""

        def on_replica(batch: Batch) -> Any:
            loss, gradients = self._shares(batch, tf.constant(1.0))
            gradients = all_reduce(gradients, self._overwritten)
            half_squares = self._half_square(gradients)
            self._apply(loss, gradients, batch)
            return half_squares

        half_squares = self._strategy.run(on_replica, args=(batch,))
        self._overwrite_by_average()
        return self._first_replica(half_squares)

    def _checked_step(self, scaler: LossScaler, batch: Batch) -> tuple[Any, tuple[Any, Any]]:
        """Train one step, or skip it.

        Returns half of the square of the gradients' norm, NaN for a skipped step, and the replica that failed (-1 for
        none) with what: _FORWARD, _GRADIENTS, _SCALED or 0 for nothing.
        """
        # The scale is passed as a value, because a mirrored variable read inside is another tensor on each replica.
        scale = scaler.scale.read_value()
        before, loss, gradients, half_squares, failures = self._strategy.run(self._compute_update, args=(batch, scale))
        # From sums over all replicas, so that every replica of every worker decides the same.
        of_sum, failed = self._first_replica(half_squares), self._first_replica(failures)
        worst = tf.reduce_max(failed)
        finite = tf.math.is_finite(of_sum) & tf.equal(worst, 0.0)

        def apply() -> Any:
            self._strategy.run(self._apply, args=(loss, gradients, batch))
            self._overwrite_by_average()
            return finite

        def undo() -> Any:
            self._undo(before)
            return finite

        tf.cond(finite, apply, undo)
        scaler.update(finite, worst < _FORWARD)
        replica = tf.where(worst > 0.0, tf.cast(tf.argmax(failed), tf.float32), -1.0)
        kind = tf.maximum(worst, _GRADIENTS)
        if scaler.dynamic:
            kind = tf.where((kind < _FORWARD) & (scale > FLOOR), _SCALED, kind)
        return tf.where(finite, of_sum, math.nan), (replica, tf.where(finite, 0.0, kind))

    def _compute_update(self, batch: Batch, scale: Any) -> tuple[Any, ...]:
        """Compute everything but the update, on each replica.

        Returns the values to restore, the shares of loss and gradients, half of the square of their norm, and what
        failed on each replica, shape [replicas], 0 for nothing.
        """
        before = [tf.identity(variable) for variable in self._restored_by_skip]
        with tf.control_dependencies(before):
            loss, gradients = self._shares(batch, scale)
        pairs = zip(gradients, self._overwritten, strict=True)
        values = [gradient for gradient, overwrites in pairs if overwrites and gradient is not None]
        finite = all_finite([loss, *(variable.read_value() for variable in self._changed_by_forward), *values])
        half_square = self._half_square(gradients)
        failed = tf.where(finite, tf.where(tf.math.is_finite(half_square), 0.0, _GRADIENTS), _FORWARD)
        if self._replicas == 1:
            return before, loss, gradients, half_square, failed[None]
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        failures = tf.one_hot(replica, self._replicas, on_value=failed)
        *gradients, failures = all_reduce([*gradients, failures], [*self._overwritten, False])
        return before, loss, gradients, self._half_square(gradients), failures

    def _half_square(self, gradients: list[Any]) -> Any:
        """Return half of the square of the gradients' norm, without those that are a variable's next value."""
        pairs = zip(gradients, self._overwritten, strict=True)
        return half_square([None if overwrites else gradient for gradient, overwrites in pairs])

    def _undo(self, before: Sequence[Any]) -> None:
        for variable, value in zip(self._restored_by_skip, before, strict=True):
            self._strategy.extended.update(variable, assign, args=(value,), group=False)

    def _first_replica(self, values: Any) -> Any:
        """Return the value of this worker's first replica, if all replicas have the same."""
        return self._strategy.experimental_local_results(values)[0]

    def _apply(self, loss: Any, gradients: list[Any], batch: Batch) -> None:
        """On each replica: apply the update, add the loss to the epoch's sum, and average the moving statistics."""
        self._keras.apply_gradients(self._optimizer, gradients, self._variables)
        if not self._plan.partial:
            self._add(self._losses, loss)
        else:
            # The loss is weighted by the rows of the batch, as in `fit`.
            weight = self._replica_step.rows_in_step(batch) / self._plan.examples_per_step
            self._add(self._losses, loss * weight)
            self._add(self._weights, weight / self._replicas)
        self._statistics.average_over_replicas()

    def _add(self, total: Any, value: Any) -> None:
        total.assign_add(tf.cast(value, total.dtype))

    def _overwrite_by_average(self) -> None:
        """Replace the weights by their moving average every `ema_overwrite_frequency` updates.

        Call it in cross-replica context.
        """
        for optimizer, frequency in self._overwriting:
            due = tf.equal(tf.cast(optimizer.iterations.value, tf.int64) % frequency, 0)
            for variable, average in keras_internals.moving_averages(optimizer):
                if average is not None:
                    self._strategy.extended.update(variable.value, _assign_if, args=(average.value, due), group=False)

    def _shares(self, batch: Batch, scale: Any) -> tuple[Any, list[Any]]:
        return self._replica_step.gradients(batch, scale)

    # Batches

    def _next(self, iterator: Any) -> Any:
        """Return a batch for every replica; replicas take from an iterator that is not distributed in turn."""
        if self._replicas == 1 or isinstance(iterator, tf.distribute.DistributedIterator):
            return next(iterator)
        return self._strategy.experimental_distribute_values_from_function(lambda context: next(iterator))

    def _timed_next(self, iterator: Any) -> tuple[Any, Any]:
        """Return a batch for every replica, and the seconds of waiting for it."""
        if not self._plan.measures_waiting:
            return self.next_batch(iterator), tf.constant(0.0)
        with tf.device("/CPU:0"):
            before = self._clock()
        with tf.control_dependencies([before]):
            batch = self._next(iterator)
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)), tf.device("/CPU:0"):
            waited = tf.cast(self._clock() - before, tf.float32)
        return self._aligned(batch), waited

    def _aligned(self, batch: Any) -> Any:
        return batch if self._align is None else self._strategy.run(self._align, args=(batch,))

    def _reset_graph(self) -> None:
        self._compiled.model.reset_metrics()
        for total in (self._losses, self._weights):
            total.assign(tf.zeros_like(total))


def _assign_if(variable: Any, value: Any, due: Any) -> Any:
    return variable.assign(tf.where(due, value, variable))


def make_iterator(strategy: Any, pipeline: Callable[[], Any]) -> Any:
    """Return an iterator for `Loop` over the batches of one replica, given to this worker's replicas in turn.

    CPU devices share a plain iterator: a distributed one passes every batch through threads that copy it to a device,
    which takes longer than a small step.
    """
    mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    if isinstance(strategy, mirrored) and all("CPU:" in name for name in strategy.extended.worker_devices):
        return iter(pipeline())
    return iter(strategy.distribute_datasets_from_function(lambda context: pipeline()))
