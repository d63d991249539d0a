"""How many examples a step has, and how the learning rate follows."""

from __future__ import annotations

import math
from typing import Literal

from mptraining_api import accelerators
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.devices import Devices
from mptraining_api.resolved_job import Choice, LearningRate
from mptraining_api.spec import JobSpec

SCALING = "spec.training.learningRateScaling"

# What keras.Model.fit takes, so that a learning rate that worked there works here.
KERAS_BATCH_SIZE = 32


def global_batch_size(spec: JobSpec, asked: Devices) -> int:
    """Examples of one step over all replicas asked for. Raises InvalidSpec when they cannot share it evenly."""
    written = spec.training.batch_size if spec.training else None
    replicas = asked.replicas
    if written is not None and written.global_ is not None:
        total = written.global_
        if total % replicas:
            below, above = total // replicas * replicas, (total // replicas + 1) * replicas
            nearest = f"{below} or {above}" if below else str(above)
            raise InvalidSpec(
                "spec.training.batchSize.global",
                f"{total} examples cannot be shared evenly by {replicas} replicas",
                expected=f"a multiple of {replicas}",
                next_step=f"The nearest: {nearest}.",
            )
        return total
    return _per_replica(spec, asked)[0] * replicas


def batch_choice(spec: JobSpec, asked: Devices, devices: Devices, total: int) -> Choice:
    """How the replicas that will run share the `total`, and where a fallback has others, what it was for each asked
    for.
    """
    written = spec.training.batch_size if spec.training else None
    if written is not None and written.global_ is not None:
        because = _shared(str(total // devices.replicas), devices.replicas)
    else:
        per_replica, source = _per_replica(spec, asked)
        each = f"{per_replica} ({source})" if source else str(per_replica)
        if devices.replicas == asked.replicas:
            because = _shared(each, asked.replicas)
        else:
            here = _shared(str(total // devices.replicas), devices.replicas)
            because = f"{here} here; asked for: {_shared(each, asked.replicas)}"
    return Choice(field="spec.training.batchSize", value=f"global {total}", because=because)


def _per_replica(spec: JobSpec, asked: Devices) -> tuple[int, str]:
    """Examples for each replica where the job gives no global size, and whose number it is if not the job's own.

    Without any size it is Keras' 32, or what fills the matrix units when that is more (128 on a TPU).
    """
    written = spec.training.batch_size if spec.training else None
    if written is not None and written.per_replica is not None:
        return written.per_replica, ""
    size = max(KERAS_BATCH_SIZE, accelerators.lookup(asked.accelerator.type).multiple)
    return size, "Keras' default" if size == KERAS_BATCH_SIZE else "what fills the device's matrix units"


def _shared(each: str, replicas: int) -> str:
    return f"{each} on one replica" if replicas == 1 else f"{each} for each of {replicas} replicas"


def learning_rate(spec: JobSpec, batch_size: int) -> tuple[LearningRate, tuple[Choice, ...]]:
    """The factor on the optimizer's own rate: `batch_size` examples a step, times the steps accumulated.

    Linear, batch / base: Goyal et al. 2017, "Accurate, Large Minibatch SGD", arXiv:1706.02677. SquareRoot,
    sqrt(batch / base), which keeps the variance of an update: Krizhevsky 2014, arXiv:1404.5997; Hoffer et al.
    2017, arXiv:1705.08741.
    """
    training = spec.training
    scaling = training.learning_rate_scaling if training else None
    if training is None or scaling is None:
        return LearningRate(factor=1.0, warmup_steps=0), ()
    warmup = scaling.warmup_steps or 0
    base = scaling.base_batch_size
    if scaling.rule in (None, "None") or base is None:
        unscaled = Choice(field=SCALING, value="None", because="asked for: the learning rate stays as written")
        return LearningRate(factor=1.0, warmup_steps=warmup), (unscaled,) if scaling.rule else ()
    accumulated = training.gradient_accumulation_steps or 1
    ratio = batch_size * accumulated / base
    factor = ratio if scaling.rule == "Linear" else math.sqrt(ratio)
    times = f" x {accumulated} accumulated" if accumulated > 1 else ""
    because = f"{scaling.rule}: {batch_size}{times} examples an update against {base}"
    choice = Choice(field=SCALING, value=f"x {factor:.6g}", because=because)
    return LearningRate(factor=factor, warmup_steps=warmup), (choice,)


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
