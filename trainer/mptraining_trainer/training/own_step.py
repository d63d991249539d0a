"""A model's own `train_step` or `test_step`, called in every replica as `fit` calls it.

Keras sums the gradients of the replicas, so that an own loss is as many times too large; here they are averaged, and
Keras' losses are reduced as those of a part of the batch (`batch_reduction`): what is a mean over rows trains as on one
device. Loss scaling, accumulation, XLA and skipped steps are not possible inside a step of the user's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from mptraining_trainer.keras_generation import Keras
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.training.batch_reduction import Part, part_of, wrap_reductions
from mptraining_trainer.training.step import Batch


class OwnStep:
    """`names` are those that the step returns, after `build`. All other methods are for replica context."""

    def __init__(self, compiled: CompiledModel, replicas: int) -> None:
        self._compiled = compiled
        self._replicas = replicas
        self.names: tuple[str, ...] = ()
        wrap_reductions(legacy=compiled.keras.legacy)
        if replicas > 1:
            for optimizer in optimizers(compiled.keras, compiled.model):
                _average(compiled.keras, optimizer)

    def train(self, batch: Batch) -> dict[str, Any]:
        """Runs `train_step`; its logs as float32 scalars."""
        return self._run(self._compiled.model.train_step, batch)

    def test(self, batch: Batch) -> dict[str, Any]:
        """Runs `test_step`; its logs as float32 scalars."""
        return self._run(self._compiled.model.test_step, batch)

    def _run(self, step: Any, batch: Batch) -> dict[str, Any]:
        data = self.data(batch)
        part = Part(self._replicas, self._mean) if self._replicas > 1 else None
        with part_of(part):
            logs = step(data)
        logs = logs if isinstance(logs, Mapping) else {"loss": logs}
        scalars = {str(name): tf.cast(tf.convert_to_tensor(value), tf.float32) for name, value in logs.items()}
        return {name: tf.reduce_mean(value) for name, value in scalars.items()}

    def data(self, batch: Batch) -> Any:
        """What `fit` passes to `train_step`: inputs alone, (inputs, labels) or (inputs, labels, weights)."""
        inputs, labels, weights = batch[:3]
        if len(batch) > 3:
            rows = batch[3] > 0
            inputs, labels, weights = tf.nest.map_structure(
                lambda tensor: tf.boolean_mask(tensor, rows), (inputs, labels, weights)
            )
        labels = self._compiled.arranged(labels)
        if not isinstance(weights, tuple):
            return inputs, labels, weights
        return inputs if labels is None else (inputs, labels)

    def _mean(self, value: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, value)


def optimizers(keras: Keras, model: Any) -> list[Any]:
    """Every optimizer of a model: the compiled one, and those that it keeps as attributes, such as a GAN's two."""
    kind = keras.module.optimizers.Optimizer
    found: dict[int, Any] = {}
    for value in (getattr(model, "optimizer", None), *vars(model).values()):
        for each in value if isinstance(value, (list, tuple)) else (value,):
            inner = keras.inner_optimizer(each)
            if isinstance(inner, kind):
                found[id(inner)] = inner
    return list(found.values())


def _average(keras: Keras, optimizer: Any) -> None:
    """Has an optimizer apply the mean of the replicas' gradients, before it clips them."""

    def mean(gradients: Sequence[Any]) -> list[Any]:
        present = [each for each in gradients if each is not None]
        context = tf.distribute.get_replica_context()
        means = iter(context.all_reduce(tf.distribute.ReduceOp.MEAN, present) if present else ())
        return [None if each is None else next(means) for each in gradients]

    if keras.legacy:
        apply_gradients = optimizer.apply_gradients

        def averaged(grads_and_vars: Any, name: Any = None, **_aggregation: Any) -> Any:
            gradients, variables = zip(*grads_and_vars, strict=True)
            pairs = list(zip(mean(gradients), variables, strict=True))
            return apply_gradients(pairs, name=name, skip_gradients_aggregation=True)

        optimizer.apply_gradients = averaged
    else:
        apply = optimizer.apply

        def applied(grads: Any, trainable_variables: Any = None) -> Any:
            return apply(mean(list(grads)), trainable_variables)

        optimizer.apply = applied
        optimizer._all_reduce_sum_gradients = list
