"""The learning rate that fits the global batch size: the optimizer's own, scaled and warmed up."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import tensorflow as tf

from mptraining_api.resolved_job import LearningRate
from mptraining_trainer.keras_backend import Keras


def scale_learning_rate(keras: Keras, optimizer: Any, learning_rate: LearningRate) -> Any:
    """The optimizer with its rate r(step) replaced by factor * r(step) * min(1, (step + 1) / warmup_steps).

    `step` counts from 0 the optimizer's iterations, that is updates, not batches under gradient accumulation. The
    gradual warm-up is that of Goyal et al., "Accurate, Large Minibatch SGD" (2017), section 2.2, here from zero.
    Returns the same object when there is nothing to change, else a new one: call it inside `strategy.scope()` and
    before the optimizer has slots.
    """
    if learning_rate.factor == 1.0 and learning_rate.warmup_steps == 0:
        return optimizer
    config = optimizer.get_config()
    base = config["learning_rate"]
    if isinstance(base, dict):
        base = keras.module.optimizers.schedules.deserialize(base)
    if learning_rate.warmup_steps == 0 and not callable(base):
        rate = float(base) * learning_rate.factor
    else:
        rate = scaled_schedule(keras.module)(base, learning_rate.factor, learning_rate.warmup_steps)
    return type(optimizer).from_config({**config, "learning_rate": rate})


@functools.cache
def scaled_schedule(module: ModuleType) -> Any:
    """The LearningRateSchedule of this generation of Keras (`keras` or `tf_keras`) that scales and warms up."""

    @module.saving.register_keras_serializable(package="mptraining")
    class ScaledLearningRate(module.optimizers.schedules.LearningRateSchedule):  # type: ignore[name-defined, misc]
        """`base` is a rate or another schedule."""

        def __init__(self, base: Any, factor: float, warmup_steps: int) -> None:
            super().__init__()
            self.base = base if callable(base) else float(base)
            self.factor = float(factor)
            self.warmup_steps = int(warmup_steps)

        def __call__(self, step: Any) -> Any:
            rate = tf.cast(self.base(step) if callable(self.base) else self.base, tf.float32)
            done = tf.cast(step, tf.float32) + 1.0
            return rate * self.factor * tf.minimum(1.0, done / max(self.warmup_steps, 1))

        def get_config(self) -> dict[str, Any]:
            base = module.optimizers.schedules.serialize(self.base) if callable(self.base) else self.base
            return {"base": base, "factor": self.factor, "warmup_steps": self.warmup_steps}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            base = config["base"]
            if isinstance(base, dict):
                base = module.optimizers.schedules.deserialize(base)
            return cls(base, config["factor"], config["warmup_steps"])

    return ScaledLearningRate
