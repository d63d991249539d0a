"""One replica's part of a training step: predictions, Keras' own loss, gradients, metrics, sums and moving statistics.

A whole batch on one replica is Keras' `train_step` without change. With several replicas or accumulated batches each
computes its part, corrected by `batch_reduction`, so that the sum of the shares is the loss and the gradients of the
whole batch. Everything runs in replica context unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from mptraining_trainer import keras_internals
from mptraining_trainer.data.padding import without_padding
from mptraining_trainer.devices.replica_variables import all_finite, all_reduce
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.step.batch_reduction import Part, local_value, reduce_as_part, wrap_reductions

Batch = tuple[Any, ...]


class ReplicaStep:
    """The training and evaluation step of one replica.

    Batches are (inputs, labels, weights), or (inputs, labels, weights, rows) with rows a float vector [batch]. Labels
    are an empty tuple if the data has none, weights if no example is weighted. With `scaled`, gradients are computed
    from a multiplied loss; `jit` compiles forward and backward pass with XLA; `static` keeps every shape static, as
    TPUs need.
    """

    def __init__(
        self,
        *,
        compiled: CompiledModel,
        replicas: int,
        accumulation: int,
        scaled: bool,
        jit: bool,
        static: bool = False,
    ) -> None:
        # True if the loss needs sums over the replicas while it is computed; see `separable_loss`.
        self.sums_over_replicas = True
        self._compiled = compiled
        self._replicas = replicas
        self._parts = replicas * accumulation
        self._accumulation = accumulation
        self._scaled = scaled
        self._static = static
        self._trainable = compiled.keras.variables_of(compiled.model.trainable_variables)
        self._overwritten = compiled.keras.overwritten(compiled.model.trainable_variables)
        if replicas > 1 and not compiled.keras.legacy:
            keras_internals.keep_losses_by_replica(compiled.model)
        wrap_reductions(legacy=compiled.keras.legacy)
        # XLA compiles only the forward and backward pass: an all-reduce or synchronized statistics cannot be inside.
        self._differentiate: Any = (
            compiled.keras.function(self._loss_and_gradients, jit_compile=True) if jit else self._loss_and_gradients
        )

    def gradients(self, batch: Batch, scale: Any) -> tuple[Any, list[Any]]:
        """Return shares of loss and gradients (None for an unused variable); update the compiled metrics."""
        batch, rows = _split_rows(batch)
        count = None if rows is None else self._sum(tf.reduce_sum(rows))
        if self._accumulation == 1:
            loss, gradients, outputs = self._differentiate(batch, rows, count, scale)
            self._update(self._compiled.keras_arguments(batch), _with_masks(*outputs), rows)
            return loss, gradients
        unused: set[int] = set()

        def one_part(number: Any, loss: Any, gradients: list[Any]) -> tuple[Any, Any, list[Any]]:
            part, part_rows = tf.nest.map_structure(
                lambda tensor: None if tensor is None else self._slice(tensor, number), (batch, rows)
            )
            part_loss, shares, outputs = self._differentiate(part, part_rows, count, scale)
            self._update(self._compiled.keras_arguments(part), _with_masks(*outputs), part_rows)
            unused.update(index for index, share in enumerate(shares) if share is None)
            gradients = [
                total if share is None else tf.maximum(total, share) if largest else total + tf.convert_to_tensor(share)
                for total, share, largest in zip(gradients, shares, self._overwritten, strict=True)
            ]
            return number + 1, loss + part_loss, gradients

        begin = (tf.constant(0), tf.constant(0.0), [tf.zeros_like(variable) for variable in self._trainable])
        _, loss, gradients = tf.while_loop(
            lambda number, *_: number < self._accumulation, one_part, begin, parallel_iterations=1
        )
        return loss, [None if index in unused else gradient for index, gradient in enumerate(gradients)]

    def rows_in_step(self, batch: Batch) -> Any:
        """Return the number of real rows of the whole batch, a float32 scalar."""
        return self._sum(rows_of(batch))

    def evaluation(self, batch: Batch) -> tuple[Any, Any]:
        """Return this replica's shares of the sum of the loss over the rows, and of their number; update the metrics.

        The sums of the shares over the replicas are those of the whole batch.
        """
        whole, local_rows = self.rows_in_step(batch), rows_of(batch)
        padded = batch
        batch, rows = _split_rows(batch)
        # A loss that is a mean over rows must not contain padded rows; a loss with sums over the replicas gets `rows`
        # instead.
        if rows is not None and not (self._static or self.sums_over_replicas):
            batch, rows = without_padding(padded), None
        inputs, labels, weights = self._compiled.keras_arguments(batch)

        def evaluated(part: Part | None) -> Any:
            with reduce_as_part(part), self._weight_outputs(rows, whole):
                predictions = self._compiled.predictions(inputs, training=False)
                loss = self._compiled.loss(inputs, labels, predictions, weights, training=False)
            self._update((inputs, labels, weights), predictions, rows)
            return tf.reduce_mean(tf.cast(loss, tf.float32))

        def of_own_rows() -> Any:
            # Keras 3 gives a batch without a fixed size a weight of one, tf_keras the number of its rows.
            weight = local_rows if self._compiled.keras.legacy else local_rows * self._replicas / whole
            with self._compiled.weight_output_losses(weight):
                return evaluated(Part(whole / local_rows, local_value))

        if rows is not None:
            return evaluated(self._part(rows, whole, accumulation=1)) * whole / self._replicas, whole / self._replicas
        if self._replicas == 1:
            return evaluated(None) * local_rows, local_rows

        def of_no_row() -> Any:
            # Call the model all the same, so that a layer that counts its calls has the same count on every replica.
            self._compiled.predictions(self._compiled.arrange_inputs(padded[0]), training=False)
            return tf.constant(0.0)

        return tf.cond(local_rows > 0, of_own_rows, of_no_row) * local_rows, local_rows

    def lower_to_xla(self, batch: Batch) -> None:
        """Lower forward and backward pass to XLA over a few examples, without running them, in replica context.

        Raises XLA's error for an operation that it cannot compile.
        """
        self._differentiate.experimental_get_compiler_ir(batch, None, None, tf.constant(1.0))(stage="hlo")

    def disable_xla(self) -> None:
        """Turn XLA off; call it before the first step."""
        self._differentiate = self._loss_and_gradients

    def _loss_and_gradients(self, batch: Batch, rows: Any, count: Any, scale: Any) -> tuple[Any, list[Any], Any]:
        inputs, labels, weights = self._compiled.keras_arguments(batch)
        with tf.GradientTape() as tape:
            with reduce_as_part(self._part(rows, count, self._accumulation)), self._weight_outputs(rows, count):
                predictions = self._compiled.predictions(inputs, training=True)
                loss = self._compiled.loss(inputs, labels, predictions, weights, training=True)
            if self._parts > 1:
                loss /= tf.cast(self._parts, loss.dtype)
            objective = loss * tf.cast(scale, loss.dtype) if self._scaled else loss
            objective = self._compiled.keras.scale_loss(self._compiled.model, objective)
        gradients = tape.gradient(objective, self._trainable)
        if self._scaled:
            pairs = zip(gradients, self._overwritten, strict=True)
            gradients = [gradient if overwrites else _divide(gradient, scale) for gradient, overwrites in pairs]
        # Masks are attributes of tensors, which a compiled function does not return.
        loss = tf.cast(loss, tf.float32)
        return loss if loss.shape.rank == 0 else tf.reduce_mean(loss), gradients, (predictions, _masks(predictions))

    def _part(self, rows: Any, count: Any, accumulation: int) -> Part | None:
        parts = self._replicas * accumulation
        if parts == 1 and rows is None:
            return None
        # Replicas cannot communicate inside the loop over accumulated batches: there each part uses its own counts.
        part = Part(parts, self._mean if accumulation == 1 else local_value)
        if rows is not None:
            part.rows = rows
            part.mean_rows = tf.maximum(count, 1.0) / parts
            part.mean_rows_now = part.mean_rows if accumulation == 1 else tf.reduce_sum(rows)
        return part

    def _weight_outputs(self, rows: Any, count: Any) -> AbstractContextManager[None]:
        """Weight tf_keras' output losses by real rows if the batch has padding; Keras 3 weights all batches alike."""
        if rows is None or not self._compiled.keras.legacy:
            return nullcontext()
        return self._compiled.weight_output_losses(tf.cast(count, tf.float32) / self._parts)

    def _update(self, batch: Batch, predictions: Any, rows: Any) -> None:
        """Update the compiled metrics with the real rows."""
        inputs, labels, weights = batch
        if rows is None:
            self._compiled.update_metrics(inputs, labels, predictions, weights)
            return
        if self._static:
            keras_internals.update_metrics_by_weight(self._compiled.model, labels, predictions, weights, rows)
            return
        keep = rows > 0

        def real(tensor: Any) -> Any:
            return None if tensor is None else tf.boolean_mask(tensor, keep)

        def update() -> int:
            masks = {index: real(mask) for index, mask in _masks(predictions).items()}
            tensors = tf.nest.map_structure(real, (inputs, labels, predictions, weights))
            predicted = _with_masks(tensors[2], masks)
            self._compiled.update_metrics(tensors[0], tensors[1], predicted, tensors[3])
            return 0

        # Skip the update without real rows, because a user's metric may divide by their number.
        tf.cond(tf.reduce_any(keep), update, lambda: 0)

    def _slice(self, tensor: Any, number: Any) -> Any:
        size = tf.shape(tensor)[0] // self._accumulation
        part = tensor[number * size : (number + 1) * size]
        if tensor.shape[0] is not None:
            part = tf.ensure_shape(part, [tensor.shape[0] // self._accumulation, *tensor.shape[1:]])
        return part

    def _mean(self, value: Any) -> Any:
        return self._sum(value) / self._replicas

    def _sum(self, value: Any) -> Any:
        if self._replicas == 1:
            return value
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value)


def rows_of(batch: Batch) -> Any:
    """Return the number of this replica's real rows, a float32 scalar."""
    if len(batch) > 3:
        return tf.reduce_sum(batch[3])
    first = tf.nest.flatten(batch[0])[0]
    return tf.cast(first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0], tf.float32)


