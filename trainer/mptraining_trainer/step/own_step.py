"""Execution of a model's own `train_step` or `test_step` on every replica, as in `fit`.

Keras sums the gradients of the replicas, which multiplies an own loss by their number; here gradients are averaged, and
Keras' losses are reduced as those of a part of the batch (`batch_reduction`): a mean over rows trains as on one device.
Loss scaling, accumulation, XLA and skipped steps are not possible inside a user's step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from mptraining_trainer import keras_internals
from mptraining_trainer.data.padding import without_padding
from mptraining_trainer.devices.replica_variables import all_reduce
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.step.batch_reduction import Part, local_value, reduce_as_part, wrap_reductions
from mptraining_trainer.step.replica_step import Batch, rows_of


class OwnStep:
    """The user's step on each replica. After `prepare`, `names` are the names of its logs.

    All methods except `prepare` are for replica context.
    """

    def __init__(self, compiled: CompiledModel, replicas: int) -> None:
        self._compiled = compiled
        self._replicas = replicas
        self.names: tuple[str, ...] = ()
        wrap_reductions(legacy=compiled.keras.legacy)

    def prepare(self, strategy: Any, specs: Batch) -> None:
        """Create the variables that `train_step` creates, and learn the names of its logs.

        Call it in cross-replica context within the scope. The step is traced with optimizers that only record the
        variables they are applied to, since their slots cannot be created inside a replica's function. Then the
        optimizers are built.
        """
        keras = self._compiled.keras
        used = optimizers(keras, self._compiled.model)
        recorded: dict[int, list[Any]] = {}
        for optimizer in used:
            _record_variables(keras, optimizer, recorded.setdefault(id(optimizer), []))

        def on_replica(*tensors: Any) -> None:
            self.names = tuple(self.train(tensors))

        try:
            traced = keras.function(lambda *tensors: strategy.run(on_replica, args=tensors))
            traced.get_concrete_function(*specs)
        finally:
            for optimizer in used:
                vars(optimizer).pop(_apply_name(keras), None)
        for optimizer in used:
            variables = recorded[id(optimizer)]
            if variables and not getattr(optimizer, "built", False):
                keras.build_slots(optimizer, variables)
            if self._replicas > 1:
                _average(keras, optimizer)

    def train(self, batch: Batch) -> dict[str, Any]:
        """Run `train_step`; return its logs as float32 scalars."""
        return self._run(self._compiled.model.train_step, batch, Part(self._replicas, self._mean))

    def test(self, batch: Batch, parts: Any = None) -> dict[str, Any]:
        """Run `test_step`; return its logs as float32 scalars.

        `parts`, one divided by this replica's share of the rows, is for a condition, in which replicas cannot
        communicate: each uses its own mask.
        """
        part = Part(self._replicas, self._mean) if parts is None else Part(parts, local_value)
        return self._run(self._compiled.model.test_step, batch, part)

    def share_of_test(self, batch: Batch, names: Sequence[str]) -> dict[str, Any]:
        """Run `test` on the real rows, if any; return the logs times this replica's share of these rows."""
        rows = rows_of(batch)
        whole = rows
        if self._replicas > 1:
            whole = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, rows)

        def tested() -> dict[str, Any]:
            with self._compiled.results_of_one_replica():
                logs = self.test(batch, whole / rows)
            return {name: logs[name] * rows / whole for name in names}

        logs: dict[str, Any] = tf.cond(rows > 0, tested, lambda: dict.fromkeys(names, tf.constant(0.0)))
        return logs

    def _run(self, step: Any, batch: Batch, part: Part) -> dict[str, Any]:
        data = self.data(batch)
        with reduce_as_part(part if self._replicas > 1 else None):
            logs = step(data)
        logs = _flat(logs) if isinstance(logs, Mapping) else {"loss": logs}
        scalars = {name: tf.cast(tf.convert_to_tensor(value), tf.float32) for name, value in logs.items()}
        return {name: tf.reduce_mean(value) for name, value in scalars.items()}

    def data(self, batch: Batch) -> Any:
        """Return the argument of `train_step` under `fit`: inputs, (inputs, labels) or (inputs, labels, weights)."""
        batch = without_padding(batch) if len(batch) > 3 else batch
        inputs, labels, weights = self._compiled.keras_arguments(batch)
        if weights is not None:
            return inputs, labels, weights
        return inputs if labels is None else (inputs, labels)

    def _mean(self, value: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, value)


def _flat(logs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the logs with nested dicts flattened, as in Keras' `pythonify_logs`."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {str(name): value}
    return flat


def batch_specs(batch: Batch) -> Batch:
    """Return specs of batches like this one, of any size."""

    def spec(leaf: Any) -> Any:
        if isinstance(leaf, tf.RaggedTensor):
            return tf.RaggedTensorSpec([None, *leaf.shape[1:]], leaf.dtype, leaf.ragged_rank, leaf.row_splits.dtype)
        return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)

    specs: Batch = tf.nest.map_structure(spec, batch)
    return specs


def optimizers(keras: Keras, model: Any) -> list[Any]:
    """Return every optimizer of a model: the compiled one and those in attributes, such as the two of a GAN."""
    kind = keras.module.optimizers.Optimizer
    by_id: dict[int, Any] = {}
    for value in (getattr(model, "optimizer", None), *vars(model).values()):
        for candidate in value if isinstance(value, (list, tuple)) else (value,):
            inner = keras.inner_optimizer(candidate)
            if isinstance(inner, kind):
                by_id[id(inner)] = inner
    return list(by_id.values())


def _apply_name(keras: Keras) -> str:
    return "apply_gradients" if keras.legacy else "apply"


def _record_variables(keras: Keras, optimizer: Any, variables: list[Any]) -> None:
    """Make an optimizer record the variables that it is applied to, once each, instead of changing them."""

    def recorded(gradients: Any, trainable_variables: Any = None, **_arguments: Any) -> None:
        given = [variable for _, variable in gradients] if keras.legacy else trainable_variables
        known = {id(variable) for variable in variables}
        variables.extend(variable for variable in given or () if id(variable) not in known)

    object.__setattr__(optimizer, _apply_name(keras), recorded)


def _average(keras: Keras, optimizer: Any) -> None:
    """Make an optimizer apply the mean of the replicas' gradients, before it clips them."""

    if keras.legacy:
        apply_gradients = optimizer.apply_gradients

        def averaged(grads_and_vars: Any, name: Any = None, **_aggregation: Any) -> Any:
            gradients, variables = zip(*grads_and_vars, strict=True)
            means = all_reduce(gradients, keras.overwritten(variables), mean=True)
            return apply_gradients(list(zip(means, variables, strict=True)), name=name)

        optimizer.apply_gradients = averaged
    else:
        apply = optimizer.apply

        def applied(grads: Any, trainable_variables: Any = None) -> Any:
            gradients = list(grads)
            variables = list(trainable_variables or keras_internals.trainable_variables(optimizer))
            return apply(all_reduce(gradients, keras.overwritten(variables), mean=True), trainable_variables)

        optimizer.apply = applied
    keras.disable_sums(optimizer)
