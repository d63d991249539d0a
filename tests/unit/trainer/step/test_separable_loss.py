"""Losses that are no mean over examples are refused, also if a small data set repeats its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from mptraining_api.problems import InvalidProgram
from mptraining_trainer.keras_backend import Keras
from mptraining_trainer.model.compiled import CompiledModel
from mptraining_trainer.step.separable_loss import needs_sums

FOUR = np.random.default_rng(5).normal(size=(4, 3)).astype(np.float32)
# The first examples of a data set with four rows: all of them appear twice.
INPUTS = np.concatenate([FOUR, FOUR])


def checked(keras: Keras, batch: tuple[Any, Any, Any], loss: Any, *, padded: bool = False) -> bool:
    model = keras.module.Sequential([keras.module.layers.Input((3,)), keras.module.layers.Dense(1)])
    model.compile(loss=loss)
    return needs_sums(tf.distribute.get_strategy(), CompiledModel(keras, model), batch, 2, padded=padded)


def test_a_product_of_means_is_refused_where_all_labels_are_equal(keras: Keras) -> None:
    def product(labels: Any, outputs: Any) -> Any:
        return tf.reduce_mean(outputs) * tf.reduce_mean(tf.square(outputs)) + 0.0 * tf.reduce_mean(labels)

    with pytest.raises(InvalidProgram, match="no mean over examples"):
        checked(keras, (INPUTS, np.ones((8, 1), np.float32), ()), product)


def test_a_loss_that_mixes_rows_is_refused_although_the_model_predicts_the_same_for_all(keras3: Keras) -> None:
    # tf_keras gives labels the rank of the predictions before it calls a loss.
    class Broadcast(keras3.module.losses.Loss):  # type: ignore[misc,name-defined]
        def call(self, y_true: Any, y_pred: Any) -> Any:
            return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)

    labels = np.arange(8, dtype=np.float32)
    with pytest.raises(InvalidProgram, match="no mean over examples"):
        checked(keras3, (1e-6 * INPUTS, labels, ()), Broadcast())


def test_a_mean_over_rows_that_sees_padding_is_refused_without_labels(keras: Keras) -> None:
    class Autoencoder(keras.module.Model):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.module.layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

        def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any) -> Any:
            return tf.reduce_mean(tf.square(x - y_pred))

    model = Autoencoder()
    model.compile()
    model(INPUTS)
    compiled = CompiledModel(keras, model)
    assert not needs_sums(tf.distribute.get_strategy(), compiled, (INPUTS, (), ()), 2, padded=False)
    with pytest.raises(InvalidProgram, match="padded or skipped rows change it"):
        needs_sums(tf.distribute.get_strategy(), compiled, (INPUTS, (), ()), 2, padded=True)


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_class_weights_are_those_of_booleans_too(keras: Keras, shape: tuple[int, ...]) -> None:
    weigh = keras.class_weights({"0": 1.0, "1": 3.0})
    _, labels, weights = weigh(tf.zeros([2, 3]), tf.reshape([True, False], shape))
    assert np.asarray(weights).tolist() == [3.0, 1.0]
    assert labels.shape == shape