def _split_rows(batch: Batch) -> tuple[Batch, Any]:
    """Return inputs, labels and weights, and the rows; None in place of rows that the batch does not have."""
    return (batch[:3], batch[3]) if len(batch) > 3 else (batch, None)


def _masks(predictions: Any) -> dict[str, Any]:
    """Return the masks that Keras' layers gave the outputs, by the outputs' numbers."""
    masks = {str(number): keras_internals.mask_of(tensor) for number, tensor in enumerate(tf.nest.flatten(predictions))}
    return {number: mask for number, mask in masks.items() if mask is not None}


def _with_masks(predictions: Any, masks: Mapping[str, Any]) -> Any:
    for number, mask in masks.items():
        keras_internals.set_mask(tf.nest.flatten(predictions)[int(number)], mask)
    return predictions


def _divide(gradient: Any, scale: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / scale, gradient.indices, gradient.dense_shape)
    return gradient / scale


def local_sum(name: str, dtype: Any = tf.float32) -> Any:
    """Return a scalar variable with one value per replica, which a read sums. Create it in the strategy's scope."""
    return tf.Variable(
        tf.zeros([], dtype),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
        name=name,
    )


class MovingStatistics:
    """The moving statistics of one model; all methods are for replica context."""

    def __init__(self, keras: Keras, model: Any) -> None:
        self._variables = keras.moving_statistics(model)

    def all_finite(self) -> Any:
        """Return whether all statistics are finite on this replica, a bool scalar."""
        return all_finite([variable.read_value() for variable in self._variables])

    def average_over_replicas(self) -> None:
        """Replace the statistics on every replica by their mean over all replicas.

        In each step and not when they are read: Keras 3's are mirrored variables, of which a checkpoint and an export
        have the first replica's value.
        """
        if self._variables and tf.distribute.get_replica_context().num_replicas_in_sync > 1:
            values = [variable.read_value() for variable in self._variables]
            means = all_reduce(values, [False] * len(values), mean=True)
            for variable, mean in zip(self._variables, means, strict=True):
                variable.assign(mean)
