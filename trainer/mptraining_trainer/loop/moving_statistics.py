"""What layers note of the data while they train, such as BatchNormalization's means: one and the same on every replica.

Each replica moves its own copy by its own examples. Left alone the copies drift apart, the replicas evaluate different
models, and the one that is saved is that of the first replica.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from mptraining_trainer.distribution.replicas import all_finite
from mptraining_trainer.keras_backend import Keras


class MovingStatistics:
    """The moving statistics of one model; all methods are for replica context."""

    def __init__(self, keras: Keras, model: Any) -> None:
        self._variables = keras.moving_statistics(model)

    def read(self) -> list[Any]:
        """As they are now on this replica."""
        return [variable.read_value() for variable in self._variables]

    def finite(self) -> Any:
        """Whether every one of them is finite on this replica, a bool scalar."""
        return all_finite(self.read())

    def agree(self) -> None:
        """Every replica goes on with the mean of all."""
        context = tf.distribute.get_replica_context()
        if self._variables and context.num_replicas_in_sync > 1:
            self.assign(context.all_reduce(tf.distribute.ReduceOp.MEAN, self.read()))

    def assign(self, values: list[Any]) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)
