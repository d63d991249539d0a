"""A program trained by plain `model.fit`, on one device: the reference."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import numpy as np

from hack.parity.programs.program import Program
from hack.parity.programs.source import SEED, fit_arguments
from hack.parity.training.environment import Arrays, Numbers, one_line

# Keras' own interval, in both generations. The scale grows after 2,000 steps, which no program here has.
INITIAL_SCALE = 2.0**15


def train(
    program: Program, module: ModuleType, arrays: Arrays, validation: Arrays | None, *, nudged: bool = False
) -> Numbers:
    """Train as the program's own `__main__` does. An error of Keras is `failed`.

    `nudged`: from weights that differ in the last digit.
    """
    began = time.monotonic()
    keras = module.keras
    keras.backend.clear_session()
    keras.mixed_precision.set_global_policy(program.policy)
    keras.utils.set_random_seed(SEED)
    try:
        built = module.build()
        model, callbacks = (built["model"], built["callbacks"]) if isinstance(built, dict) else (built, [])
        if nudged:
            _nudge(model)
        x, y, *weights = module.split(arrays)
        arguments = fit_arguments(program)
        every = 2 if program.validation == "second" else 1
        if validation is not None:
            arguments |= {"validation_data": module.split(validation), "validation_batch_size": program.batch}
        history = model.fit(x, y, sample_weight=weights[0] if weights else None, callbacks=callbacks, **arguments)
        weights = model.get_weights()
        skipped = _scale(model.optimizer) < INITIAL_SCALE
    except Exception as error:  # noqa: BLE001 - any program may fail in any way
        return Numbers(failed=f"{type(error).__name__}: {one_line(error)}", seconds=time.monotonic() - began)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return Numbers(
        tuple(weights),
        _epochs(history.history, history.epoch, validated_every=every),
        skipped,
        time.monotonic() - began,
    )


def _nudge(model: Any) -> None:
    random = np.random.default_rng(SEED)
    for variable in model.trainable_variables:
        first = np.asarray(variable)
        variable.assign(first * (1 + np.finfo(first.dtype).eps * random.choice([-1, 1], size=first.shape)))


def _scale(optimizer: Any) -> float:
    """Return the loss scale, which each skipped step halves; the initial one without loss scaling."""
    scale = getattr(optimizer, "dynamic_scale", None)
    scale = getattr(optimizer, "loss_scale", INITIAL_SCALE) if scale is None else scale
    return float(np.asarray(scale))


def _epochs(history: dict[str, list[Any]], numbers: list[int], *, validated_every: int) -> tuple[dict[str, float], ...]:
    """Return the metrics of each epoch; validation's only in the epochs that were validated."""
    count = len(numbers)
    epochs: list[dict[str, float]] = [{} for _ in range(count)]
    validated = [index for index, number in enumerate(numbers) if (number + 1) % validated_every == 0]
    for name, values in history.items():
        for number, value in zip(validated if name.startswith("val_") else range(count), values, strict=True):
            # A loss without reduction is a vector; a job reports its mean.
            epochs[number][name] = float(np.mean(value))
    return tuple(epochs)
