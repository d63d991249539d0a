"""Global batch size, and scaling of the learning rate with it."""

from __future__ import annotations

import math
from typing import Literal

from mptraining_api import accelerators
from mptraining_api.problems import InvalidSpec
from mptraining_api.resolve.devices import Devices
from mptraining_api.resolved_job import Choice, LearningRate
from mptraining_api.spec import JobSpec

SCALING = "spec.training.learningRateScaling"

# The default of keras.Model.fit, so that a learning rate found there is valid here.
KERAS_BATCH_SIZE = 32
# A prediction needs no memory for gradients; also the default of `Model.predict`.
PREDICTION_BATCH_SIZE = 32


def global_batch_size(spec: JobSpec, requested: Devices) -> int:
    """Return the examples per step over all requested replicas. Raises InvalidSpec if they do not divide it evenly."""
    written = spec.training.batch_size if spec.training else None
    replicas = requested.replicas
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
    return _per_replica(spec, requested)[0] * replicas


def batch_choice(spec: JobSpec, requested: Devices, devices: Devices, total: int) -> Choice:
    """Return the choice of the global batch size `total`, with the examples per replica of `devices`.

    After a CPU fallback to another number of replicas, the reason also has the examples per replica of `requested`.
    """
    written = spec.training.batch_size if spec.training else None
    if written is not None and written.global_ is not None:
        because = _per_replica_text(str(total // devices.replicas), devices.replicas)
    else:
        per_replica, source = _per_replica(spec, requested)
        size = f"{per_replica} ({source})" if source else str(per_replica)
        if devices.replicas == requested.replicas:
            because = _per_replica_text(size, requested.replicas)
        else:
            here = _per_replica_text(str(total // devices.replicas), devices.replicas)
            because = f"{here} here; asked for: {_per_replica_text(size, requested.replicas)}"
    return Choice(field="spec.training.batchSize", value=f"global {total}", because=because)


def _per_replica(spec: JobSpec, requested: Devices) -> tuple[int, str]:
    """Return the examples per replica for a job without a global size, and the source of a default (else empty).

    The default is Keras' 32, or the multiple for the matrix units if that is larger (128 on a TPU).
    """
    written = spec.training.batch_size if spec.training else None
    if written is not None and written.per_replica is not None:
        return written.per_replica, ""
    size = max(KERAS_BATCH_SIZE, accelerators.lookup(requested.accelerator.type).multiple)
    return size, "Keras' default" if size == KERAS_BATCH_SIZE else "what fills the device's matrix units"


def _per_replica_text(size: str, replicas: int) -> str:
    return f"{size} on one replica" if replicas == 1 else f"{size} for each of {replicas} replicas"


def learning_rate(spec: JobSpec, batch_size: int) -> tuple[LearningRate, tuple[Choice, ...]]:
    """Return the factor on the optimizer's rate for `batch_size` examples per step times the accumulated steps.

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


# The update of an adaptive optimizer does not grow with the gradient: square-root scaling preserves its gradient noise
# (Malladi et al. 2022, arXiv:2205.10287). The update of SGD does: linear scaling (Goyal et al. 2017, arXiv:1706.02677).
_ADAPTIVE = frozenset(
    {"Adam", "AdamW", "Nadam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "Adafactor", "Lamb", "Lion"}
)
# Goyal et al. 2017, section 2.2: warm-up over the first five epochs.
_WARMUP_EPOCHS = 5
# Warm-up takes at most this part (a tenth) of a short training.
_WARMUP_DIVISOR = 10

Rule = Literal["Linear", "SquareRoot"]


def scaling_rule(optimizer: str | None) -> Rule | None:
    """Return the scaling rule for the name of a Keras optimizer class; None for an unknown one."""
    if optimizer == "SGD":
        return "Linear"
    return "SquareRoot" if optimizer in _ADAPTIVE else None


def scaling_factor(rule: Rule, base: int, now: int) -> float:
    """Return the factor on the learning rate for updates of `now` examples instead of `base`."""
    return now / base if rule == "Linear" else math.sqrt(now / base)


def warmup_steps(steps_per_epoch: int | None, total_steps: int | None) -> int | None:
    """Return the steps of five epochs, at most a tenth of all steps; None if the length of an epoch is unknown."""
    if steps_per_epoch is None:
        return None
    steps = _WARMUP_EPOCHS * steps_per_epoch
    return steps if total_steps is None else max(1, min(steps, total_steps // _WARMUP_DIVISOR))


def scaling_suggestion(
    optimizer: str | None, base: int, now: int, *, steps_per_epoch: int | None = None, total_steps: int | None = None
) -> str:
    """Return the entry under `training` for a learning rate that was found for updates of `base` examples."""
    rule = scaling_rule(optimizer)
    steps = warmup_steps(steps_per_epoch, total_steps)
    warmup = "" if now < base else f", warmupSteps: {steps if steps is not None else '<five epochs>'}"
    written = f"{{rule: {rule or 'Linear'}, baseBatchSize: {base}{warmup}}}"
    if rule is None:
        return f"learningRateScaling: {written} for SGD, rule: SquareRoot for Adam and similar optimizers"
    return f"learningRateScaling: {written} multiplies it by {scaling_factor(rule, base, now):.3g}, as fits {optimizer}"
