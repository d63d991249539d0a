"""Loss scaling under mixed_float16, and checked updates under any policy, with one decision for all replicas.

float16 ends at 65504 and gradients below 6e-8 underflow, so the loss is multiplied before the backward pass and the
gradients divided after it (Micikevicius et al., Mixed Precision Training, arXiv:1710.03740). Keras 3's
LossScaleOptimizer checks for infinities before the replicas' gradients are summed, which is wrong with more than one
replica, and lets the scale sink to zero; hence this implementation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mptraining_api.resolved_job import ResolvedPrecision

# The growth interval of Keras and PyTorch: the scale is doubled after this many finite steps in a row.
GROWTH_STEPS = 2000
# A scale below 1 would shrink gradients instead of saving them from underflow.
FLOOR = 1.0
CEILING = 2.0**31


@dataclass(frozen=True)
class ScalerState:
    """The scaler's part of a checkpoint."""

    scale: float
    good_steps: int
    skipped_steps: int
    skipped_in_a_row: int


class LossScaler:
    """The scale, its counters and their update. Create it in the strategy's scope; update it in cross-replica context.

    If `scales` is False, nothing is multiplied: non-finite steps are skipped and counted, under any policy.
    """

    def __init__(self, *, initial: float = 1.0, dynamic: bool = False, scales: bool = True) -> None:
        self.scales = scales
        self.dynamic = dynamic and scales
        self._scale = tf.Variable(initial, trainable=False, dtype=tf.float32, name="loss_scale")
        self._good = tf.Variable(0, trainable=False, dtype=tf.int64, name="good_steps")
        self._skipped = tf.Variable(0, trainable=False, dtype=tf.int64, name="skipped_steps")
        self._in_a_row = tf.Variable(0, trainable=False, dtype=tf.int64, name="skipped_in_a_row")

    @property
    def scale(self) -> Any:
        """The present scale, a float32 scalar."""
        return self._scale

    def readings(self) -> list[Any]:
        """Return scale, skipped steps and skipped steps in a row as float32 scalars, for the one host read."""
        return [tf.cast(value, tf.float32) for value in (self._scale, self._skipped, self._in_a_row)]

    def update(self, finite: Any, forward_finite: Any) -> None:
        """Count a step, which was skipped unless `finite`; both are bool scalars.

        Halve the scale after gradients that are not finite, unless the forward pass, which is not scaled, is their
        cause; double it after GROWTH_STEPS finite steps in a row.
        """
        if self.dynamic:
            good = tf.where(finite, self._good + 1, tf.zeros_like(self._good))
            grow = good >= GROWTH_STEPS
            grown = tf.where(grow, tf.minimum(self._scale * 2.0, CEILING), self._scale)
            halved = tf.where(forward_finite, tf.maximum(self._scale * 0.5, FLOOR), self._scale)
            self._scale.assign(tf.where(finite, grown, halved))
            self._good.assign(tf.where(grow, tf.zeros_like(good), good))
        self._skipped.assign_add(tf.cast(tf.logical_not(finite), tf.int64))
        self._in_a_row.assign(tf.where(finite, tf.zeros_like(self._in_a_row), self._in_a_row + 1))

    def state(self) -> ScalerState:
        return ScalerState(
            float(self._scale.numpy()), int(self._good.numpy()), int(self._skipped.numpy()), int(self._in_a_row.numpy())
        )

    def restore(self, state: ScalerState) -> None:
        self._scale.assign(state.scale)
        self._good.assign(state.good_steps)
        self._skipped.assign(state.skipped_steps)
        self._in_a_row.assign(state.skipped_in_a_row)


def make_scaler(precision: ResolvedPrecision, *, checked: bool) -> LossScaler | None:
    """Return the scaler for this policy; None if updates are not checked. Call it in the strategy's scope."""
    if precision.policy == "mixed_float16":
        return LossScaler(initial=precision.loss_scale, dynamic=precision.loss_scale_mode == "Dynamic")
    return LossScaler(scales=False) if checked else None
