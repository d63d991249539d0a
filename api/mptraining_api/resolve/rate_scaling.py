"""How a learning rate that was found for one batch size becomes that for another, as advice."""

from __future__ import annotations

import math
from typing import Literal

# Their step does not grow with the gradient: the square root keeps the noise of their path (Malladi et al. 2022,
# arXiv:2205.10287). SGD's does: linear (Goyal et al. 2017, arXiv:1706.02677).
_ADAPTIVE = frozenset(
    {"Adam", "AdamW", "Nadam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "Lamb", "Lion"}
)
# Goyal et al. 2017, section 2.2: the rate rises over the first five epochs.
_WARMUP_EPOCHS = 5
# Of a short training they would be most of it.
_WARMUP_SHARE = 10

Rule = Literal["Linear", "SquareRoot"]


def rule_for(optimizer: str | None) -> Rule | None:
    """By the name of Keras' optimizer class; None for one that nothing is known of."""
    if optimizer == "SGD":
        return "Linear"
    return "SquareRoot" if optimizer in _ADAPTIVE else None


def factor(rule: Rule, base: int, now: int) -> float:
    """What the rate is multiplied by when an update sees `now` examples instead of `base`."""
    return now / base if rule == "Linear" else math.sqrt(now / base)


def warmup_steps(steps_per_epoch: int | None, total_steps: int | None) -> int | None:
    """Five epochs, or a tenth of all steps if that is less; None when the length of an epoch is not known."""
    if steps_per_epoch is None:
        return None
    steps = _WARMUP_EPOCHS * steps_per_epoch
    return steps if total_steps is None else max(1, min(steps, total_steps // _WARMUP_SHARE))


def suggestion(
    optimizer: str | None, base: int, now: int, *, steps_per_epoch: int | None = None, total_steps: int | None = None
) -> str:
    """What to write under `training` for a rate that was found for `base` examples an update."""
    rule = rule_for(optimizer)
    steps = warmup_steps(steps_per_epoch, total_steps)
    warmup = "" if now < base else f", warmupSteps: {steps if steps is not None else '<five epochs>'}"
    written = f"{{rule: {rule or 'Linear'}, baseBatchSize: {base}{warmup}}}"
    if rule is None:
        return f"learningRateScaling: {written} for SGD, rule: SquareRoot for Adam and its kin"
    return f"learningRateScaling: {written} multiplies it by {factor(rule, base, now):.3g}, as fits {optimizer}"
