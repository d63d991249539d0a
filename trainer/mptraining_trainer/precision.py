"""Loss scaling under mixed_float16: one scale and one decision for all replicas.

float16 ends at 65504 and small gradients vanish below 6e-8, so the loss is multiplied before the backward pass and the
gradients divided after it (Micikevicius et al., Mixed Precision Training, arXiv:1710.03740). Keras 3's own
LossScaleOptimizer looks for infinities before the replicas' gradients are summed, which is wrong with more than one
replica, and lets the scale sink to zero; hence this one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from mptraining_api.resolved import ResolvedJob

# Keras' and PyTorch's growth interval; a larger scale is tried after this many good steps in a row.
GROWTH_STEPS = 2000
# Below 1 the scale would shrink gradients instead of saving them from underflow.
FLOOR = 1.0
CEILING = 2.0**31
# At the floor an overflow is no matter of the scale: that many bad steps in a row are a divergence.
DIVERGED_AFTER = 100


def decided(job: ResolvedJob, notice: Callable[[str, str], None]) -> ResolvedJob:
    """The job with a policy that Keras knows: Measure is not there yet and follows Auto, said aloud."""
    if job.precision.policy != "Measure":
        return job
    capability = job.accelerator.compute_capability or 0.0
    policy = {"cpu": "float32", "tpu": "mixed_bfloat16"}.get(job.accelerator.kind)
    policy = policy or ("mixed_float16" if capability >= 7.0 else "float32")
    notice("NotMeasured", f"precision.policy: Measure is not there yet; {policy}, which Auto picks")
    return job.model_copy(update={"precision": job.precision.model_copy(update={"policy": policy})})


@dataclass(frozen=True)
class ScalerState:
    """The scaler's part of a checkpoint."""

    scale: float
    good_steps: int
    skipped_steps: int
    skipped_in_a_row: int


class LossScaler:
    """Scale, counters and their rule; variables live in the strategy's scope, updates in cross-replica context."""

    def __init__(self, *, initial: float, dynamic: bool) -> None:
        self.dynamic = dynamic
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


def all_finite(gradients: list[Any]) -> Any:
    """A boolean scalar: no gradient of this replica holds an infinity or a NaN."""
    checks = [
        tf.reduce_all(tf.math.is_finite(gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient))
        for gradient in gradients
        if gradient is not None
    ]
    return tf.reduce_all(tf.stack(checks))
