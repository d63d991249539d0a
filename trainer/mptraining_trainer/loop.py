"""The training loop: K steps in one call of the device, for every strategy and both generations of Keras.

Read `Loop.execute` from top to bottom: fetch a batch, run the step on every replica, and after K steps read
everything the host wants to know in one transfer.

A step under float32 or bfloat16 is one `strategy.run`: gradients, summed over the replicas, applied. Under loss
scaling, and after numbers stopped being finite once, it is two, with the one decision in between: is the norm of the
summed gradients a finite number, and the loss?, apply or skip. A skipped step changes nothing: statistics, seeds and
metrics are put back. (An all-reduce inside the branch of a condition is only possible in a `strategy.run` of its own.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from mptraining_trainer.keras_generation import Keras
from mptraining_trainer.objective import Batch, Objective
from mptraining_trainer.precision import LossScaler
from mptraining_trainer.replicas import assign, local_sum, norm_of, summed

# Readings of an execution before those of the metrics: loss, gradient norm, finite steps, scale, skipped twice,
# asked to stop, seconds, broken, waited.
_FIXED = 10


@dataclass(frozen=True)
class Execution:
    """What one call of the device brought: `loss` is the mean over its `applied_steps`, those not skipped.

    `gradient_norm` is the Euclidean norm of all gradients of the last step, summed over replicas and accumulated
    parts, before any clipping and without the loss scale; it may be infinite or NaN. The first `finite_steps` steps
    had a finite one.
    `metrics` run since `reset_metrics`. `asked_to_stop` and `broken` count the workers that said so, `step_seconds` is
    the mean of what each of them said (see `execute`): the same on every worker, so that all decide alike.
    `waited_seconds` is how long they waited for batches, the mean of them too, None where nobody measures it. (A GPU
    that has work left while its host waits is counted as waiting.)
    """

    applied_steps: int
    loss: float
    gradient_norm: float
    finite_steps: int
    metrics: dict[str, float]
    loss_scale: float | None
    skipped_steps: int
    skipped_in_a_row: int
    asked_to_stop: int
    step_seconds: float
    waited_seconds: float | None = field(compare=False)
    broken: int = 0


class Loop:
    """Trains and evaluates one model; built inside the strategy's scope.

    `examples_per_step` is over all replicas and accumulated batches. Batches are (inputs, labels, mask) with mask a
    float vector, or (inputs, labels) when `masked` is False and every example counts.
    """

    def __init__(
        self,
        *,
        keras: Keras,
        strategy: Any,
        model: Any,
        loss: Any,
        optimizer: Any,
        metrics: Sequence[Any],
        examples_per_step: int,
        masked: bool,
        accumulation: int = 1,
        scaler: LossScaler | None = None,
        jit: bool = False,
        workers: int = 1,
        timed: bool = True,
    ) -> None:
        """`timed` measures the waiting for batches, which costs some microseconds a step."""
        self._keras = keras
        self._strategy = strategy
        self._optimizer = optimizer
        self._metrics = list(metrics)
        self._evaluation_metrics = [type(metric).from_config(metric.get_config()) for metric in self._metrics]
        self._masked = masked
        self._scaler = scaler
        self._workers = workers
        self._timed = timed
        self._replicas = strategy.num_replicas_in_sync
        self._variables = model.trainable_variables
        self._objective = Objective(
            keras=keras,
            model=model,
            loss=loss,
            replicas=self._replicas,
            examples_per_step=examples_per_step,
            accumulation=accumulation,
            scaled=scaler is not None and scaler.scales,
            jit=jit,
        )
        self._undone = keras.updated_by_calls(model) if scaler else []
        if scaler:
            self._undone += [variable for metric in self._metrics for variable in keras.variables(metric)]
        self._loss_sum = local_sum("loss_sum")
        self._evaluation_loss_sum = local_sum("evaluation_loss_sum")
        self._evaluation_weight_sum = local_sum("evaluation_weight_sum")
        keras.build_optimizer(optimizer, model.trainable_variables)
        self._execute = tf.function(self._execute_graph, reduce_retracing=True)
        self._evaluate = tf.function(self._evaluate_graph, reduce_retracing=True)
        self._reset = tf.function(self._reset_graph)

    @property
    def metrics(self) -> list[Any]:
        """The training metrics; their variables belong into a checkpoint."""
        return self._metrics

    # Host side

    def execute(
        self, iterator: Any, steps: int, *, stop: bool = False, step_seconds: float = 0.0, broken: bool = False
    ) -> Execution:
        """Trains `steps` steps.

        `stop` tells the other workers that this one wants to leave after them, `step_seconds` how long its steps
        took of late, `broken` that it found weights which are not finite.
        """
        said = tf.constant([float(stop), step_seconds, float(broken)], tf.float32)
        readings = self._execute(iterator, tf.constant(steps), said).numpy()
        fixed = (float(value) for value in readings[:_FIXED])
        loss_sum, norm, finite, loss_scale, skipped, in_a_row, asked, seconds, found, waited = fixed
        speakers = self._replicas if self._workers > 1 else 1
        names = [metric.name for metric in self._metrics]
        applied = steps - int(skipped - self._skipped_before)
        self._skipped_before = skipped
        return Execution(
            applied_steps=applied,
            loss=loss_sum / max(1, applied),
            gradient_norm=norm,
            finite_steps=int(finite),
            metrics=dict(zip(names, (float(value) for value in readings[_FIXED:]), strict=True)),
            loss_scale=loss_scale if self._scaler and self._scaler.scales else None,
            skipped_steps=int(skipped),
            skipped_in_a_row=int(in_a_row),
            asked_to_stop=int(asked),
            step_seconds=seconds / speakers,
            waited_seconds=waited / speakers if self._timed else None,
            broken=int(found),
        )

    def evaluate(self, iterator: Any, steps: int) -> dict[str, float]:
        """Loss and metrics over `steps` masked batches, each example counted once; names as in training."""
        values = self._evaluate(iterator, tf.constant(steps)).numpy()
        return dict(zip(["loss", *(metric.name for metric in self._metrics)], map(float, values), strict=True))

    def take(self, iterator: Any) -> Any:
        """The next batch of every replica, for `strategy.run`."""
        return self._next(iterator)

    def reset_metrics(self) -> None:
        """Begins a new epoch of the training metrics."""
        self._reset()

    def restored(self) -> None:
        """To be called when the scaler's counters were restored from a checkpoint."""
        self._skipped_before = float(self._scaler.state().skipped_steps) if self._scaler else 0.0

    _skipped_before = 0.0

    # Training on the device

    def _execute_graph(self, iterator: Any, steps: Any, said: Any) -> Any:
        self._loss_sum.assign(0.0)
        step = self._step if self._scaler is None else self._checked_step
        waited, norm, fine, finite = tf.constant(0.0), tf.constant(0.0), tf.constant(True), tf.constant(0.0)
        for _ in tf.range(steps):
            batch, seconds = self._timed_next(iterator)
            waited += seconds
            norm = step(batch)
            fine &= tf.math.is_finite(norm)
            finite += tf.cast(fine, tf.float32)
        said = tf.concat([said, [waited]], axis=0)
        heard = self._sum_over_workers(said) if self._workers > 1 else said
        scaling = self._scaler.readings() if self._scaler else [tf.constant(1.0), tf.constant(0.0), tf.constant(0.0)]
        results = [tf.cast(metric.result(), tf.float32) for metric in self._metrics]
        return tf.stack([self._loss_sum.read_value(), norm, finite, *scaling, *tf.unstack(heard), *results])

    def _step(self, batch: Batch) -> Any:
        """Returns the gradients' norm."""

        def on_replica(batch: Batch) -> Any:
            loss, gradients = self._shares(batch, tf.constant(1.0))
            gradients = summed(gradients)
            norm = norm_of(gradients)
            self._keras.apply_gradients(self._optimizer, gradients, self._variables)
            self._loss_sum.assign_add(loss)
            return norm

        return self._one_of(self._strategy.run(on_replica, args=(batch,)))

    def _checked_step(self, batch: Batch) -> Any:
        assert self._scaler is not None

        def gradients_on_replica(batch: Batch, scale: Any) -> tuple[Any, ...]:
            before = [tf.identity(variable) for variable in self._undone]
            with tf.control_dependencies(before):
                loss, gradients = self._shares(batch, scale)
            *gradients, total = summed([*gradients, loss])
            return before, loss, gradients, norm_of(gradients), total

        def apply_on_replica(loss: Any, gradients: list[Any]) -> None:
            self._keras.apply_gradients(self._optimizer, gradients, self._variables)
            self._loss_sum.assign_add(loss)

        # The replicas get the scale as a value: read inside, a mirrored variable is not the same tensor for all.
        scale = self._scaler.scale.read_value()
        before, loss, gradients, norms, totals = self._strategy.run(gradients_on_replica, args=(batch, scale))
        norm = self._one_of(norms)
        # Of sums over all replicas, so that every replica of every worker decides alike.
        finite = tf.math.is_finite(norm) & tf.math.is_finite(self._one_of(totals))
        if finite:
            self._strategy.run(apply_on_replica, args=(loss, gradients))
        else:
            for variable, value in zip(self._undone, before, strict=True):
                self._strategy.extended.update(variable, assign, args=(value,), group=False)
        self._scaler.update(finite)
        return norm

    def _one_of(self, values: Any) -> Any:
        """The value of this worker's first replica, where all have the same."""
        return self._strategy.experimental_local_results(values)[0]

    def _shares(self, batch: Batch, scale: Any) -> tuple[Any, list[Any]]:
        mask = batch[2] if self._masked else None
        return self._objective.gradients(batch, mask, scale, self._metrics)

    # Evaluation on the device

    def _evaluate_graph(self, iterator: Any, steps: Any) -> Any:
        for total in (self._evaluation_loss_sum, self._evaluation_weight_sum):
            total.assign(0.0)
        for metric in self._evaluation_metrics:
            metric.reset_state()

        def on_replica(batch: Batch) -> None:
            loss, weight = self._objective.evaluation(batch, self._evaluation_metrics)
            self._evaluation_loss_sum.assign_add(loss)
            self._evaluation_weight_sum.assign_add(weight)

        for _ in tf.range(steps):
            self._strategy.run(on_replica, args=(self._next(iterator),))
        loss = self._evaluation_loss_sum.read_value() / self._evaluation_weight_sum.read_value()
        return tf.stack([loss, *(tf.cast(metric.result(), tf.float32) for metric in self._evaluation_metrics)])

    # What both share

    def _next(self, iterator: Any) -> Any:
        """A batch for every replica, from what `feed` made; the replicas take from a plain iterator in turn."""
        if self._replicas == 1 or isinstance(iterator, tf.distribute.DistributedIterator):
            return next(iterator)
        return self._strategy.experimental_distribute_values_from_function(lambda context: next(iterator))

    def _timed_next(self, iterator: Any) -> tuple[Any, Any]:
        """A batch for every replica, and the seconds that it was waited for."""
        if not self._timed:
            return self._next(iterator), tf.constant(0.0)
        with tf.device("/CPU:0"):
            before = tf.timestamp()
        with tf.control_dependencies([before]):
            batch = self._next(iterator)
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)), tf.device("/CPU:0"):
            return batch, tf.cast(tf.timestamp() - before, tf.float32)

    def _reset_graph(self) -> None:
        for metric in self._metrics:
            metric.reset_state()

    def _sum_over_workers(self, value: Any) -> Any:
        shares = self._strategy.run(tf.identity, args=(value,))
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)


def feed(strategy: Any, pipeline: Callable[[], Any]) -> Any:
    """An iterator for `Loop` over the batches of one replica, dealt to this worker's replicas in turn.

    CPU devices share a plain one: a distributed one hands every batch through threads that copy it to a device, which
    takes longer than a small step does.
    """
    mirrored = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)
    if isinstance(strategy, mirrored) and all("CPU:" in name for name in strategy.extended.worker_devices):
        return iter(pipeline())
    return iter(strategy.distribute_datasets_from_function(lambda context: pipeline()))
