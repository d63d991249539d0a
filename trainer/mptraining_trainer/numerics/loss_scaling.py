"""Updates that are looked at before they are applied, and loss scaling under mixed_float16: one decision for all.

float16 ends at 65504 and small gradients vanish below 6e-8, so the loss is multiplied before the backward pass and the
gradients divided after it (Micikevicius et al., Mixed Precision Training, arXiv:1710.03740). Keras 3's own
LossScaleOptimizer looks for infinities before the replicas' gradients are summed, which is wrong with more than one
replica, and lets the scale sink to zero; hence this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mptraining_api.resolved_job import ResolvedPrecision

# Keras' and PyTorch's growth interval; a larger scale is tried after this many good steps in a row.
GROWTH_STEPS = 2000
# Below 1 the scale would shrink gradients instead of saving them from underflow.
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
    """Scale, counters and their rule; variables live in the strategy's scope, updates in cross-replica context.

    With `scales` False nothing is multiplied: bad steps are left out and counted, under any policy.
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
        """The present factor, a float32 scalar."""
        return self._scale

    def readings(self) -> list[Any]:
        """Scale, skipped steps and skipped steps in a row as float32 scalars, for the one host read."""
        return [tf.cast(value, tf.float32) for value in (self._scale, self._skipped, self._in_a_row)]

    def update(self, finite: Any) -> None:
        """Takes the one decision into account: halve after an overflow, double after GROWTH_STEPS good steps."""
        good = tf.where(finite, self._good + 1, tf.zeros_like(self._good))
        if self.dynamic:
            grow = good >= GROWTH_STEPS
            grown = tf.where(grow, tf.minimum(self._scale * 2.0, CEILING), self._scale)
            self._scale.assign(tf.where(finite, grown, tf.maximum(self._scale * 0.5, FLOOR)))
            good = tf.where(grow, tf.zeros_like(good), good)
        self._good.assign(good)
        self._skipped.assign_add(tf.cast(tf.logical_not(finite), tf.int64))
        self._in_a_row.assign(tf.where(finite, tf.zeros_like(self._in_a_row), self._in_a_row + 1))

    def give_back(self) -> None:
        """Takes back what one bad step cost the scale: it was a record's fault and not the scale's."""
        if self.dynamic:
            self._scale.assign(tf.minimum(self._scale * 2.0, CEILING))

    def state(self) -> ScalerState:
        return ScalerState(
            float(self._scale.numpy()),
            int(self._good.numpy()),
            int(self._skipped.numpy()),
            int(self._in_a_row.numpy()),
        )

    def restore(self, state: ScalerState) -> None:
        self._scale.assign(state.scale)
        self._good.assign(state.good_steps)
        self._skipped.assign(state.skipped_steps)
        self._in_a_row.assign(state.skipped_in_a_row)


def scaler_for(precision: ResolvedPrecision, *, checked: bool) -> LossScaler | None:
    """What a step under this policy needs; None where updates are applied unseen. Call it in the strategy's scope."""
    if precision.policy == "mixed_float16":
        return LossScaler(initial=precision.loss_scale, dynamic=precision.loss_scale_mode == "Dynamic")
    return LossScaler(scales=False) if checked else None
