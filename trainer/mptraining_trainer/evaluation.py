"""Validation: loss and metrics over masked batches, in calls so short that a SIGTERM is heard between two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from mptraining_trainer.objective import Batch, Objective
from mptraining_trainer.pace import Pace
from mptraining_trainer.replicas import Speakers
from mptraining_trainer.running_sum import local_sum


class Evaluation:
    """Evaluates one model; built inside the strategy's scope. `metrics` are those of training, of which it has copies.

    `take` gives every replica a batch of an iterator, as `Loop.take` does.
    """

    def __init__(
        self,
        *,
        strategy: Any,
        objective: Objective,
        metrics: Sequence[Any],
        take: Callable[[Any], Any],
        speakers: Speakers,
    ) -> None:
        self._strategy = strategy
        self._objective = objective
        self._metrics = [type(metric).from_config(metric.get_config()) for metric in metrics]
        self._take = take
        self._speakers = speakers
        self._loss = local_sum("evaluation_loss_sum")
        self._weight = local_sum("evaluation_weight_sum")
        self._pace = Pace.begin(None)
        self._begin = tf.function(self._begin_graph)
        self._part = tf.function(self._part_graph, reduce_retracing=True)

    def run(
        self,
        iterator: Any,
        steps: int,
        *,
        now: Callable[[], float],
        stop: Callable[[], bool] = lambda: False,
        begins: Callable[[int], None] = lambda first: None,
        ends: Callable[[int, dict[str, float]], None] = lambda last, metrics: None,
    ) -> dict[str, float] | None:
        """Loss and metrics over `steps` masked batches, each example counted once; names as in training.

        None when `stop` said on any worker that it is told to leave before the last batch; every worker hears of it
        after the same one. `now` is a clock in seconds. `begins` is told the first batch of each call, `ends` the last
        one and the metrics so far.
        """
        self._begin()
        took, done = 0.0, 0
        while True:
            count, before = min(self._pace.steps, steps - done), now()
            said = tf.constant([float(stop()), took], tf.float32)
            begins(done)
            asked, seconds, *values = self._part(iterator, tf.constant(count), said).numpy().tolist()
            took, done = (now() - before) / count, done + count
            metrics = dict(zip(["loss", *(metric.name for metric in self._metrics)], values, strict=True))
            ends(done - 1, metrics)
            if done == steps:
                return metrics
            if asked:
                return None
            # Of the call before, as it was on average: all workers go on with the same number.
            self._pace = self._pace.after(seconds / self._speakers.count)

    def _begin_graph(self) -> None:
        for total in (self._loss, self._weight):
            total.assign(0.0)
        for metric in self._metrics:
            metric.reset_state()

    def _part_graph(self, iterator: Any, steps: Any, said: Any) -> Any:
        def on_replica(batch: Batch) -> None:
            loss, weight = self._objective.evaluation(batch, self._metrics)
            self._loss.assign_add(loss)
            self._weight.assign_add(weight)

        for _ in tf.range(steps):
            self._strategy.run(on_replica, args=(self._take(iterator),))
        loss = self._loss.read_value() / self._weight.read_value()
        results = [tf.cast(metric.result(), tf.float32) for metric in self._metrics]
        return tf.stack([*tf.unstack(self._speakers.heard(said)), loss, *results])
