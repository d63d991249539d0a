"""Optimizers that a script creates beside the compiled one, as GANs do, on several replicas under Keras 3."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from mptraining_trainer.keras_backend import Keras


@contextmanager
def build_optimizers_early(keras: Keras) -> Iterator[None]:
    """Create the variables of an unbuilt Keras 3 optimizer outside the function that is being traced.

    Inside it TensorFlow would have to initialize them there: with a replica's batch shape that fails with `You must
    feed a value for placeholder tensor`. tf_keras creates them outside, and so does Keras 3 for the compiled optimizer.
    """
    optimizers = keras.module.optimizers
    classes = [] if keras.legacy else [optimizers.Optimizer, getattr(optimizers, "LossScaleOptimizer", None)]
    owners = {next(each for each in kind.__mro__ if "apply" in vars(each)) for kind in classes if kind is not None}
    originals = {owner: owner.apply for owner in owners}
    for owner, original in originals.items():
        owner.apply = _building(original, keras)
    try:
        yield
    finally:
        for owner, original in originals.items():
            owner.apply = original


def _building(original: Any, keras: Keras) -> Any:
    @functools.wraps(original)
    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        late = not optimizer.built and trainable_variables is not None
        if late and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            trainable_variables = list(trainable_variables)
            with tf.init_scope(), keras.module.name_scope(optimizer.name, caller=optimizer):
                optimizer.build(trainable_variables)
        return original(optimizer, grads, trainable_variables)

    return apply
