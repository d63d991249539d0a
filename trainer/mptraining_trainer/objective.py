"""What one replica makes of its part of a batch: predictions, its share of the loss, its share of the gradients.

Shares, so that their sums over all replicas are the loss and the gradients of the whole batch, whatever the number of
replicas, masked examples or accumulated parts. Runs in replica context, except where it says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from mptraining_trainer.keras_generation import Keras

Batch = tuple[Any, ...]


class Objective:
    """Model and loss. Batches are (inputs, labels), or (inputs, labels, mask) with mask a float vector [batch].

    `examples_per_step` is over all replicas and accumulated parts; `scaled` says whether gradients are computed from
    a multiplied loss; `jit` compiles forward and backward pass with XLA.
    """

    def __init__(
        self,
        *,
        keras: Keras,
        model: Any,
        loss: Any,
        replicas: int,
        examples_per_step: int,
        accumulation: int,
        scaled: bool,
        jit: bool,
    ) -> None:
        self._model = model
        self._loss = keras.unreduced(loss)
        self._replicas = replicas
        self._examples_per_step = examples_per_step
        self._accumulation = accumulation
        self._scaled = scaled
        self._trainable = keras.variables_of(model.trainable_variables)
        self._input_type = _input_type(model)
        # XLA takes forward and backward pass alone: an all-reduce or synchronized statistics cannot be inside.
        self._differentiate: Any = (
            tf.function(self._loss_and_gradients, jit_compile=True) if jit else self._loss_and_gradients
        )

    def gradients(self, batch: Batch, mask: Any, scale: Any, metrics: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Shares of loss and gradients (None for a variable that takes no part); `metrics` are told the predictions.

        `mask` is None when every example counts.
        """
        inputs, labels = self._cast(batch[0]), batch[1]
        count = self._examples_in_step(mask)
        if self._accumulation == 1:
            loss, gradients, predictions = self._differentiate(inputs, labels, mask, count, scale)
            update(metrics, labels, predictions, mask)
            return loss, gradients
        loss = tf.constant(0.0)
        gradients = [tf.zeros_like(variable) for variable in self._trainable]
        unused: set[int] = set()
        for part in tf.range(self._accumulation):
            some_inputs, some_labels, some_mask = (
                None
                if tree is None
                else tf.nest.map_structure(lambda tensor, part=part: self._part(tensor, part), tree)
                for tree in (inputs, labels, mask)
            )
            part_loss, shares, predictions = self._differentiate(some_inputs, some_labels, some_mask, count, scale)
            update(metrics, some_labels, predictions, some_mask)
            loss += part_loss
            unused.update(index for index, share in enumerate(shares) if share is None)
            gradients = [
                total if share is None else total + tf.convert_to_tensor(share)
                for total, share in zip(gradients, shares, strict=True)
            ]
        return loss, [None if index in unused else gradient for index, gradient in enumerate(gradients)]

    def lowered(self, inputs: Any, labels: Any) -> None:
        """Has XLA take forward and backward pass over a few examples, without running them, in replica context.

        Raises what XLA says of an operation that it cannot take.
        """
        mask = tf.ones([len(tf.nest.flatten(inputs)[0])])
        one = tf.constant(1.0)
        self._differentiate.experimental_get_compiler_ir(self._cast(inputs), labels, mask, one, one)(stage="hlo")

    def interpret(self) -> None:
        """Leaves XLA out; to be called before the first step."""
        self._differentiate = self._loss_and_gradients

    def evaluation(self, batch: Batch, metrics: Sequence[Any]) -> tuple[Any, Any]:
        """Sums of loss and mask over the examples of a masked batch, without training anything."""
        inputs, labels, mask = self._cast(batch[0]), batch[1], batch[2]
        predictions = self._model(inputs, training=False)
        update(metrics, labels, predictions, mask)
        return self._reduced(labels, predictions, mask, 1.0), tf.reduce_sum(mask)

    def _loss_and_gradients(
        self, inputs: Any, labels: Any, mask: Any, count: Any, scale: Any
    ) -> tuple[Any, list[Any], Any]:
        with tf.GradientTape() as tape:
            predictions = self._model(inputs, training=True)
            loss = self._reduced(labels, predictions, mask, count)
            if self._model.losses:
                penalty = tf.add_n([tf.cast(term, tf.float32) for term in self._model.losses])
                loss += penalty / (self._replicas * self._accumulation)
            objective = loss * scale if self._scaled else loss
        gradients = tape.gradient(objective, self._trainable)
        if self._scaled:
            gradients = [_divide(gradient, scale) for gradient in gradients]
        return loss, gradients, predictions

    def _reduced(self, labels: Any, predictions: Any, mask: Any, count: Any) -> Any:
        """Sum over this replica's examples divided by `count`; further dimensions of the loss are averaged."""
        values = tf.cast(self._loss(labels, _float32(predictions)), tf.float32)
        if len(values.shape) > 1:
            values = tf.reduce_mean(values, axis=list(range(1, len(values.shape))))
        if mask is not None:
            # A masked example may hold anything, and 0 * inf would be NaN.
            values = tf.where(mask > 0, values * mask, tf.zeros_like(values))
        return tf.reduce_sum(values) / count

    def _examples_in_step(self, mask: Any) -> Any:
        if mask is None:
            return tf.constant(float(self._examples_per_step))
        context = tf.distribute.get_replica_context()
        return tf.maximum(context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(mask)), 1.0)

    def _part(self, tensor: Any, part: Any) -> Any:
        size = tf.shape(tensor)[0] // self._accumulation
        return tensor[part * size : (part + 1) * size]

    def _cast(self, inputs: Any) -> Any:
        """Integer pixels travel to the device as they are and become the model's input type there."""
        if self._input_type is None:
            return inputs
        return tf.nest.map_structure(lambda tensor: tf.cast(tensor, self._input_type), inputs)


def update(metrics: Sequence[Any], labels: Any, predictions: Any, mask: Any) -> None:
    """Tells every metric one batch; masked examples weigh nothing."""
    for metric in metrics:
        metric.update_state(labels, _float32(predictions), sample_weight=mask)


def _float32(tree: Any) -> Any:
    return tf.nest.map_structure(lambda tensor: tf.cast(tensor, tf.float32), tree)


def _divide(gradient: Any, scale: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / scale, gradient.indices, gradient.dense_shape)
    return gradient / scale


def _input_type(model: Any) -> str | None:
    """The floating type the model's inputs have, or None when they are left as they come."""
    inputs = getattr(model, "inputs", None) or []
    dtypes = {tf.as_dtype(tensor.dtype).name for tensor in inputs}
    return dtypes.pop() if len(dtypes) == 1 and tf.as_dtype(next(iter(dtypes))).is_floating else None
