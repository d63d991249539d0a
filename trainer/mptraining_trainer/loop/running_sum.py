"""A sum of losses on the device that is the same however the steps are fused, and over as many of them as there are.

Each replica adds to its own copy; a read outside of the replicas is the sum over all of them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class RunningSum:
    """A float32 sum with its rounding error kept beside it; made inside the strategy's scope.

    Kahan, Further remarks on reducing truncation errors (Communications of the ACM 8, 1965): both together have some 48
    bits while the sum is larger than what is added, at the price of four operations, and on devices without float64.
    """

    def __init__(self, name: str) -> None:
        self._sum, self._error = local_sum(f"{name}_sum"), local_sum(f"{name}_error")

    @property
    def variables(self) -> tuple[Any, ...]:
        """What belongs into a checkpoint."""
        return self._sum, self._error

    def add(self, value: Any) -> None:
        """Adds a float32 scalar, in replica context."""
        before = self._sum.read_value()
        value += self._error.read_value()
        after = before + value
        self._error.assign(value - (after - before))
        self._sum.assign(after)

    def reset(self) -> None:
        for each in self.variables:
            each.assign(0.0)

    def readings(self) -> list[Any]:
        """Two float32 scalars, in cross-replica context; the sum is what they add up to in double precision."""
        return [each.read_value() for each in self.variables]

    def numpy(self) -> float:
        """The sum over all replicas; every worker must ask."""
        return sum(float(each.numpy()) for each in self.variables)


def local_sum(name: str) -> Any:
    """A float32 scalar that each replica keeps apart and a read adds up."""
    return tf.Variable(
        0.0,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
        name=name,
    )
