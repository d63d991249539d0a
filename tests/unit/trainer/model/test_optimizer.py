"""The learning rate against its formula: factor * r(step) * min(1, (step + 1) / warmup_steps)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mptraining_api.resolved_job import LearningRate
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compile import scale_learning_rate, scaled_schedule


def rate_at(keras: Keras, optimizer: Any, step: int) -> float:
    schedule = keras.module.optimizers.schedules.deserialize(optimizer.get_config()["learning_rate"])
    return float(schedule(step))


def rates(keras: Keras, base: Any, factor: float, warmup: int, steps: int) -> list[float]:
    schedule = scaled_schedule(keras.module)(base, factor, warmup)
    return [float(schedule(step)) for step in range(steps)]


def test_a_rate_rises_linearly_to_its_multiple_and_a_schedule_keeps_its_shape(keras: Keras) -> None:
    for factor, warmup, expected in (
        (1.0, 4, [0.025, 0.05, 0.075, 0.1, 0.1, 0.1]),
        (8.0, 2, [0.4, 0.8, 0.8, 0.8, 0.8, 0.8]),
        (2.0, 1, [0.2] * 6),
        (2.0, 0, [0.2] * 6),
    ):
        assert rates(keras, 0.1, factor, warmup, 6) == pytest.approx(expected)
    cosine = keras.module.optimizers.schedules.CosineDecay(0.1, decay_steps=10)
    expected = [3.0 * float(cosine(step)) * min(1.0, (step + 1) / 5) for step in range(12)]
    assert rates(keras, cosine, 3.0, 5, 12) == pytest.approx(expected)


def test_the_optimizer_keeps_its_other_arguments_and_follows_the_schedule(keras: Keras) -> None:
    base = keras.module.optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)
    optimizer = keras.module.optimizers.SGD(base, momentum=0.9, clipnorm=1.0)
    scale_learning_rate(keras, optimizer, LearningRate(factor=2.0, warmup_steps=4))
    assert (optimizer.momentum, optimizer.clipnorm) == (0.9, 1.0)
    assert rate_at(keras, optimizer, 1) == pytest.approx(2.0 * 0.1 * 0.5**0.5 * 0.5)
    assert rate_at(keras, optimizer, 6) == pytest.approx(2.0 * 0.1 * 0.5**3)


def test_warmup_counts_the_updates_that_are_applied(keras: Keras) -> None:
    sgd = keras.module.optimizers.SGD(1.0)
    layer = keras.module.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    layer.build((None, 1))
    keras.build_optimizer(sgd, layer.trainable_variables)
    scale_learning_rate(keras, sgd, LearningRate(factor=1.0, warmup_steps=4))
    weights: list[float] = []
    for _ in range(5):
        keras.apply_gradients(sgd, [-np.ones((1, 1), "float32")], layer.trainable_variables)
        weights.append(float(layer.get_weights()[0].item()))
    assert np.diff([0.0, *weights]) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("warmup", [0, 1])
def test_variables_that_are_excluded_from_weight_decay_stay_so(keras: Keras, warmup: int) -> None:
    """`get_config` names neither these nor what a class of the user's forgets."""
    optimizer = keras.module.optimizers.SGD(0.5, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    layer = keras.module.layers.Dense(1, kernel_initializer="ones", bias_initializer="ones")
    layer.build((None, 1))
    keras.build_optimizer(optimizer, layer.trainable_variables)
    scale_learning_rate(keras, optimizer, LearningRate(factor=2.0, warmup_steps=warmup))
    keras.apply_gradients(optimizer, [np.zeros((1, 1), "float32"), np.zeros(1, "float32")], layer.trainable_variables)
    assert [float(array.item()) for array in layer.get_weights()] == [0.5, 1.0]


def test_every_rate_of_a_multi_optimizer_is_scaled(keras3: Keras) -> None:
    module = keras3.module.optimizers
    kernel, bias = module.SGD(0.5), module.SGD(module.schedules.ExponentialDecay(0.25, 1, 0.5))
    several = module.MultiOptimizer(lambda variable: bias if "bias" in variable.path else kernel)
    layer = keras3.module.layers.Dense(1, kernel_initializer="zeros")
    layer.build((None, 1))
    keras3.build_optimizer(several, layer.trainable_variables)
    scale_learning_rate(keras3, several, LearningRate(factor=2.0, warmup_steps=0))
    for _ in range(2):
        gradients = [-np.ones((1, 1), "float32"), -np.ones(1, "float32")]
        keras3.apply_gradients(several, gradients, layer.trainable_variables)
    assert [float(array.item()) for array in layer.get_weights()] == [2.0, 0.75]


def test_only_a_loss_scale_optimizer_is_unwrapped(keras: Keras) -> None:
    """An optimizer of the user's may have an attribute of this name too."""
    plain = keras.module.optimizers.SGD(0.1)
    wrapping = keras.module.optimizers.SGD(0.1)
    wrapping.inner_optimizer = plain
    assert keras.inner_optimizer(wrapping) is wrapping
    assert keras.inner_optimizer(keras.module.mixed_precision.LossScaleOptimizer(plain)) is plain


def test_the_schedule_survives_serialization(keras: Keras) -> None:
    schedules = keras.module.optimizers.schedules
    schedule = scaled_schedule(keras.module)(schedules.CosineDecay(0.1, decay_steps=10), 3.0, 5)
    again = schedules.deserialize(schedules.serialize(schedule))
    assert [float(again(step)) for step in range(8)] == pytest.approx([float(schedule(step)) for step in range(8)])
