"""Loss scaling for a Keras 3 model with its own `train_step`, or with a custom loop, under mixed_float16.

`compile` wraps a LossScaleOptimizer around the optimizer. Its `apply` divides the gradients by the scale, 32768 at
first, because Keras' own `train_step` multiplies the loss by it. A user's `train_step` does not call
`optimizer.scale_loss`, since the same program needs no scale under float32: its gradients become almost zero, and SGD
does not learn (tf_keras scales in `optimizer.minimize` or is called with `get_scaled_loss`, and has no such fault).

This module scales the backward pass of such a step inside `tf.GradientTape.gradient` and unscales its result. So the
program gets the gradients of its loss, which it may clip or add up as under float32, and float16 has enough range. An
Inf in the backward pass is preserved: LossScaleOptimizer skips that step and halves the scale. A step that calls
`scale_loss` itself is not changed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.reporting.telemetry import Notify

TOPIC = "LossScaled"
_not_converted = tf.autograph.experimental.do_not_convert
_LARGEST_IN_FLOAT16 = 32768.0


def scale_own_train_step(model: Any, keras: Keras, notice: Notify) -> None:
    """Scale the loss of `model`'s own `train_step` if Keras divides by a scale; do nothing for other models.

    Call it before Keras creates the model's train function. It may be called again, also after another `compile`.
    """
    if keras.legacy or "train_step" not in keras.own_steps(model):
        return
    known = vars(model).get("train_step")
    own = known.own if isinstance(known, _ScaledStep) else model.train_step
    optimizer = model.optimizer
    if not isinstance(optimizer, keras.module.optimizers.LossScaleOptimizer):
        _warn_about_unscaled(model, keras, notice)
        if isinstance(known, _ScaledStep):
            model.train_step = own
        return
    if isinstance(known, _ScaledStep) and known.optimizer is optimizer:
        return
    model.train_step = _ScaledStep(own, optimizer, notice)


def apply_undivided_outside_of_fit(model: Any, optimizer: Any, keras: Keras, notice: Notify) -> None:
    """Apply the gradients of a custom loop undivided if `compile` wrapped its optimizer in a LossScaleOptimizer.

    `optimizer` is the argument of `compile`. An optimizer that the program wrapped itself is not changed, nor one whose
    `scale_loss` was ever called, as Keras' own `train_step` does.
    """
    if keras.legacy:
        return
    scaling = keras.module.optimizers.LossScaleOptimizer
    if isinstance(model.optimizer, scaling) and not isinstance(optimizer, scaling):
        _Undivided(model.optimizer, notice)


class _Undivided:
    def __init__(self, optimizer: Any, notice: Notify) -> None:
        self._apply = optimizer.apply
        self._scale_loss = optimizer.scale_loss
        self._notice = notice
        self._scaled = False
        # A tf.function may call these methods, and AutoGraph must not convert them.
        optimizer.apply = _not_converted(self._apply_gradients)
        optimizer.scale_loss = _not_converted(self._record_scaling)

    def _record_scaling(self, loss: Any) -> Any:
        self._scaled = True
        return self._scale_loss(loss)

    def _apply_gradients(self, grads: Any, trainable_variables: Any = None) -> Any:
        if self._scaled:
            return self._apply(grads, trainable_variables)
        self._notice(
            "LossNotScaled",
            "a loop applies gradients by the model's compiled optimizer and never calls optimizer.scale_loss, by whose "
            "scale Keras 3 divides them under mixed_float16: they are not divided here, and small ones become 0 in "
            "float16. precision: {policy: float32} has the range",
            level="Warning",
        )
        scale = tf.convert_to_tensor(self._scale_loss(1.0), tf.float32)
        return self._apply([_times(gradient, scale) for gradient in grads], trainable_variables)


def _warn_about_unscaled(model: Any, keras: Keras, notice: Notify) -> None:
    half = any(getattr(layer, "compute_dtype", "") == "float16" for layer in keras.layers(model))
    names = [name for name, value in vars(model).items() if isinstance(value, keras.module.optimizers.Optimizer)]
    if half and names:
        notice(
            "LossNotScaled",
            f"{type(model).__name__}.train_step applies gradients by {', '.join(sorted(names))}, around which Keras "
            "puts no LossScaleOptimizer: small gradients become 0 in float16. precision: {policy: float32} or "
            "mixed_bfloat16 has the range",
            level="Warning",
        )


class _ScaledStep:
    """A model's `train_step` with scaled backward passes. `own` is the method, `optimizer` the LossScaleOptimizer."""

    def __init__(self, own: Callable[[Any], Any], optimizer: Any, notice: Notify) -> None:
        self.own = own
        self.optimizer = optimizer
        self._notice = notice
        self._outside = optimizer.apply, optimizer.scale_loss
        self._apply = functools.partial(type(optimizer).apply, optimizer)
        self._scale_loss = functools.partial(type(optimizer).scale_loss, optimizer)
        # Whether the step is being traced, and whether the program itself scales in it.
        self._active = False
        self._by_program = False
        optimizer.apply = _not_converted(self._apply_gradients)
        optimizer.scale_loss = _not_converted(self._scale_by_program)

    def __call__(self, data: Any) -> Any:
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            # LossScaleOptimizer is wrong on several replicas; `fit` warns about it.
            return self.own(data)
        self._active, self._by_program = True, False
        try:
            with _gradients_by(self._gradient):
                return self.own(data)
        finally:
            self._active = False

    def _scale_by_program(self, loss: Any) -> Any:
        if not self._active:
            return self._outside[1](loss)
        self._by_program = True
        return self._scale_loss(loss)

    def _apply_gradients(self, grads: Any, trainable_variables: Any = None) -> Any:
        if not self._active:
            return self._outside[0](grads, trainable_variables)
        if self._by_program:
            return self._apply(grads, trainable_variables)
        self._notice(
            TOPIC,
            "the model's own train_step does not call optimizer.scale_loss, by whose scale Keras 3 divides the "
            "gradients under mixed_float16: its gradients are scaled here. precision: {policy: float32} trains "
            "without a scale",
            level="Warning",
        )
        # `apply` divides by the same scale; both operations are exact, because the scale is a power of two.
        scale = self._scale()
        return self._apply([_times(gradient, scale) for gradient in grads], trainable_variables)

    def _gradient(self, original: Callable[..., Any], tape: Any, target: Any, sources: Any, options: Any) -> Any:
        seeds, unconnected = options
        targets = tf.nest.flatten(target)
        plain = self._by_program or not (targets and all(map(_is_floating, targets)))
        if plain or not all(map(_is_float32_variable, tf.nest.flatten(sources))):
            return original(tape, target, sources, seeds, unconnected)
        scale = self._scale()
        if any(each.dtype == tf.float16 for each in targets):
            scale = tf.minimum(scale, _LARGEST_IN_FLOAT16)
        given = tf.nest.flatten(seeds) if seeds is not None else [None] * len(targets)
        scaled = [
            (tf.ones_like(each) if seed is None else tf.convert_to_tensor(seed)) * tf.cast(scale, each.dtype)
            for each, seed in zip(targets, given, strict=True)
        ]
        found = original(tape, targets, sources, scaled, unconnected)
        return tf.nest.map_structure(lambda gradient: _times(gradient, 1.0 / scale), found)

    def _scale(self) -> Any:
        return tf.convert_to_tensor(self._scale_loss(1.0), tf.float32)


@contextmanager
def _gradients_by(replacement: Callable[..., Any]) -> Iterator[None]:
    """Replace `tf.GradientTape.gradient` in this thread by `replacement`."""
    original = tf.GradientTape.gradient
    thread = threading.get_ident()

    def gradient(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        if threading.get_ident() != thread:
            return original(self, target, sources, output_gradients, unconnected_gradients)
        return replacement(original, self, target, sources, (output_gradients, unconnected_gradients))

    tf.GradientTape.gradient = gradient
    try:
        yield
    finally:
        tf.GradientTape.gradient = original


def _is_floating(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating


def _is_float32_variable(source: Any) -> bool:
    return hasattr(source, "assign") and tf.as_dtype(source.dtype) == tf.float32


def _times(gradient: Any, factor: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor
