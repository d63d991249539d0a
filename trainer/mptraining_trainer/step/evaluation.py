"""Validation: loss and metrics over batches with rows, in short calls, between which a stop request is checked.

The metrics are the training metrics themselves, as under `fit`. Validation may be due in the middle of an epoch, so
their values are saved before it and restored after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from mptraining_trainer.devices.replica_variables import CrossReplicaSum, is_per_replica
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.step.own_step import OwnStep, batch_specs
from mptraining_trainer.step.replica_step import Batch, ReplicaStep, local_sum
from mptraining_trainer.step.steps_per_execution import StepsPerExecution


class Evaluation:
    """Evaluates one model; create it inside the strategy's scope.

    With `own_step`, the model's own `test_step` is called. `next_batch` gives every replica a batch of an iterator, as
    `Loop.next_batch` does.
    """

    def __init__(
        self,
        *,
        strategy: Any,
        step: ReplicaStep,
        own_step: OwnStep | None,
        compiled: CompiledModel,
        next_batch: Callable[[Any], Any],
        worker_sum: CrossReplicaSum,
    ) -> None:
        self._strategy = strategy
        self._step = step
        self._own_step = own_step
        self._compiled = compiled
        self._next_batch = next_batch
        self._worker_sum = worker_sum
        self._loss = local_sum("evaluation_loss_sum")
        self._weight = local_sum("evaluation_weight_sum")
        self._steps_per_execution = StepsPerExecution.begin(None)
        self._names: tuple[str, ...] = ()
        self._saved: list[tuple[Any, Any]] | None = None
        self._begin = tf.function(self._begin_graph, autograph=False)
        self._part = compiled.keras.function(self._part_graph, reduce_retracing=True)
        self._end = tf.function(self._restore, autograph=False)

    def run(
        self,
        iterator: Any,
        steps: int,
        *,
        now: Callable[[], float],
        stop: Callable[[], bool] = lambda: False,
        one_by_one: bool = False,
        on_batches_begin: Callable[[int], None] = lambda first: None,
        on_batches_end: Callable[[int, dict[str, float]], None] = lambda last, metrics: None,
    ) -> dict[str, float] | None:
        """Return loss and metrics over `steps` batches, each example counted once; names as in training.

        Returns None if `stop` returned True on any worker before the last batch; every worker stops after the same
        batch. `now` is a clock in seconds. `on_batches_begin` receives the first batch of each call, `on_batches_end`
        the last one and the metrics so far; with `one_by_one` each call has one batch.
        """
        if self._saved is None:
            self._saved = self._metric_copies()
        self._begin()
        try:
            return self._run(
                iterator,
                steps,
                now=now,
                stop=stop,
                one_by_one=one_by_one,
                on_batches_begin=on_batches_begin,
                on_batches_end=on_batches_end,
            )
        finally:
            self._end()

    def _run(
        self,
        iterator: Any,
        steps: int,
        *,
        now: Callable[[], float],
        stop: Callable[[], bool],
        one_by_one: bool,
        on_batches_begin: Callable[[int], None],
        on_batches_end: Callable[[int, dict[str, float]], None],
    ) -> dict[str, float] | None:
        step_seconds, done = 0.0, 0
        while True:
            count, before = 1 if one_by_one else min(self._steps_per_execution.steps, steps - done), now()
            request = tf.constant([float(stop()), step_seconds], tf.float32)
            on_batches_begin(done)
            asked, seconds, *values = self._part(iterator, tf.constant(count), request).numpy().tolist()
            step_seconds, done = (now() - before) / count, done + count
            metrics = dict(zip(self._names, values, strict=True))
            on_batches_end(done - 1, metrics)
            if done == steps:
                return metrics
            if asked:
                return None
            # The duration is that of the previous call, averaged over the workers, so that all choose the same number
            # next.
            self._steps_per_execution = self._steps_per_execution.adjust(seconds / self._worker_sum.count)

    def _metric_copies(self) -> list[tuple[Any, Any]]:
        """Return each variable of the metrics with a variable of the same kind that saves its value."""
        keras, metrics = self._compiled.keras, self._compiled.model.metrics
        variables = [variable for metric in metrics for variable in keras.variables(metric)]
        with self._strategy.scope():
            return [(variable, _variable_like(variable)) for variable in variables]

    def _begin_graph(self) -> None:
        self._move([(variable, copy) for variable, copy in self._saved or ()])
        self._compiled.model.reset_metrics()
        for total in (self._loss, self._weight):
            total.assign(0.0)

    def _restore(self) -> None:
        self._move([(copy, variable) for variable, copy in self._saved or ()])

    def _move(self, pairs: list[tuple[Any, Any]]) -> None:
        apart = [pair for pair in pairs if is_per_replica(pair[0])]
        for source, target in pairs:
            if not is_per_replica(source):
                target.assign(source.read_value())

        def on_replica() -> None:
            for source, target in apart:
                target.assign(source.read_value())

        if apart:
            self._strategy.run(on_replica)

    def _part_graph(self, iterator: Any, steps: Any, request: Any) -> Any:
        if self._own_step is not None:
            return self._own_part(self._own_step, iterator, steps, request)

        def on_replica(batch: Batch) -> None:
            loss, weight = self._step.evaluation(batch)
            self._loss.assign_add(loss)
            self._weight.assign_add(weight)

        def one_step(number: Any) -> tuple[Any]:
            self._strategy.run(on_replica, args=(self._next_batch(iterator),))
            return (number + 1,)

        tf.while_loop(lambda number: number < steps, one_step, (tf.constant(0),), parallel_iterations=1)
        results = {"loss": self._loss.read_value() / self._weight.read_value()}
        results |= self._compiled.results(self._compiled.evaluation_metrics)
        self._names = tuple(results)
        return tf.stack([*tf.unstack(self._worker_sum.reduce(request)), *results.values()])

    def _own_part(self, own_step: OwnStep, iterator: Any, steps: Any, request: Any) -> Any:
        if not self._names:
            raise ValueError("prepare has to be called first")

        def on_replica(batch: Batch) -> dict[str, Any]:
            return own_step.share_of_test(batch, self._names)

        def one_step(number: Any, _logs: Any) -> tuple[Any, Any]:
            shares = self._strategy.run(on_replica, args=(self._next_batch(iterator),))
            total = tf.distribute.ReduceOp.SUM
            return number + 1, {name: self._strategy.reduce(total, shares[name], axis=None) for name in self._names}

        begin = (tf.constant(0), dict.fromkeys(self._names, tf.constant(0.0)))
        _, logs = tf.while_loop(lambda number, _: number < steps, one_step, begin, parallel_iterations=1)
        results = self._compiled.results(self._compiled.model.metrics)
        logs |= {name: value for name, value in results.items() if name in logs}
        return tf.stack([*tf.unstack(self._worker_sum.reduce(request)), *logs.values()])

    def prepare(self, batch: Batch) -> None:
        """Trace the model's own `test_step` once to learn the names of its logs; `batch` are a few examples."""
        own_step = self._own_step
        if own_step is None:
            return

        def on_replica(*tensors: Any) -> None:
            self._names = tuple(own_step.test(tensors))

        traced = self._compiled.keras.function(lambda *tensors: self._strategy.run(on_replica, args=tensors))
        traced.get_concrete_function(*batch_specs(batch))


def _variable_like(variable: Any) -> Any:
    apart = {"synchronization": variable.synchronization} if is_per_replica(variable) else {}
    return tf.Variable(
        tf.zeros(variable.shape, variable.dtype), trainable=False, aggregation=variable.aggregation, **apart
    )
